"""Records of what was compiled, for tuning."""


def dump_fusion_json(description, folder):
    """Nothing is tuned here, so nothing is recorded."""
