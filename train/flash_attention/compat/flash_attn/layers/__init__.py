"""flash_attn.layers: of it only `rotary`."""
