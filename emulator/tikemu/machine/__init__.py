"""Memories, allocation, compilation and execution of recorded programs."""
