"""Backends: one module or folder each, found by name through `registry`."""
