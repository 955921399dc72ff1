"""What `flash-attention bench` and `profile` measure: contestants in processes of their own, timed in turns."""
