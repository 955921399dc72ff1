"""Layouts of query, key, value and output as Python values: their axes, and the shapes that follow."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.call.checks import check_int

UNKNOWN = -1  # a size that a graph compiled for dynamic shapes does not know; it fits any other

_SHARDING = {"batch": "dp", "heads": "mp", "heads * head_dim": "mp"}


@dataclass(frozen=True)
class Layout:
    """The axes of a tensor, two of which may be merged: "batch * seq", "heads * head_dim"."""

    name: str
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return f"({', '.join(self.axes)})"

    @property
    def merged(self) -> bool:
        """Return True if heads and head_dim are one axis. A shape does not show them then."""
        return "heads * head_dim" in self.axes

    @property
    def tokens(self) -> bool:
        """Return True if batch and seq are one axis."""
        return "batch * seq" in self.axes

    def order(self, other: Layout) -> tuple[int, ...] | None:
        """Return the permutation of the four split axes into another layout's axes; None: the same."""
        own, wanted = self._split(), other._split()
        return None if own == wanted else tuple(map(own.index, wanted))

    def _split(self) -> list[str]:
        return " * ".join(self.axes).split(" * ")

    @property
    def sharding(self) -> tuple[str | None, ...]:
        """Return what splits each axis over devices: "dp" the batch, "mp" the heads."""
        return tuple(map(_SHARDING.get, self.axes))

    @property
    def split_sharding(self) -> tuple[str | None, ...]:
        """Return what splits each of the four axes over devices, none of them merged."""
        return tuple(map(_SHARDING.get, self._split()))

    def shape(self, batch: int, heads: int, seq: int, head_dim: int) -> tuple[int, ...]:
        """Return the shape of a tensor of these sizes."""
        sizes = {"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim}
        sizes["batch * seq"], sizes["heads * head_dim"] = batch * seq, heads * head_dim
        return tuple(map(sizes.__getitem__, self.axes))

    def read(
        self, name: str, shape: tuple, batch: int | None, width_name: str, width: int | None, most: int
    ) -> tuple[int, int, int, int]:
        """Read (batch, heads, seq, head_dim) from the shape of a tensor.

        Args:
            name: name of the tensor.
            batch: items of the batch, if the shape does not show them.
            width_name: the caller's name of `width`.
            width: width of a head, or None if the shape shows it.
            most: largest allowed width.
        """
        if len(shape) != len(self.axes):
            raise ValueError(
                f"{name}: got rank {len(shape)} with shape {shape}, allowed is {self} for layout {self.name}"
            )
        sizes = dict(zip(self.axes, shape))
        if batch is not None:
            tokens = sizes["batch * seq"]
            if tokens != UNKNOWN and tokens % batch:
                raise ValueError(f"{name}: got {tokens} rows in shape {shape}, allowed is a multiple of batch {batch}")
            sizes.update(batch=batch, seq=UNKNOWN if tokens == UNKNOWN else tokens // batch)
        heads, dim = sizes.get("heads", 1), sizes.get("head_dim", shape[-1])
        if UNKNOWN in (heads, dim):
            raise ValueError(
                f"{name}: got an unknown number of heads or head_dim, allowed are unknown batch and seq only"
            )
        if self.merged:
            if width is None:
                raise ValueError(f"{width_name}: needed to split the last axis of {name} for layout {self.name}")
            if dim % width:
                raise ValueError(
                    f"{name}: got last axis {dim} with layout {self.name}, allowed is a multiple of {width_name} "
                    f"{width}"
                )
            heads, dim = dim // width, width
        if width is not None and dim != width:
            raise ValueError(
                f"{name}: got head_dim {dim} in shape {shape}, allowed is the layer's {width_name} {width}"
            )
        if not 1 <= dim <= most:
            raise ValueError(f"{name}: got head_dim {dim} in shape {shape}, allowed is 1 to {most}")
        return sizes["batch"], heads, sizes["seq"], dim


def check_batch(batch: int | None, layout: str) -> None:
    """Raise unless the batch size is given exactly if tensors do not show it."""
    if not CALL_LAYOUTS[layout].tokens:
        if batch is not None:
            raise ValueError(f"batch: got {batch} with input_layout {layout}, allowed only with TH")
    elif batch is None:
        raise ValueError("batch: needed with input_layout TH, whose first axis is batch * seq")
    else:
        check_int("batch", batch, 1)


LAYOUTS = {
    name: Layout(name, axes)
    for name, axes in (
        ("BNSD", ("batch", "heads", "seq", "head_dim")),
        ("BSND", ("batch", "seq", "heads", "head_dim")),
        ("BSH", ("batch", "seq", "heads * head_dim")),
        ("SBH", ("seq", "batch", "heads * head_dim")),
    )
}
# The layouts of calls. One of them has no axis for the batch, whose size is given beside the tensors.
CALL_LAYOUTS = {**LAYOUTS, "TH": Layout("TH", ("batch * seq", "heads * head_dim"))}
