"""Memory: nothing outside the tensors is read or written, and extra memory stays small however long the sequence."""

import ctypes
import itertools
import mmap
from dataclasses import replace

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.backends.cpu import library
from flash_attention.call import LAYOUTS

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run, run_case, values

PROT_NONE = 0  # which the mmap module has no name for

# Odd sizes, so that every tensor ends inside of a vector, and several tiles with a short last one.
CASES = [
    Case(seq_q=5, seq_k=3, head_dim=1, dtype="float32", mask="causal"),
    Case(batch=2, heads=4, kv_heads=2, seq_q=67, seq_k=131, head_dim=7, dtype="float16", mask="3d", alibi="bias"),
    Case(batch=2, seq_q=131, seq_k=67, head_dim=33, dtype="bfloat16", mask="heads", dropout=0.2, alibi="given"),
    Case(seq_q=257, seq_k=259, head_dim=59, dtype="float32", mask="compact", dropout=0.2, alibi="shared"),
    Case(seq_q=130, seq_k=300, head_dim=128, dtype="bfloat16", mask="padding", window=(70, 5), alibi="computed"),
    Case(heads=1, kv_heads=1, seq_q=40, seq_k=140, head_dim=255, dtype="float16", mask="2d", alignment="bottom_right"),
    Case(batch=2, heads=4, kv_heads=2, seq_q=131, seq_k=259, head_dim=33, value_dim=7, segments="documents", softcap=3),
    Case(batch=3, seq_q=67, seq_k=131, head_dim=7, value_dim=33, mask="causal", prefix=True, sinks=True),
    Case(
        batch=2,
        heads=4,
        kv_heads=2,
        seq_q=300,
        seq_k=259,
        head_dim=33,
        dtype="bfloat16",
        block_mask="heads",
        density=0.5,
    ),
]


class GuardedPages:
    """Put arrays against a page that cannot be accessed: a single byte too far ends the process."""

    def __init__(self, at_end: bool):
        self.at_end = at_end
        self.mappings = []
        self.protect = ctypes.CDLL(None, use_errno=True).mprotect
        self.protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def place(self, array: np.ndarray, writable: bool = False) -> np.ndarray:
        """Copy `array` between two such pages, up against one; read-only unless `writable`."""
        pages = -(-array.nbytes // mmap.PAGESIZE)
        memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
        self.mappings.append(memory)
        start = mmap.PAGESIZE
        if self.at_end:
            start += pages * mmap.PAGESIZE - array.nbytes
        guarded = np.frombuffer(memory, array.dtype, array.size, start).reshape(array.shape)
        guarded[...] = array
        base = guarded.ctypes.data - start
        for page in (0, pages + 1):
            assert self.protect(base + page * mmap.PAGESIZE, mmap.PAGESIZE, PROT_NONE) == 0
        if not writable:
            assert self.protect(base + mmap.PAGESIZE, pages * mmap.PAGESIZE, mmap.PROT_READ) == 0
        return guarded


def check_guarded(at_end: bool) -> None:
    """Check guarded memory, in a process of its own, which an error would end."""
    for isa in library.instruction_sets():
        with instruction_set(isa):
            for case, layout in itertools.product(CASES, LAYOUTS):
                cases.check(case, run_case(case, layout, place=GuardedPages(at_end).place))
            check_guarded_keep_bits(at_end)


def check_guarded_keep_bits(at_end: bool) -> None:
    """Give keep decisions with rows that end inside a word of 32."""
    case = replace(CASES[2], alibi="none")
    call = replace(case.call, keep_bits=True)
    bits = np.packbits(case.keep(), axis=-1, bitorder="little")
    results = run(call, *tensors(case), mask=case.backend_mask(), keep_bits=bits, place=GuardedPages(at_end).place)
    cases.check(case, reference.Attention(*map(values, results)))


@pytest.mark.parametrize("at_end", [False, True], ids=["before", "behind"])
def test_guarded_pages(run_python, at_end):
    run_python("-c", f"from {__name__} import check_guarded; check_guarded({at_end})")


@pytest.mark.parametrize("offset", [4, 8, 16, 32])
def test_alignment_does_not_matter(offset):
    """MindSpore aligns to 16 bytes only; cache lines and vectors are longer."""

    def place(array, writable=False):
        memory = np.empty(array.nbytes + 128, np.uint8)
        start = -memory.ctypes.data % 64 + max(offset, array.itemsize)
        moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        moved[...] = array
        return moved

    for isa in library.instruction_sets():
        with instruction_set(isa):
            for case in CASES:
                expected = run_case(case)
                cases.assert_same(run_case(case, place=place), expected, f"on {isa}")


def tensors(case: Case) -> tuple:
    """Return the arrays of a case that the kernel takes."""
    inputs = case.inputs()
    return inputs.query, inputs.key, inputs.value, inputs.d_output, inputs.d_logsumexp


def peak_of_long_run(dtype: str) -> None:
    """Print by how many MB a forward and a backward pass raise peak memory. They have 65536 tokens and run in this
    process.
    """
    import resource

    call = make_call(1, 1, 65536, 65536, 128, dtype=dtype, causal=True, window_left=512)
    # Ones, for bfloat16 as bits: numbers too small to be normal take twenty times as long.
    one = {"float32": np.float32(1), "float16": np.float16(1), "bfloat16": np.uint16(0x3F80)}[dtype]
    made = [np.full(call.shape_query(), one) for _ in range(8)]
    output, logsumexp = made[4], np.ones(call.shape_lse(), np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    library.forward(call, *made[:3], out=(output, logsumexp))
    library.backward(call, *made[:3], output, logsumexp, made[3], out=tuple(made[5:]))
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


@pytest.mark.system
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_extra_memory_at_65536_tokens(run_python, dtype):
    """Forward and backward need less than 64 MB beyond inputs and outputs, with two threads."""
    program = f"from {__name__} import peak_of_long_run; peak_of_long_run({dtype!r})"
    extra = run_python("-c", program, OMP_NUM_THREADS="2")
    assert float(extra) < 64
