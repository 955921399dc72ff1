"""Hold the errors for normal inputs to multiples of composed attention, without a floor."""

from dataclasses import replace

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.backends.cpu import library

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run, run_case, values

ISAS = library.instruction_sets()
#: Mean errors of dtypes whose numbers are sums of parts on tiles, in the errors of float32 arithmetic.
SPLIT = {"float16": 1.05}
TENSORS = "output", "d_query", "d_key", "d_value"
#: Instructions that multiply bfloat16 take rounded probabilities and score gradients.
BFLOAT16 = reference.Limits(1.4, 0.72, 0.0, 0.0)
#: Without fused multiply-adds each product is rounded too.
SCALAR = reference.Limits(1.8, 1.31, 0.0, 0.0)


def case_of(dtype: str, keys: int, head_dim: int, mask: str) -> Case:
    """Return a case of about as many numbers whatever the length."""
    sizes = {"batch": 512 // keys, "heads": 8, "kv_heads": 8, "seq_q": keys, "seq_k": keys, "head_dim": head_dim}
    return Case(**sizes, dtype=dtype, mask=mask)


def limits_of(case: Case, isa: str) -> reference.Limits:
    """Return the limits of a case on an instruction set. The logsumexp has the limits of every input."""
    if case.dtype == "bfloat16" and isa in (library.TILES_ISA, library.DOT_PRODUCT_ISA):
        return BFLOAT16
    return SCALAR if case.dtype == "float32" and isa == "scalar" else cases.NORMAL[case.dtype]


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("keys", [128, 256, 512])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.spread
def test_normal_inputs(dtype, keys, head_dim, mask):
    case = case_of(dtype, keys, head_dim, mask)
    for isa in ISAS:
        with instruction_set(isa):
            cases.check(case, run_case(case), limits_of(case, isa))


@pytest.mark.skipif(library.TILES_ISA not in ISAS, reason="the processor has no tiles")
@pytest.mark.parametrize("size", [1, 2, 4, 16, 40])
@pytest.mark.parametrize("dtype", SPLIT)
def test_sums_of_parts_are_as_good_as_whole_numbers(dtype, size):
    """Mean errors on tiles stay near the errors of float32 arithmetic, with large scores too."""
    case = case_of(dtype, 256, 64, "causal")
    query, key, value, d_output = (
        size * case.inputs().query,
        case.inputs().key,
        case.inputs().value,
        case.inputs().d_output,
    )
    tensors = [reference.round_to(tensor, dtype) for tensor in (query, key, value, d_output)]
    exact = reference.truth(case.call, *tensors[:3], d_output=tensors[3])
    errors = {}
    for isa in (library.TILES_ISA, "scalar"):
        with instruction_set(isa):
            results = dict(zip(("output", "logsumexp", *TENSORS[1:]), map(values, run(case.call, *tensors))))
        errors[isa] = {name: np.abs(results[name] - getattr(exact, name)).mean() for name in TENSORS}
    for name in TENSORS:
        assert errors[library.TILES_ISA][name] <= SPLIT[dtype] * errors["scalar"][name], name


@pytest.mark.parametrize("head_dim", [8, 40, 64, 128, 160])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_one_visible_key_leaves_no_gradient_of_scores(dtype, head_dim):
    """The output then is a value, and the kernel has to sum both of its products with a gradient in one order."""
    case = Case(batch=1, heads=2, kv_heads=2, seq_q=75, seq_k=75, head_dim=head_dim, dtype=dtype, window=(0, 0))
    inputs = case.inputs()
    for isa in ISAS:
        if isa == library.TILES_ISA or (dtype, isa) == ("bfloat16", library.DOT_PRODUCT_ISA):
            continue  # they sum in orders of their own
        with instruction_set(isa):
            _, _, d_query, d_key, d_value = run(case.call, inputs.query, inputs.key, inputs.value, inputs.d_output)
        assert not values(d_query).any() and not values(d_key).any() and values(d_value).all(), isa


@pytest.mark.spread
@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_errors_three_times_as_large_are_refused(dtype, name):
    case = case_of(dtype, 512, 64, "causal")
    exact, _ = case.expected()
    for isa in ISAS:
        with instruction_set(isa):
            found = run_case(case)
        right = getattr(exact, name)
        spoilt = reference.round_to(right + 3 * (getattr(found, name) - right), dtype)
        with pytest.raises(AssertionError, match=f"{name}: max"):
            cases.check(case, replace(found, **{name: spoilt}), limits_of(case, isa))
