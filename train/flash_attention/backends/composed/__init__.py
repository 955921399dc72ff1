"""Parts that backends share: other kinds of calls put together from MindSpore's operations and their dense cell."""
