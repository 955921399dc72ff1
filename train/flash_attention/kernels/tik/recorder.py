"""One AI core while a kernel is being recorded: its buffers, the global tensors, and small recording helpers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np

from flash_attention.kernels.tik import instruction_forms
from flash_attention.kernels.tik.hardware import (
    BLOCK_HALVES,
    FRACTAL,
    HALF_ROUND,
    LARGEST_GAP,
    MOST_REPEATS,
    SIMD_LANES,
    WIDENED,
    Buffer,
)
from flash_attention.kernels.tik.layout import Placement, placement, stored_rows, zero_blocks
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.tik_types import Factor, Number, Plan, RunTime, Scalar, Scope, Tensor, Tik, TikModule

Address = tuple[Tensor, Number]  # a tensor and its first element


class OnChip(dict[str, list[Tensor]]):
    """Tensors of the on-chip buffers: an attribute per buffer, a list of its copies."""

    def __getattr__(self, name: str) -> list[Tensor]:
        if name not in self:
            raise AttributeError(f"no buffer {name} in this kernel")
        return self[name]

    def copies(self, name: str) -> list[Tensor]:
        """Return the copies of a buffer, or none if the problem lacks it."""
        return self.get(name, [])


@dataclass
class Core(Generic[Plan]):
    """State that the modules of a kernel share.

    Attributes:
        module: the tik module (`tbe.tik` or the emulator's).
        tik: the Tik instance that records.
        gm: global tensors by name.
        on: on-chip tensors by buffer name.
        buffers: what `on` was made from.
        scalars: how many run-time variables there are.
        band: who sees whom in packed sequences, see common.band; None otherwise.
    """

    module: TikModule
    tik: Tik
    problem: KernelProblem
    plan: Plan
    gm: dict[str, Tensor]
    on: OnChip = field(default_factory=OnChip)
    buffers: list[Buffer] = field(default_factory=list)
    scalars: int = 0
    band: Any = None

    @property
    def operand_shift(self) -> int:
        """Return float32 elements by which a product's first source lies behind its destination, see
        InstructionForms.
        """
        return HALF_ROUND if instruction_forms.current().shifted_operands else 0

    @property
    def seq_q(self) -> int:
        """Return rows of a head in what is stored per row: a multiple of 16."""
        return stored_rows(self.problem)

    @property
    def seq_k(self) -> int:
        """Return the key length as stored: a multiple of 16."""
        return padded(self.problem.call.seq_k)

    @property
    def depth_columns(self) -> int:
        """Return fractal columns of query and key."""
        return self.plan.head_dim // 16

    @property
    def value_columns(self) -> int:
        """Return fractal columns of value and output."""
        return padded(self.problem.call.value_dim) // 16

    @property
    def tail_rows(self) -> int:
        """Return rows of the last row block if it is shorter, else 0. With BNSD its padding counts.

        Each packed sequence has a last row block, whose rows are known at run time only.
        """
        return 0 if self.problem.sequences else self.place("query").rows % self.plan.rows

    @property
    def tail_keys(self) -> int:
        """Return keys of the last key tile if it is shorter, else 0. Otherwise as `tail_rows`."""
        return 0 if self.problem.sequences else self.place("key").rows % self.plan.keys

    def place(self, name: str) -> Placement:
        """Return the placement of an input or output."""
        return placement(self.problem, name)

    def batch_of(self, head: Number) -> Number:
        """Return the run-time number of a query head's batch item, as `start` wants it."""
        if self.problem.layout == "BNSD":
            return 0
        batch = self.scalar("int32", "batch")
        batch.set_as(head // self.problem.call.heads)
        return batch

    def start(self, name: str, head: Number, origin: Number = 0) -> RunTime:
        """Return the first element of a matrix of `name`.

        Args:
            head: run-time number of the head, counted through all batch items.
            origin: run-time number of its batch item; 0 is enough with BNSD. With packed sequences it is the first row
                of the sequence among all tokens.
        """
        place = self.place(name)
        result = self.wide(head, place.head * BLOCK_HALVES)
        pitch = BLOCK_HALVES if self.problem.sequences else place.skew * BLOCK_HALVES
        return result + self.wide(origin, pitch) if pitch else result

    def allocate(self, parts: Sequence[Buffer]) -> None:
        """Define the tensors of all buffers in the open scope. One name may stand in several places."""
        scopes = {
            "UB": self.module.scope_ubuf,
            "L1": self.module.scope_cbuf,
            "L0A": self.module.scope_ca,
            "L0B": self.module.scope_cb,
            "L0C": self.module.scope_cc,
        }
        for part in parts:
            tensors = self.on.setdefault(part.name, [])
            for _ in range(part.copies):
                name = f"{part.name}_{len(tensors)}"
                tensors.append(self.tik.Tensor(part.dtype, (part.size,), scopes[part.memory], name))
        self.buffers += parts

    def when(self, *conditions: Number) -> Scope:
        """Return if_scope over the conjunction of run-time conditions."""
        return self.tik.if_scope(conditions[0] if len(conditions) == 1 else self.module.all(*conditions))

    def scalar(self, dtype: str, name: str, value: Factor | None = None) -> Scalar:
        """Return a run-time variable. Its name gets a number: each is there once."""
        self.scalars += 1
        unique = f"{name}_{self.scalars}"
        if value is None:
            return self.tik.Scalar(dtype, unique)
        return self.tik.Scalar(dtype, unique, init_value=value)

    def repeat_fractal(self, dst: Tensor, src: Tensor, count: int, transposed: bool) -> None:
        """Record load2dv1 of `count` copies of the one fractal at `src` to L0A or L0B."""
        for index in range(count):
            self.tik.load2dv1(dst[index * FRACTAL], src, 0, 1, 1, 0, transposed)

    def wide(self, number: Number, size: int) -> RunTime:
        """Return number * size in 64 bits: offsets in global memory may pass 32."""
        result = self.scalar("int64", "wide", number)
        return result * size

    # ---- Vector, on whole contiguous ranges of elements; as many lanes as the type of dst has
    def spans(self, elements: int, lanes: int) -> Iterator[tuple[int, int, int]]:
        """Yield (lanes enabled, first element, repeats) of the instructions that cover a range."""
        done, full = 0, elements // lanes
        while done < full:
            count = min(MOST_REPEATS, full - done)
            yield lanes, done * lanes, count
            done += count
        if elements % lanes:
            yield elements % lanes, full * lanes, 1

    def fill(self, dst: Tensor, value: Factor, elements: int) -> None:
        """Set dst[:elements] = value."""
        for mask, at, count in self.spans(elements, SIMD_LANES[dst.dtype]):
            self.tik.vec_dup(mask, dst[at], value, count, 8)

    def binary(self, name: str, dst: Tensor, a: Tensor, b: Tensor, elements: int) -> None:
        """Compute dst = a op b for name in vec_add, vec_sub, vec_mul, vec_max, vec_min."""
        for mask, at, count in self.spans(elements, SIMD_LANES[dst.dtype]):
            getattr(self.tik, name)(mask, dst[at], a[at], b[at], count, 8, 8, 8)

    def with_row(self, name: str, dst: Tensor, a: Tensor, row: Tensor, elements: int) -> None:
        """Compute dst = a op row. The row has elements of one repeat, which all repeats share."""
        for mask, at, count in self.spans(elements, SIMD_LANES[dst.dtype]):
            getattr(self.tik, name)(mask, dst[at], a[at], row, count, 8, 8, 0)

    def unary(self, name: str, dst: Tensor, src: Tensor, elements: int) -> None:
        """Compute dst = op(src) for name in vec_abs, vec_exp, vec_ln."""
        for mask, at, count in self.spans(elements, SIMD_LANES[dst.dtype]):
            getattr(self.tik, name)(mask, dst[at], src[at], count, 8, 8)

    def with_scalar(self, name: str, dst: Tensor, src: Tensor, scalar: Factor, elements: int) -> None:
        """Compute dst = src op scalar for vec_adds, vec_muls. dst += scalar * src for vec_axpy."""
        for mask, at, count in self.spans(elements, SIMD_LANES[dst.dtype]):
            getattr(self.tik, name)(mask, dst[at], src[at], scalar, count, 8, 8)

    def to_half(self, dst: Tensor, src: Tensor, elements: int) -> None:
        """Convert float32 to float16, nearest even, saturating."""
        for mask, at, count in self.spans(elements, 64):
            self.tik.vec_conv(mask, "none", dst[at], src[at], count, 4, 8)

    def to_single(self, dst: Tensor, src: Tensor, elements: int) -> None:
        """Convert float16 to float32."""
        for mask, at, count in self.spans(elements, 64):
            self.tik.vec_conv(mask, "none", dst[at], src[at], count, 8, 4)

    def add_half(self, dst: Tensor, src: Tensor, scalar: Factor, elements: int) -> None:
        """Compute dst (float32) += scalar (float16) * src (float16)."""
        if instruction_forms.current().mixed_axpy:
            for mask, at, count in self.spans(elements, 64):
                self.tik.vec_axpy(mask, dst[at], src[at], scalar, count, 8, 4)
            return
        wide = self.on.widened[0]
        if not isinstance(scalar, float):
            single = self.scalar("float32", "wide_scalar")
            self.tik.scalar_conv("", single, scalar)
            scalar = single
        for at in range(0, elements, WIDENED):
            count = min(WIDENED, elements - at)
            self.to_single(wide, src[at:], count)
            self.with_scalar("vec_axpy", dst[at:], wide, scalar, count)

    # ---- moves
    def load_constant(self, name: str, tiles: np.ndarray) -> None:
        """Move constant float16 tiles (n, ...) to the buffer of their name."""
        self.tik.data_move(self.on.copies(name)[0], self.gm[name], 0, len(tiles), tiles[0].size // 16, 0, 0)

    def from_l0c(self, dst: Tensor, src: Tensor, fractals: int) -> None:
        """Move fractals out of L0C to the Unified Buffer. float32 becomes float16 if dst is float16."""
        if instruction_forms.current().tensor_move:
            self.tik.tensor_mov(dst, src, "m", 1, fractals, 0, 0)
            return
        converts = (1,) if dst.dtype != src.dtype else ()
        self.tik.data_move(dst, src, 0, 1, fractals, 0, 0, *converts)

    def load(self, target: Address, name: str, start: Number, rows: Number, height: int) -> None:
        """Load `rows` rows of a matrix of `name`, from element `start` on. The target is (tensor, first element).

        There they stand as (fractal columns, height, 16). `rows` may be a run-time number, 0 not among them.
        """
        source, place = (self.gm[name], start), self.place(name)
        self.move(target, source, place.columns, rows, place.column - rows, height - rows, place.column)

    def load_operand(self, target: Address, name: str, start: Number, rows: Number, height: int) -> None:
        """Run `load` to L1, with zeros in the rows behind.

        Values of an earlier tile may be NaN, which no probability of zero makes harmless.
        """
        if not isinstance(rows, int):
            self._load_short(target, name, start, rows, height)
            return
        place, (tensor, at) = self.place(name), target
        if rows < height and "tiles" in self.gm:
            area, behind = self.plan.rows * self.plan.keys, height - rows
            zeros = math.prod(self.gm["tiles"].shape) - area
            step = area // (behind * BLOCK_HALVES)
            for first in range(0, place.columns, step):
                count = min(step, place.columns - first)
                inside = at + (first * height + rows) * BLOCK_HALVES
                self.move((tensor, inside), (self.gm["tiles"], zeros), count, behind, 0, rows)
        if rows:
            self.load(target, name, start, rows, height)

    def _load_short(self, target: Address, name: str, start: Number, rows: RunTime, height: int) -> None:
        """Run `load_operand` of a run-time number of rows, 0 to height."""
        place, (tensor, at), tiles = self.place(name), target, self.gm["tiles"]
        zeros = (tiles.shape[0] - zero_blocks(self.problem, self.plan)) * BLOCK_HALVES
        with self.tik.if_scope(rows < height):
            inside = tensor[at + rows * BLOCK_HALVES]
            self.tik.data_move(inside, tiles[zeros], 0, place.columns, height - rows, 0, rows)
        with self.tik.if_scope(rows > 0):
            self.load(target, name, start, rows, height)

    def store(
        self, name: str, start: Number, source: Address, rows: Number, height: int, columns: int | None = None
    ) -> None:
        """Store `columns` fractal columns, all of a matrix by default: the way back of `load`."""
        target, place = (self.gm[name], start), self.place(name)
        self.move(target, source, columns or place.columns, rows, height - rows, place.column - rows, place.column)

    def clear_padding(self, name: str, zeros: Tensor, index: Number, cores: int) -> None:
        """Clear the rows behind the last ones of an output, as TransData does. Each of `cores` does its share.

        Args:
            zeros: FRACTAL float16 numbers in the Unified Buffer, which are overwritten.
            index: run-time number of this core.
        """
        place, columns = self.place(name), self.place(name).heads * self.place(name).columns
        if not place.padding:
            return
        self.fill(zeros, 0.0, FRACTAL)
        with self.tik.for_range(0, -(-columns // cores), name="padding") as turn:
            column = self.scalar("int32", "padding", turn * cores + index)
            with self.tik.if_scope(column < columns):
                target = self.wide(column, place.column * BLOCK_HALVES) + place.shape[0] * BLOCK_HALVES
                self.tik.data_move(self.gm[name][target], zeros, 0, 1, place.padding, 0, 0)

    def move(
        self,
        dst: Address,
        src: Address,
        bursts: int,
        burst: Number,
        src_gap: Number = 0,
        dst_gap: Number = 0,
        widest: int = 0,
    ) -> None:
        """Record data_move of `bursts` bursts of `burst` blocks between one-dimensional float16 views.

        Moves with gaps beyond the hardware's field are taken apart into single bursts. If burst and gaps are run-time
        numbers, `widest`, which no gap reaches, decides.
        """
        (dst_tensor, dst_at), (src_tensor, src_at) = dst, src
        if isinstance(src_gap, int) and isinstance(dst_gap, int):
            widest = max(src_gap, dst_gap)
        if bursts == 1 or widest <= LARGEST_GAP:
            gaps = (0, 0) if bursts == 1 else (src_gap, dst_gap)
            self.tik.data_move(dst_tensor[dst_at], src_tensor[src_at], 0, bursts, burst, *gaps)
            return
        for index in range(bursts):
            target = dst_tensor[dst_at + index * (burst + dst_gap) * BLOCK_HALVES]
            source = src_tensor[src_at + index * (burst + src_gap) * BLOCK_HALVES]
            self.tik.data_move(target, source, 0, 1, burst, 0, 0)
