"""Measure for `bench`, `profile` and `selftest`. Processes on a CPU are timed, TIK kernels run on tikemu."""
