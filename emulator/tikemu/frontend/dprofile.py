"""``tik.Dprofile``: what a program asks about the chip (core.md 1.2)."""

from __future__ import annotations

from ..errors import TikUnsupportedError
from ..program.location import fail
from ..soc import SocProfile
from . import platform_info
from .recorder import PublicObject

#: Answers for Ascend 310, the chip of ``Dprofile("v100", "mini")``; nothing runs on it here.
MINI_CORES, MINI_UB_SIZE, MINI_L1_SIZE = 2, 248 * 1024, 1024 * 1024


class Dprofile(PublicObject):
    """Target description: ``Dprofile()`` is the selected SoC, ``Dprofile("v100", "cloud")`` the Ascend 910 family.

    ``Dprofile("v100", "mini")``, Ascend 310, answers questions of size; no kernel can be made for it.

    Raises:
        TikUnsupportedError: another pair of arguments.
    """

    def __init__(self, arch: str | None = None, product_name: str | None = None) -> None:
        if (arch, product_name) not in ((None, None), ("v100", "cloud"), ("v100", "mini")):
            fail(
                f'Dprofile takes no arguments, ("v100", "cloud") or ("v100", "mini"), got ({arch!r}, {product_name!r})',
                TikUnsupportedError,
            )
        self.arch, self.product_name = arch, product_name

    @property
    def _mini(self) -> bool:
        return self.product_name == "mini"

    def _soc(self) -> SocProfile:
        if self._mini:
            fail('Dprofile("v100", "mini") is Ascend 310; tikemu emulates the Ascend 910 family', TikUnsupportedError)
        if self.product_name == "cloud" and platform_info.selection() is None:
            return platform_info.DEFAULT_SOC
        return platform_info.current_soc()

    def get_product_name(self) -> str:
        """Return "cloud", which is the Ascend 910 family, or "mini"."""
        return "mini" if self._mini else "cloud"

    def get_aicore_num(self) -> int:
        """Return the number of AI cores."""
        return MINI_CORES if self._mini else self._soc().core_count

    def get_unified_buffer_size(self) -> int:
        """Return the size of the Unified Buffer in bytes, as ``get_soc_spec("UB_SIZE")`` gives it."""
        if self._mini:
            return MINI_UB_SIZE
        self._soc()
        return platform_info.reported_ub_size()

    def get_l1_buffer_size(self) -> int:
        """Return the size of L1 in bytes."""
        return MINI_L1_SIZE if self._mini else self._soc().l1_size
