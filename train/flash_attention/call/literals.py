"""Words that arguments take, for type checkers."""

from __future__ import annotations

from typing import Literal

Alignment = Literal["top_left", "bottom_right"]
BackendName = Literal["tik", "fused", "cpu", "emulator", "math"]
LayoutName = Literal["BNSD", "BSND", "BSH", "SBH", "TH"]
