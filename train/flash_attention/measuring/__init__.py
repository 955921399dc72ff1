"""What `bench`, `profile` and `selftest` measure with: timed processes on a CPU, and TIK kernels on tikemu."""
