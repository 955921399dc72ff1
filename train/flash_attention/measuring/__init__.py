"""What `bench`, `profile`, `tune` and `selftest` measure with: timed processes on a CPU, and TIK kernels on tikemu."""
