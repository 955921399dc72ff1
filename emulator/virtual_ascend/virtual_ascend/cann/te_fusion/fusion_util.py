"""Records of what was compiled, for tuning."""


def dump_fusion_json(description, folder):
    """Record nothing, because nothing is tuned here."""
