"""The version that MindSpore 2.0.0 expects beside it."""

__sys_version__ = "6.3"
