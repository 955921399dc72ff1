"""CANN's collectives: of this package MindSpore reads the version."""
