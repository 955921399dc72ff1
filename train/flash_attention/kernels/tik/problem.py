"""Descriptions that TIK kernels are built for: frozen and validated."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import flash_attention
from flash_attention.call import Call
from flash_attention.call.checks import check_int, check_name
from flash_attention.call.rules import AttentionRules
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
class KernelProblem(Call):
    """Problem and chip of one attention kernel. float16 in and out, float32 accumulation.

    A field that makes no difference to a kernel keeps its default, so that calls that differ in it share a kernel. Two
    rules are read differently from `Call`. The dropout rate always applies (0 outside training), with one packed
    keep bit per score. And rules.alibi goes with `slopes` and without a bias tensor.

    Attributes:
        bias_grad: the backward kernels also give the gradient of a given bias.
        return_lse: the backward kernels take the gradient of the logsumexp.
        layout: of query, key, value, output and their gradients, one of LAYOUTS. "TH" takes head_dims that are
            multiples of 16: then FRACTAL_NZ keeps every head in columns of its own.
        prefix: the kernels take the length of a prefix per packed sequence.
        slopes: with rules.alibi, one per head, or one per head of every batch item or packed sequence, head by head.
        cores: AI cores the work is split over.
        memories: see Chip.
        tiling: name of a tiling strategy of `flash_attention.kernels.tik.forward.tiling`.
        sequences: how many packed sequences there may be in the rows of one batch item with layout "TH". All rules
            apply to each sequence by itself; their lengths are data. 0: a batch item is a sequence.
        keep_blocks: with packed sequences and dropout: room for the keep decisions of a head, see varlen.keep_blocks.
        pages: of a paged cache, (blocks, keys of a block); seq_k is then as many keys as the table can name.

    Raises:
        TypeError, ValueError: naming the field, what came and what is allowed.
    """

    bias_grad: bool = False
    slopes: tuple[float, ...] = ()
    cores: int = Chip().cores
    memories: tuple[int, ...] = Chip().memories
    tiling: str = "auto"
    sequences: int = 0
    keep_blocks: int = 0
    pages: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "training", True)
        for name in ("mask", "bias"):
            given = getattr(self, f"{name}_shape") is not None
            object.__setattr__(self, f"{name}_dtype", "float16" if given else None)
        self._check_sequences()
        super().__post_init__()
        for name in ("batch", "seq_q", "seq_k"):
            check_int(name, getattr(self, name), 1)
        for name in ("head_dim", "value_dim"):
            check_int(name, getattr(self, name), 1, MAX_HEAD_DIM)
        check_name("layout", self.layout, LAYOUTS)
        for name in ("head_dim", "value_dim"):
            dim = getattr(self, name)
            if self.layout != "BNSD" and dim % 16:
                raise ValueError(
                    f"{name}: got {dim} with layout {self.layout}, allowed are multiples of 16; others go with "
                    "layout BNSD"
                )
        if self.dtype != "float16":
            raise TypeError(
                f"dtype: got {self.dtype!r}, allowed is 'float16': this chip's Cube multiplies nothing wider"
            )
        self._check_slopes()
        if self.rules.softcap and not SOFTCAPS[0] <= self.rules.softcap <= SOFTCAPS[1]:
            raise ValueError(
                f"softcap: got {self.rules.softcap}, allowed are {SOFTCAPS[0]} to {SOFTCAPS[1]}, or 0 for none"
            )
        if self.scale != 0 and not SCALES[0] <= abs(self.scale) <= SCALES[1]:
            raise ValueError(f"scale: got {self.scale}, allowed are {SCALES[0]} to {SCALES[1]}, of either sign, and 0")
        if self.bias_grad and self.bias_shape is None:
            raise ValueError(f"bias_grad: got True with bias {self.bias}, allowed with a bias per_key or per_score")
        check_int("cores", self.cores, 1, MAX_CORES)
        if len(self.memories) != len(CAPACITY):
            raise ValueError(f"memories: got {self.memories}, allowed are sizes of {', '.join(CAPACITY)}")
        for memory, (name, largest) in zip(self.memories, CAPACITY.items()):
            check_int(f"memories: {name}", memory, 1, largest)

    @property
    def listed(self) -> bool:
        """Return if the kernels visit the tiles of a block mask, see common.tile_lists."""
        return self.block_mask_shape is not None

    @property
    def slope_stride(self) -> int:
        """Return the distance, in slopes, from one batch item or packed sequence to the next."""
        return self.heads if len(self.slopes) > self.heads else 0

    def _check_sequences(self) -> None:
        check_int("sequences", self.sequences, 0)
        if not self.sequences:
            if self.prefix:
                raise ValueError("prefix: got True without packed sequences, allowed there is an explicit mask")
            return
        if self.batch != 1 or self.layout != "TH":
            raise ValueError(
                f"sequences: got {self.sequences} with batch {self.batch} and layout {self.layout}, allowed are packed "
                "sequences with batch 1 and layout TH"
            )
        for name in ("mask_shape", "bias_shape"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: got {getattr(self, name)} with packed sequences, allowed is None")
        check_int("keep_blocks", self.keep_blocks, 1 if self.dropout_threshold else 0)
        if self.rules.in_blocks:
            raise ValueError(
                "prev_blocks, next_blocks: got a window in blocks with packed sequences, allowed is one in tokens"
            )

    def _check_slopes(self) -> None:
        items = (1, self.sequences or self.batch) if self.rules.alibi else (0,)
        wanted = [self.heads * count for count in items]
        if len(self.slopes) not in wanted or not all(isinstance(s, Real) and math.isfinite(s) for s in self.slopes):
            allowed = " or ".join(str(count) for count in dict.fromkeys(wanted))
            raise ValueError(
                f"slopes: got {self.slopes!r}, allowed are {allowed} finite numbers with alibi={self.rules.alibi}"
            )
        if not self.rules.alibi:
            return
        if self.bias_shape is not None:
            raise ValueError("bias_shape: given together with rules.alibi, allowed is one of them")
        tokens = max(self.seq_q + (0 if self.sequences else self.offset), self.seq_k)
        if tokens > ALIBI_TOKENS:
            raise ValueError(f"alibi: got {tokens} tokens, allowed are {ALIBI_TOKENS}")
        steepest = max(map(abs, self.slopes))
        if steepest * tokens > ALIBI_LARGEST:
            raise ValueError(f"slopes: got {steepest}, allowed for {tokens} tokens is {ALIBI_LARGEST / tokens:.4g}")

    @property
    def dropped_share(self) -> float:
        """Return the rate of dropout. `describe` has rounded it, if decisions are drawn."""
        return self.rules.dropout_rate

    @property
    def capacity(self) -> dict[str, int]:
        """Return bytes of a core's memories by name."""
        return dict(zip(CAPACITY, self.memories))

    @property
    def mask(self) -> str:
        """Return the explicit mask: "none", "per_key" (the same for every query) or "per_score"."""
        if self.mask_shape is None:
            return "none"
        return "per_key" if self.mask_shape[2] == 1 else "per_score"

    @property
    def mask_planes(self) -> tuple[int, int]:
        """Return batch items and heads that have masks of their own: (batch or 1, heads or 1)."""
        return _planes(self.mask_shape)

    @property
    def bias_planes(self) -> tuple[int, int]:
        """Return batch items and heads that have biases of their own."""
        return _planes(self.bias_shape)

    @property
    def query_factor(self) -> float:
        """Return the factor of query or key: a power of two with the scale's sign. At most 1.

        If Vector scales the scores anyway, the factor is smaller than the scale. Then scores of any size that float16
        holds, their differences, and the terms that hide keys stay in its range before that pass. With packed sequences
        Vector always scales: to find how large the scores of a sequence are would take a pass over its keys.
        """
        if self.scale == 0:
            return 0.0
        exponent = min(math.floor(math.log2(abs(self.scale))), 0)
        if self.bias != "none" or self.mask == "per_key":
            exponent -= 4
        elif 2.0**exponent != abs(self.scale) or self.head_dim > 64 or self.sequences:
            exponent -= 2
        return math.copysign(2.0 ** max(exponent, -14), self.scale)

    @property
    def post_scale(self) -> float:
        """Return the rest of the scale, applied by Vector to float32 scores. 1.0 needs no pass.

        The terms that hide keys count even without a scale.
        """
        return 16.0 if self.scale == 0 else self.scale / self.query_factor

    def to_text(self) -> str:
        """Return the problem as the operators' string attribute `problem`.

        It also holds what else decides about a kernel: the instruction forms of now, and the version of this package.
        So no cache of operators gives the kernel of another form or version.
        """
        chosen = {"forms": instruction_forms.current().to_text(), "version": flash_attention.__version__}
        return json.dumps({**dataclasses.asdict(self), **chosen}, separators=(",", ":"))

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
            return KernelProblem(**{**fields, "rules": AttentionRules(**fields["rules"])})
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"problem: got {text!r}, allowed is what KernelProblem.to_text writes ({error})") from None


def _planes(shape: tuple[int, ...] | None) -> tuple[int, int]:
    return (1, 1) if shape is None else (shape[0], shape[1])


def _with_tuples(fields: dict) -> dict:
    return {name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}


def padded(size: int, unit: int = 16) -> int:
    """Return `size` rounded up to a multiple of `unit`."""
    return -(-size // unit) * unit
