"""The recorded program: its nodes with their data types and lines, and the program as text."""
