"""CANN's compiler of operators, as MindSpore's build process calls it."""
