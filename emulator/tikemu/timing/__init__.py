"""Estimates of time: in-order pipes, bandwidths, bank conflicts, traces."""
