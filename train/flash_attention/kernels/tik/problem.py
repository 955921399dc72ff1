"""Descriptions that TIK kernels are built for: frozen and validated."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import flash_attention
from flash_attention.call import Call
from flash_attention.call.checks import check_int, check_name
from flash_attention.call.rules import AttentionRules
from flash_attention.call.storage import Paged, Varlen
from flash_attention.kernels.tik import instruction_forms

MAX_CORES = 65535
# Bytes that a kernel may use of the memories of a core. The Unified Buffer has 256 KiB, of which the compiler keeps 8.
CAPACITY = {"UB": 253952, "L1": 1048576, "L0A": 65536, "L0B": 65536, "L0C": 262144}
# Layouts of query, key, value, output and their gradients. TH is a matrix of tokens, (batch * seq, heads * head_dim).
LAYOUTS = ("BNSD", "TH")
MAX_HEAD_DIM = 256  # of query and key, and of value: a block of 128 such rows fills L0A
# Positions that computed ALiBi tells apart, and the largest slope times position: KEY_BLOCK, POSITION in score_terms.
ALIBI_TOKENS = 2048 * 128
ALIBI_LARGEST = 4 * 65504.0
# Soft caps whose doubles, and quotients with them, float16 holds to its full precision.
SOFTCAPS = (2.0**-13, 2.0**14)
# Below the first number post_scale is under 16. Hidden keys would come back beside great biases, and the terms that the
# Cube adds to the scores would leave float16. Above the second, terms of the backward pass would leave float16, and
# gradients of values would be wrong.
SCALES = (2.0**-10, 2.0**10)


class Chip(NamedTuple):
    """Differences of the chips that kernels are planned for.

    Attributes:
        cores: AI cores.
        memories: bytes of a core's memories that tilings have to fit, in the order of CAPACITY, and at most those.
    """

    cores: int = 32
    memories: tuple[int, ...] = tuple(CAPACITY.values())


@dataclass(frozen=True)
class KernelProblem:
    """Call and chip of one attention kernel. float16 in and out, float32 accumulation.

    `describe.kernel_problem` makes it of any call. A field of the call that makes no difference to a kernel has its
    default there, so that calls that differ in it share a kernel.

    Attributes:
        call: what the kernel computes. With Varlen storage a tensor is a matrix of tokens, and all rules apply to each
            of the sequences by itself; their lengths are data. With Paged storage the keys lie in a cache, and seq_k is
            as many keys as the table can name.
        slopes: of computed ALiBi, one per head, or one per head of every batch item or packed sequence, head by head.
        cores: AI cores the work is split over.
        memories: see Chip.
        tiling: name of a tiling strategy of `flash_attention.kernels.tik.forward.tiling`.
        keep_blocks: with packed sequences and dropout: room for the keep decisions of a head, see varlen.keep_blocks.
        keeps_tiles: the block mask is known before the kernel runs. So its lists say which tiles stay on chip from
            one item to the next, see common.kept_tiles.
        prefixed: prefixes widen causal visibility in lists of tiles. call.causal is False then.
        scattered: few visible tiles of the block mask lie side by side, see common.tile_lists.scattered.

    Raises:
        TypeError, ValueError: naming the field, what came and what is allowed.
    """

    call: Call
    slopes: tuple[float, ...] = ()
    cores: int = Chip().cores
    memories: tuple[int, ...] = Chip().memories
    tiling: str = "auto"
    keep_blocks: int = 0
    keeps_tiles: bool = False
    scattered: bool = False
    prefixed: bool = False

    def __post_init__(self) -> None:
        call = self.call
        self._check_kind()
        for name in ("batch", "seq_q", "seq_k"):
            check_int(name, getattr(call, name), 1)
        for name in ("head_dim", "value_dim"):
            check_int(name, getattr(call, name), 1, MAX_HEAD_DIM)
        check_name("layout", self.layout, LAYOUTS)
        for name in ("head_dim", "value_dim"):
            dim = getattr(call, name)
            if self.layout != "BNSD" and dim % 16:
                raise ValueError(
                    f"{name}: got {dim} with layout {self.layout}, allowed are multiples of 16; others go with "
                    "layout BNSD"
                )
        if call.dtype != "float16":
            raise TypeError(
                f"dtype: got {call.dtype!r}, allowed is 'float16': this chip's Cube multiplies nothing wider"
            )
        if call.bias_dtype not in (None, "float16"):
            raise TypeError(f"bias: got dtype {call.bias_dtype}, allowed is float16 on Ascend 910")
        self._check_slopes()
        softcap = call.rules.softcap
        if softcap and not SOFTCAPS[0] <= softcap <= SOFTCAPS[1]:
            raise ValueError(f"softcap: got {softcap}, allowed are {SOFTCAPS[0]} to {SOFTCAPS[1]}, or 0 for none")
        if call.scale != 0 and not SCALES[0] <= abs(call.scale) <= SCALES[1]:
            raise ValueError(f"scale: got {call.scale}, allowed are {SCALES[0]} to {SCALES[1]}, of either sign, and 0")
        check_int("cores", self.cores, 1, MAX_CORES)
        if len(self.memories) != len(CAPACITY):
            raise ValueError(f"memories: got {self.memories}, allowed are sizes of {', '.join(CAPACITY)}")
        for memory, (name, largest) in zip(self.memories, CAPACITY.items()):
            check_int(f"memories: {name}", memory, 1, largest)

    @property
    def layout(self) -> str:
        """Return the layout of query, key, value, output and their gradients, one of LAYOUTS.

        "TH" takes head_dims that are multiples of 16: then FRACTAL_NZ keeps every head in columns of its own.
        """
        return {"varlen": "TH", "paged": "BNSD"}.get(self.call.kind, self.call.layout)

    @property
    def sequences(self) -> int:
        """Return how many packed sequences there may be. 0: a batch item is a sequence."""
        return self.call.varlen.count if self.call.kind == "varlen" else 0

    @property
    def pages(self) -> tuple[int, int] | None:
        """Return (blocks, keys of a block) of a paged cache, or None."""
        return (self.call.paged.blocks, self.call.paged.block_size) if self.call.kind == "paged" else None

    @property
    def bias_grad(self) -> bool:
        """Return if the backward kernels also give the gradient of a bias."""
        return self.call.bias_grad and self.call.bias_shape is not None

    @property
    def listed(self) -> bool:
        """Return if the kernels visit the tiles of a block mask, see common.tile_lists."""
        return self.call.block_mask_shape is not None

    @property
    def compares(self) -> bool:
        """Return if the Cube compares numbers of tokens inside partial tiles, see common.segments."""
        return self.call.segments or self.prefixed

    @property
    def slope_stride(self) -> int:
        """Return the distance, in slopes, from one batch item or packed sequence to the next."""
        heads = self.call.heads
        return heads if len(self.slopes) > heads else 0

    def _check_kind(self) -> None:
        call = self.call
        if not self.sequences:
            for name in ("prefix", "segments"):
                if getattr(call, name) and (name == "prefix" or not self.listed):
                    raise ValueError(f"{name}: got True without packed sequences, allowed there is an explicit mask")
            return
        for name in ("mask_shape", "bias_shape"):
            if getattr(call, name) is not None:
                raise ValueError(f"{name}: got {getattr(call, name)} with packed sequences, allowed is None")
        check_int("keep_blocks", self.keep_blocks, 1 if call.dropout_threshold else 0)
        if call.rules.in_blocks:
            raise ValueError(
                "prev_blocks, next_blocks: got a window in blocks with packed sequences, allowed is one in tokens"
            )

    def _check_slopes(self) -> None:
        call, alibi = self.call, self.call.bias == "alibi"
        items = (1, self.sequences or call.batch) if alibi else (0,)
        wanted = [call.heads * count for count in items]
        if len(self.slopes) not in wanted or not all(isinstance(s, Real) and math.isfinite(s) for s in self.slopes):
            allowed = " or ".join(str(count) for count in dict.fromkeys(wanted))
            raise ValueError(f"slopes: got {self.slopes!r}, allowed are {allowed} finite numbers with alibi={alibi}")
        if not alibi:
            return
        tokens = max(call.seq_q + (0 if self.sequences else call.offset), call.seq_k)
        if tokens > ALIBI_TOKENS:
            raise ValueError(f"alibi: got {tokens} tokens, allowed are {ALIBI_TOKENS}")
        steepest = max(map(abs, self.slopes))
        if steepest * tokens > ALIBI_LARGEST:
            raise ValueError(f"slopes: got {steepest}, allowed for {tokens} tokens is {ALIBI_LARGEST / tokens:.4g}")

    @property
    def capacity(self) -> dict[str, int]:
        """Return bytes of a core's memories by name."""
        return dict(zip(CAPACITY, self.memories))

    @property
    def mask(self) -> str:
        """Return the explicit mask: "none", "per_key" (the same for every query) or "per_score"."""
        if self.call.mask_shape is None:
            return "none"
        return "per_key" if self.call.mask_shape[2] == 1 else "per_score"

    @property
    def mask_planes(self) -> tuple[int, int]:
        """Return batch items and heads that have masks of their own: (batch or 1, heads or 1)."""
        return _planes(self.call.mask_shape)

    @property
    def bias_planes(self) -> tuple[int, int]:
        """Return batch items and heads that have biases of their own."""
        return _planes(self.call.bias_shape)

    @property
    def query_factor(self) -> float:
        """Return the factor of query or key: a power of two with the scale's sign. At most 1.

        If Vector scales the scores anyway, the factor is smaller than the scale. Then scores of any size that float16
        holds, their differences, and the terms that hide keys stay in its range before that pass. With packed sequences
        Vector always scales: to find how large the scores of a sequence are would take a pass over its keys.
        """
        if self.call.scale == 0:
            return 0.0
        exponent = min(math.floor(math.log2(abs(self.call.scale))), 0)
        if self.call.bias != "none" or self.mask == "per_key":
            exponent -= 4
        elif 2.0**exponent != abs(self.call.scale) or self.call.head_dim > 64 or self.sequences:
            exponent -= 2
        return math.copysign(2.0 ** max(exponent, -14), self.call.scale)

    @property
    def post_scale(self) -> float:
        """Return the rest of the scale, applied by Vector to float32 scores. 1.0 needs no pass.

        The terms that hide keys count even without a scale.
        """
        return 16.0 if self.call.scale == 0 else self.call.scale / self.query_factor

    def to_text(self) -> str:
        """Return the problem as the operators' string attribute `problem`: all that is not a default.

        It also holds what else decides about a kernel: the instruction forms of now, and the version of this package.
        So no cache of operators gives the kernel of another form or version.
        """
        chosen = {"forms": instruction_forms.current().to_text(), "version": flash_attention.__version__}
        return json.dumps({**_chosen(self), **chosen}, separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> KernelProblem:
        """Invert `to_text`.

        Raises:
            ValueError: the text is not what `to_text` writes.
        """
        try:
            fields = _with_tuples(json.loads(text))
            for name in ("forms", "version"):
                fields.pop(name, None)
            call = _with_tuples(fields.pop("call") if "call" in fields else _take_call(fields))
            call["rules"] = AttentionRules(**call.get("rules", {}))
            if "storage" in call:
                call["storage"] = (Paged if "blocks" in call["storage"] else Varlen)(**call["storage"])
            return KernelProblem(Call(**call), **fields)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"problem: got {text!r}, allowed is what KernelProblem.to_text writes ({error})") from None


def _chosen(described: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not their defaults."""
    values = {field.name: (getattr(described, field.name), field.default) for field in dataclasses.fields(described)}
    return {
        name: _chosen(value) if dataclasses.is_dataclass(value) else value
        for name, (value, default) in values.items()
        if value != default
    }


def _take_call(fields: dict) -> dict:
    """Take the fields of the call out of a text.

    An older text has them among the fields of the problem.
    """
    call = {field.name: fields.pop(field.name) for field in dataclasses.fields(Call) if field.name in fields}
    call["keep_bits"] = call["rules"]["dropout_rate"] > 0
    sequences, pages = fields.pop("sequences"), fields.pop("pages")
    if sequences:
        call.update(layout="BSH", storage={"count": sequences})
    elif pages:
        call.update(layout="BSND", storage={"blocks": pages[0], "block_size": pages[1]})
    return call


def _planes(shape: tuple[int, ...] | None) -> tuple[int, int]:
    return (1, 1) if shape is None else (shape[0], shape[1])


def _with_tuples(fields: dict) -> dict:
    return {name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}


def padded(size: int, unit: int = 16) -> int:
    """Return `size` rounded up to a multiple of `unit`."""
    return -(-size // unit) * unit
