"""What MindSpore's processes find in place of CANN's compiler: see ../cann."""
