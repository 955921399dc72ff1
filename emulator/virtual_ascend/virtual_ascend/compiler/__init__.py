"""Replace CANN's compiler in MindSpore's processes: see ../cann."""
