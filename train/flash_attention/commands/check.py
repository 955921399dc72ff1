"""test every usable backend against the float64 truth: a table of errors; exit status 1 if one is wrong"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from flash_attention.call import DTYPES, AttentionRules, Call
from flash_attention.commands.info import require_mindspore
from flash_attention.text_table import about, table

if TYPE_CHECKING:
    import numpy as np

SEED = (2024, 7)
COLUMNS = ("output", "logsumexp", "d_query", "d_key", "d_value", "d_bias", "d_sinks")
LARGEST = ("output", "d_query", "d_key", "d_value")
# Labels of the calls of --quick: most of the rules, on shapes that are quick on the emulator.
QUICK = ("causal, bottom right, 77 x 150", "mask with fully masked rows", "given ALiBi", "dropout 0.2", "sinks, window")
# Seconds of a call on one core of a usual processor, on average over the backends; most of it compiles its graphs.
SECONDS = 1.3


@dataclass(frozen=True)
class Item:
    """One call of the self-test. `mask` is "none", "random" (a third hidden) or "rows" (every third row fully)."""

    label: str
    call: Call
    mask: str = "none"

    def in_dtype(self, dtype: str) -> Call:
        """Return the call in another dtype, with its bias unless that is float32."""
        bias_dtype = dtype if self.call.bias_dtype == "float16" else self.call.bias_dtype
        return replace(self.call, dtype=dtype, bias_dtype=bias_dtype)


def items() -> list[Item]:
    """Return the self-test's items: every rule of the layer once. Odd sizes are small enough for the emulator."""

    def item(label, mask="none", seq_q=150, seq_k=None, batch=1, heads=2, head_dim=64, **more):
        seq_k = seq_k or seq_q
        if mask != "none":
            more.update(mask_shape=(batch, 1, seq_q, seq_k), mask_dtype="bool")
        sizes = {"batch": batch, "heads": heads, "seq_q": seq_q, "seq_k": seq_k, "head_dim": head_dim}
        rules = AttentionRules(
            **{field.name: more.pop(field.name) for field in fields(AttentionRules) if field.name in more}
        )
        return Item(label, Call(**sizes, rules=rules, training=True, return_lse=True, **more), mask)

    bias = {"bias_shape": (1, 2, 1, 150)}
    return [
        item("no mask", batch=2),
        item("causal, head_dim 128", causal=True, head_dim=128),
        item("causal, bottom right, 77 x 150", causal=True, causal_alignment="bottom_right", seq_q=77, seq_k=150),
        item("causal, window of 1 block", causal=True, seq_q=300, prev_blocks=1),
        item("window of 40 and 9 tokens", window_left=40, window_right=9),
        item("mask", mask="random", batch=2),
        item("mask with fully masked rows", mask="rows", batch=2),
        item("4 heads on 2 key heads", heads=4, kv_heads=2, causal=True),
        item("computed ALiBi, 3 heads", heads=3, alibi=True, causal=True),
        item("given ALiBi", **bias, bias_dtype="float16"),
        item("given ALiBi in float32", **bias, bias_dtype="float32"),
        item("dropout 0.2", dropout_rate=0.2, causal=True),
        item("soft cap 2, ALiBi", heads=3, softcap=2.0, alibi=True, causal=True),
        item("sinks, window", heads=4, kv_heads=2, sinks=True, window_left=40, window_right=9),
        item("prefix", batch=3, prefix=True, causal=True, seq_k=200),
        item("segments", batch=2, segments=True, causal=True, seq_q=300),
        item("block mask", block_mask_shape=(1, 2, 5, 5), block_mask_tile=64, causal=True, seq_q=300),
        item("head_dim 1", head_dim=1, seq_q=33),
        item("head_dim 80", head_dim=80, seq_q=129),
        item("head_dim 96, 40 of value", head_dim=96, value_dim=40, causal=True),
        item("head_dim 256", head_dim=256, seq_q=65),
        item("one query, 300 keys", seq_q=1, seq_k=300),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", action="append", help="backend to test, may be repeated (default: all usable)")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated (default: all)")
    parser.add_argument("--only", default="", help="run the calls whose label contains this text")
    parser.add_argument(
        "--quick", action="store_true", help=f"{len(QUICK)} of the calls, each in one dtype: half a minute"
    )
    parser.add_argument("--mode", choices=("graph", "pynative"), default="graph", help="MindSpore's execution mode")


def run(options: argparse.Namespace) -> int:
    require_mindspore()
    import mindspore

    from flash_attention.backends.registry import backend_names, get_backend, refusal

    mode = {"graph": mindspore.GRAPH_MODE, "pynative": mindspore.PYNATIVE_MODE}[options.mode]
    mindspore.set_context(mode=mode)
    chosen = [item for item in items() if options.only in item.label and (not options.quick or item.label in QUICK)]
    if not chosen:
        labels = "; ".join(item.label for item in items() if not options.quick or item.label in QUICK)
        raise ValueError(f"--only: got {options.only!r}, allowed is a part of a call's label: {labels}")
    wrong = 0
    asked: dict[str, list] = {}
    for name in options.backend or backend_names():
        reason = get_backend(name).unavailable()
        if reason is None:
            asked[name] = pairs(name, chosen, options.dtype or DTYPES, options.quick)
        else:
            print(f"backend {name}: cannot run here: {reason}\n")
            # A backend that was asked for by name has to run.
            wrong += bool(options.backend)
    if not asked:
        if not options.backend:
            print("no backend can run here")
        return 1
    counts = {
        name: sum(refusal(name, item.in_dtype(dtype)) is None for item, dtype in calls) for name, calls in asked.items()
    }
    told = ", ".join(f"{count} on {name}" for name, count in counts.items())
    print(f"calls: {told}; {about(SECONDS * sum(counts.values()))}\n", flush=True)
    for name, calls in asked.items():
        wrong += check_backend(name, calls, options.mode)
    print("all right" if wrong == 0 else f"WRONG: {wrong}")
    return int(wrong > 0)


def pairs(name: str, chosen: list[Item], dtypes: Sequence[str], quick: bool) -> list[tuple[Item, str]]:
    """Return the items and dtypes to run on a backend: every dtype, or with `quick` one of those that it takes, by
    turns.
    """
    from flash_attention.backends.registry import refusal

    if not quick:
        return [(item, dtype) for item in chosen for dtype in dtypes]
    result = []
    for index, item in enumerate(chosen):
        turns = [dtypes[(index + shift) % len(dtypes)] for shift in range(len(dtypes))]
        taken = [dtype for dtype in turns if refusal(name, item.in_dtype(dtype)) is None]
        result.append((item, (taken or turns)[0]))
    return result


def check_backend(name: str, calls: list[tuple[Item, str]], mode: str) -> int:
    """Run items on one backend, print their errors, and return how many were wrong. Each item has a dtype."""
    from flash_attention.backends.registry import refusal
    from flash_attention.reference import LIMITS

    label_width = max(len(item.label) for item, _ in calls)
    print(f"backend {name} ({mode} mode): largest error as a multiple of the honest baseline's. Right are up to 2, and")
    print('"<": the baseline was lucky there, and the error is within what float32 arithmetic cannot avoid, at most')
    print(f"{LIMITS.floor:g} times the baseline's ({LIMITS.few:g} for sinks)")
    print(f"  {'call':{label_width}}  {'dtype':8}" + "".join(f"{column:>11}" for column in COLUMNS), flush=True)
    wrong = 0
    refused: dict = {}
    measured: dict[str, list[dict]] = {}
    for item, dtype in calls:
        call = item.in_dtype(dtype)
        start = f"  {item.label:{label_width}}  {dtype:8}"
        reason = refusal(name, call)
        if reason is not None:
            refused.setdefault(reason, []).append(f"{item.label} ({dtype})")
            continue
        errors, faults = measure(name, call, item)
        cells = "".join(f"{ratio(errors[column]) if column in errors else '':>11}" for column in COLUMNS)
        print(f"{start}{cells}  {'WRONG: ' + ', '.join(faults) if faults else 'ok'}", flush=True)
        wrong += bool(faults)
        measured.setdefault(dtype, []).append(errors)
    if measured:
        print("\n  largest error of all calls, and in brackets the baseline: composed attention in the same dtype")
        print(table(["dtype", *LARGEST], largest_rows(measured), indent="  "))
    for reason, labels in refused.items():
        which = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
        print(f"  refused: {which}: {reason}")
    print()
    return wrong


def largest_rows(measured: dict[str, list[dict]]) -> list[list[str]]:
    """Return the cells per dtype: the largest errors of the results in LARGEST, ours and the baseline's."""
    rows = []
    for dtype, calls in measured.items():
        found = [[errors[name] for errors in calls if name in errors] for name in LARGEST]
        pairs = [(max(e.max for e in own), max(e.baseline_max for e in own)) if own else None for own in found]
        rows.append([dtype, *("-" if pair is None else f"{pair[0]:.1e} ({pair[1]:.1e})" for pair in pairs)])
    return rows


def ratio(error) -> str:
    """Return the error beside the baseline's."""
    if error.ok and error.max > 2 * error.baseline_max:
        return "<"
    return f"{error.max / error.baseline_max:.2f}" if error.baseline_max else f"{error.max:.2f}"


def measure(name: str, call: Call, item: Item) -> tuple[dict, list[str]]:
    """Return the errors by result name, and in words what is wrong with the results."""
    import numpy as np

    from flash_attention import reference
    from flash_attention.dropout import philox

    given, gradients = draw(call, item)
    if call.dropout_threshold and name == "tik":  # it follows no seed of the call, so it is given the decisions
        given = {**given, "keep_bits": philox.keep_bits(call, SEED), "seed": None}
        call = replace(call, keep_bits=True)
    keep = reference.keep_mask(call, SEED) if call.dropout_threshold else None
    tensors = given["query"], given["key"], given["value"]
    extras = {name: given[name] for name in call.inputs if name not in ("keep_bits", "seed")}
    extras.update(keep=keep, **gradients)
    exact, low = reference.truth(call, *tensors, **extras), reference.baseline(call, *tensors, **extras)
    first, second = execute(name, call, given, **gradients, times=2)
    errors = {error.name: error for error in reference.compare(first, exact, low)}
    faults = [error.name for error in errors.values() if not error.ok]
    fully_masked = np.isneginf(exact.logsumexp)
    if np.any(first.output[fully_masked]) or np.any(first.d_query[fully_masked]):
        faults.append("not zero if nothing is visible")
    if not all(np.array_equal(value, second.named()[key]) for key, value in first.named().items()):
        faults.append("two runs differ")
    return errors, faults


def draw(call: Call, item: Item) -> tuple[dict, dict]:
    """Return the inputs by name, and the gradients of the two outputs."""
    import numpy as np

    from flash_attention import reference

    random = np.random.default_rng(zlib.crc32(item.label.encode()))

    def normal(*shape, dtype=call.dtype):
        return reference.round_to(random.standard_normal(shape), dtype)

    def ids(length):
        """Return the ids of five runs of rows; the last run, padding, sees nothing."""
        if not call.segments:
            return None
        return np.tile((np.arange(length) * 5 // length + 1).astype(np.int32) % 5 - 1, (call.batch, 1))

    mask = None
    if item.mask == "random":
        mask = random.random(call.mask_shape) < 1 / 3
    elif item.mask == "rows":
        mask = np.zeros(call.mask_shape, np.bool_)
        mask[:, :, ::3] = True
    given = {
        "query": normal(*call.shape_query()),
        "key": normal(*call.shape_key()),
        "value": normal(*call.shape_value()),
        "mask": mask,
        "bias": None if call.bias_shape is None else normal(*call.bias_shape, dtype=call.bias_dtype),
        "keep_bits": None,
        "seed": np.array(SEED, np.int64) if call.dropout_threshold else None,
        "sinks": normal(call.heads, dtype="float32") if call.sinks else None,
        "prefix": random.integers(0, call.seq_k + 1, call.batch).astype(np.int32) if call.prefix else None,
        "segment_ids": ids(call.seq_q),
        "kv_segment_ids": ids(call.seq_k),
        "block_mask": None if call.block_mask_shape is None else random.integers(0, 2, call.block_mask_shape, np.uint8),
    }
    more = {"d_output": normal(*call.shape_output()), "d_logsumexp": normal(*call.shape_lse(), dtype="float32")}
    return given, more


def execute(name: str, call: Call, given: dict, d_output: np.ndarray, d_logsumexp: np.ndarray, times: int = 1) -> list:
    """Return the output, logsumexp and gradients of `times` calls of backend `name`. Each is a reference.Attention of
    float32 arrays.
    """
    import mindspore
    import numpy as np
    from mindspore import Tensor, nn, ops

    from flash_attention import reference
    from flash_attention.backends import registry

    class Forward(nn.Cell):
        """Call the backend with its inputs without gradients held fixed. A graph's gradient function takes no None."""

        def __init__(self):
            super().__init__()
            self.attend = registry.choose(call, name).build(call)
            self.fixed = tuple(Tensor(given[key]) for key in call.inputs)
            self.bias, self.sinks = call.place("bias"), call.place("sinks")

        def construct(self, query, key, value, bias, sinks):
            inputs = ()
            for place in range(len(self.fixed)):
                tensor = bias if place == self.bias else self.fixed[place]
                inputs = inputs + (sinks if place == self.sinks else tensor,)
            return self.attend(query, key, value, inputs)

    dtype, bias_dtype = (getattr(mindspore, one) for one in (call.dtype, call.bias_dtype or "float32"))
    inputs = [Tensor(given[key], dtype) for key in ("query", "key", "value")]
    bias, sinks = (np.zeros(1, np.float32) if given[key] is None else given[key] for key in ("bias", "sinks"))
    inputs += [Tensor(bias, bias_dtype), Tensor(sinks)]
    network = Forward()
    gradient = ops.GradOperation(get_all=True, sens_param=True)(network)
    results = []
    for _ in range(times):
        output, logsumexp = network(*inputs)
        gradients = gradient(*inputs, (Tensor(d_output, dtype), Tensor(d_logsumexp, mindspore.float32)))
        arrays = [ops.cast(result, mindspore.float32).asnumpy() for result in (output, logsumexp, *gradients)]
        found = reference.Attention(*arrays)
        results.append(
            replace(
                found,
                d_bias=None if given["bias"] is None else found.d_bias,
                d_sinks=None if given["sinks"] is None else found.d_sinks,
            )
        )
    return results
