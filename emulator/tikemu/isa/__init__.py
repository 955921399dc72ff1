"""The instructions: one entry each, and what they share."""
