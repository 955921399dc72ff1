"""Dropout: the stream of keep decisions, and where its seeds come from."""
