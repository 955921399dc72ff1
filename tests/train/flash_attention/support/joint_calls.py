"""Compute several unlike calls in one network, and each alone: outputs and gradients of all inputs.

The loss of a network is the sum of its calls' outputs, each times a weight. So the gradient of a weight is an output.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flash_attention
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from tests.train.flash_attention.support.arrays import draw

#: Ways to differentiate: the mode, and what `@jit` compiles.
WAYS = {
    "graph": (ms.GRAPH_MODE, "nothing"),
    "jit": (ms.PYNATIVE_MODE, "gradient"),
    "pynative around jit": (ms.PYNATIVE_MODE, "network"),
    "pynative": (ms.PYNATIVE_MODE, "nothing"),
}
SOURCE = """
from flash_attention import flash_attention, flash_attention_varlen, paged_attention
from flash_attention import reshape_and_cache, rotary_embedding
from mindspore import dtype, nn, ops


class Network(nn.Cell):
    def construct(self, {parameters}):
        loss = 0.0
{body}
        return loss
"""
BATCH, HEADS, SEQ_Q, SEQ_K, DIM = 2, 4, 10, 12, 16
_NUMBERS = itertools.count()


class Made(NamedTuple):
    """A call of a function of `flash_attention`: tensors and other arguments by name.

    A function without a gradient gives constants. `written` are key, value and slots to be stored before, in caches
    that become Parameters.
    """

    function: str
    tensors: dict[str, Tensor]
    options: Mapping[str, Any] = {}
    written: tuple[Tensor, ...] = ()

    @property
    def differentiable(self) -> bool:
        """Return whether the call has a gradient."""
        return self.function != "paged_attention"

    def weights(self) -> list[Tensor]:
        """Return a weight for each output."""
        found = getattr(flash_attention, self.function)(**self.tensors, **self.options)
        found = found if isinstance(found, tuple) else (found,)
        return [Tensor(draw(*one.shape, seed=5 + index)) for index, one in enumerate(found)]


class _Network:
    """A Cell of several calls, its inputs, and the names of those to differentiate."""

    def __init__(self, calls: Iterable[Made], folder: Path, shared: str = "", chained: bool = False, layers: int = 0):
        self.inputs: dict[str, Tensor] = {}
        held: dict[str, Any] = {}
        self.names: list[str] = []
        lines = []
        for number, made in enumerate(calls):
            places = {name: f"{name}_{0 if name == shared else number}" for name in made.tensors}
            if chained and number:
                places["query"] = "found"
            if made.written:
                stored = {f"{name}_{number}": one for name, one in zip(("new_key", "new_value", "slots"), made.written)}
                self.inputs.update(stored)
                for name in ("key_cache", "value_cache"):
                    held[places[name]] = Parameter(made.tensors[name], name=places[name])
                    places[name] = f"self.{places[name]}"
                new_key, new_value, slots = stored
                caches = places["key_cache"], places["value_cache"]
                lines.append(f"reshape_and_cache({new_key}, {new_value}, {caches[0]}, {caches[1]}, {slots})")
            given = {places[name]: tensor for name, tensor in made.tensors.items()}
            self.inputs.update({name: tensor for name, tensor in given.items() if _is_input(name)})
            if layers:
                held[f"layer_{number}"] = flash_attention.FlashAttention(layers, **made.options)
                lines.append(f"found = self.layer_{number}({', '.join(places.values())})")
            else:
                arguments = [f"{name}={place}" for name, place in places.items()]
                arguments += [f"{name}={value!r}" for name, value in made.options.items()]
                lines.append(f"found = {made.function}({', '.join(arguments)})")
            weights = {f"weight_{number}_{index}": one for index, one in enumerate(made.weights())}
            self.inputs.update(weights)
            for index, weight in enumerate(weights):
                part = "found" if len(weights) == 1 else f"found[{index}]"
                part = part if made.differentiable else f"ops.stop_gradient({part})"
                lines.append(f"loss = loss + (ops.cast({part}, dtype.float32) * {weight}).sum()")
            wanted = [name for name, tensor in given.items() if made.differentiable and floats(tensor)]
            self.names += [name for name in (*wanted, *weights) if _is_input(name) and name not in self.names]
        # MindSpore compiles functions from their files.
        path = folder / f"network_{next(_NUMBERS)}.py"
        body = "\n".join(" " * 8 + line for line in lines)
        path.write_text(SOURCE.format(parameters=", ".join(self.inputs), body=body))
        specification = importlib.util.spec_from_file_location(path.stem, path)
        module = sys.modules[path.stem] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        self.cell = module.Network()
        for name, one in held.items():
            setattr(self.cell, name, one)

    def gradients(self, way: str) -> dict[str, np.ndarray]:
        """Return the gradients by name, in float32."""
        mode, compiled = WAYS[way]
        cell, places = self.cell, tuple(list(self.inputs).index(name) for name in self.names)

        def gradient(*tensors):
            return ops.grad(cell, places)(*tensors)

        if compiled == "gradient":
            gradient = ms.jit(gradient)
        if compiled == "network":

            @ms.jit
            def network(*tensors):
                return cell(*tensors)

            gradient = ops.grad(network, places)
        before = ms.get_context("mode")
        ms.set_context(mode=mode)  # `modes.in_mode` needs pytest, and the card's environment has none
        try:
            found = gradient(*self.inputs.values())
            found = found if isinstance(found, tuple) else (found,)
            return {name: one.astype(ms.float32).asnumpy() for name, one in zip(self.names, found)}
        finally:
            ms.set_context(mode=before)


def _is_input(place: str) -> bool:
    return place != "found" and not place.startswith("self.")


def floats(tensor: Tensor) -> bool:
    """Return whether a tensor has a floating dtype."""
    return any(tensor.dtype == getattr(ms, name, None) for name in ("float16", "float32", "bfloat16"))


def joint(calls: Iterable[Made], way: str, folder: Path, **options) -> dict[str, np.ndarray]:
    """Return the gradients of a network, named by input and number of the call.

    Args:
        shared: name of the tensor that all calls take from the first.
        chained: whether the output of each call is the query of the next.
        layers: the width of a head, if the calls are layers.
    """
    return _Network(calls, folder, **options).gradients(way)


def alone(calls: Iterable[Made], folder: Path, way: str = "pynative") -> dict[str, np.ndarray]:
    """Return the gradients of each call alone, named as in `joint`."""
    found = {}
    for number, made in enumerate(calls):
        for given, gradient in joint([made], way, folder).items():
            kind, _, rest = given.partition("_0")
            found[f"{kind}_{number}{rest}"] = gradient
    return found


def normal(*shape: int, dtype=ms.float32) -> Tensor:
    """Return a Tensor of normal random elements."""
    return Tensor(draw(*shape)).astype(dtype)


def dense(
    batch=BATCH, heads=HEADS, seq_q=SEQ_Q, seq_k=SEQ_K, dim=DIM, value_dim=DIM, kv_heads=2, dtype=ms.float32, **given
):
    """Return a dense call: its sizes, its optional inputs as Tensors, and its other arguments."""
    tensors = {
        "query": normal(batch, heads, seq_q, dim, dtype=dtype),
        "key": normal(batch, kv_heads, seq_k, dim, dtype=dtype),
        "value": normal(batch, kv_heads, seq_k, value_dim, dtype=dtype),
    }
    return _call("flash_attention", tensors, given)


def _call(function, tensors, given):
    tensors.update({name: one for name, one in given.items() if isinstance(one, Tensor)})
    return Made(function, tensors, {name: one for name, one in given.items() if not isinstance(one, Tensor)})


def laid_out(layout):
    """Return a call in a layout other than BNSD."""
    options = {"input_layout": layout}
    sizes = (HEADS, SEQ_Q), (2, SEQ_K), (2, SEQ_K)
    if layout == "BSND":
        shapes = [(BATCH, seq, heads, DIM) for heads, seq in sizes]
    else:
        options["head_dim"] = DIM
        first = {"BSH": lambda seq: (BATCH, seq), "SBH": lambda seq: (seq, BATCH), "TH": lambda seq: (BATCH * seq,)}
        shapes = [(*first[layout](seq), heads * DIM) for heads, seq in sizes]
    if layout == "TH":
        options["batch"] = BATCH
    tensors = dict(zip(("query", "key", "value"), (normal(*shape) for shape in shapes)))
    return Made("flash_attention", tensors, options)


def packed(ends=(3, 10, 20), ends_k=(5, 12, 24), heads=HEADS, dim=DIM, value_dim=DIM, dtype=ms.float32, **given):
    """Return a call of packed sequences. The lengths are a Tensor unless they are given as `cu_seqlens_*`."""
    tensors = {
        "query": normal(ends[-1], heads, dim, dtype=dtype),
        "key": normal(ends_k[-1], 2, dim, dtype=dtype),
        "value": normal(ends_k[-1], 2, value_dim, dtype=dtype),
    }
    if "cu_seqlens_q" not in given:
        given = {"cu_seqlens_q": Tensor(ends, ms.int32), "cu_seqlens_k": Tensor(ends_k, ms.int32), **given}
    return _call("flash_attention_varlen", tensors, given)


def paged(blocks=6, dim=DIM, value_dim=DIM, seq=None, written=False, **given):
    """Return a call on a paged cache, into which it may write a token first."""
    tensors = {
        "query": normal(BATCH, *([seq] if seq else []), HEADS, dim),
        "key_cache": normal(blocks, 8, 2, dim),
        "value_cache": normal(blocks, 8, 2, value_dim),
        "block_tables": Tensor([[0, 3], [2, 4]], ms.int32),
        "context_lens": Tensor([13, 9], ms.int32),
    }
    made = _call("paged_attention", tensors, given)
    if not written:
        return made
    slots = Tensor([28, 32], ms.int32)
    return made._replace(written=(normal(BATCH, 2, dim), normal(BATCH, 2, value_dim), slots))


def rotary(width=8, seq=SEQ_Q, dim=DIM, tables=20, dtype=ms.float32, shape=None, **given):
    """Return a rotary embedding."""
    x = normal(*(shape or (BATCH, seq, HEADS, dim)), dtype=dtype)
    return _call("rotary_embedding", {"x": x, "cos": normal(tables, width), "sin": normal(tables, width)}, given)


def calls_in_float16() -> list[Made]:
    """Return calls that the TIK operators take, each with another property."""
    half = {"dtype": ms.float16}
    return [
        dense(**half),
        dense(seq_k=17, **half),
        dense(bias=normal(1, 1, SEQ_Q, SEQ_K, **half), **half),
        dense(sinks=normal(HEADS), **half),
        dense(causal=True, **half),
        packed(**half),
        packed(sinks=normal(HEADS), **half),
    ]
