"""Attention of a few queries against many cached keys: split over keys as well as heads, merged by a second kernel."""
