"""Neural network cells."""
