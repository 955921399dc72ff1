"""Device kernels, one folder per programming model."""
