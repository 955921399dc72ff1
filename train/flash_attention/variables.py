"""Check environment variables: nonsense in one is an error, whatever backend runs."""

from __future__ import annotations

import functools
import os
import re

CORES = "FLASH_ATTENTION_CORES"
FORMS = "FLASH_ATTENTION_FORMS"
POISON = "FLASH_ATTENTION_CPU_POISON"
# No chip of CANN has more.
MOST_CORES = 65535


def check_variables() -> None:
    """Check the variables, also those that the backend in use does not read."""
    _check(*(os.environ.get(name, "") for name in (CORES, FORMS, POISON)))


def cores() -> int | None:
    """Return the number of cores that the variable gives, or None. Nonsense in it raises ValueError."""
    text = os.environ.get(CORES, "")
    if text and not (re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= MOST_CORES):
        raise ValueError(f"{CORES}: got {text!r}, allowed is a number from 1 to {MOST_CORES}")
    return int(text) if text else None


@functools.lru_cache(maxsize=16)
def _check(_: str, forms: str, poison: str) -> None:
    cores()
    if forms:
        from flash_attention.kernels.tik.instruction_forms import InstructionForms

        InstructionForms.from_text(forms)
    if poison not in ("", "0", "1"):
        raise ValueError(f"{POISON}: got {poison!r}, allowed are 0 and 1")
