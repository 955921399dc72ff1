"""AscendCL for Python: the name of the chip."""

import os


def get_soc_name() -> str:
    """As aclrtGetSocName."""
    return os.environ["VIRTUAL_ASCEND_SOC"]
