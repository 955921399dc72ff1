"""Run packed sequences one by one: what `flash_attention_varlen` means, for backends that have nothing better."""

from __future__ import annotations

import functools
from dataclasses import replace

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.backends.base import Backend
from flash_attention.bridge.constants import filled
from flash_attention.call import Call
from flash_attention.call.varlen import check_counts, check_lengths


def sequences_alone(call: Call) -> list[Call | None]:
    """Return each sequence of constant lengths as a call in layout BNSD. A sequence without a query gives None."""
    result: list[Call | None] = []
    slopes = call.slopes_shape if call.slopes_shape is None else (*(1,) * (len(call.slopes_shape) - 1), call.heads)
    for index, (query, query_end, key, key_end) in enumerate(call.varlen.bounds()):
        seq_k = max(1, key_end - key)  # without a key the call is never run
        one = None
        if query_end > query:
            bias = None if call.bias_shape is None else (*call.bias_shape[:3], seq_k)
            one = replace(
                call,
                seq_q=query_end - query,
                seq_k=seq_k,
                bias_shape=bias,
                slopes_shape=slopes,
                layout="BNSD",
                batch_offset=call.batch_offset + index,
                storage=None,
            )
        result.append(one)
    return result


class VarlenLoop(nn.Cell):
    """Run every sequence through the backend's cell for BNSD, in `dtype` or the call's dtype. Operations around it are
    in float32, which compiled graphs have on every device.
    """

    def __init__(self, backend: Backend, call: Call, dtype: str | None = None):
        super().__init__()
        self.dtype = getattr(mstype, call.dtype)
        self.heads, self.kv_heads = call.heads, call.kv_heads
        self.head_dim, self.value_dim = call.head_dim, call.value_dim
        self.output_shape = call.laid_out(call.shape_output())
        sequences = enumerate(call.varlen.bounds())
        self.bounds = tuple((*bounds, index) for index, bounds in sequences if bounds[1] > bounds[0])
        self.sinks = call.place("sinks")
        of_sequences = ["prefix"]
        if call.slopes_shape is not None and len(call.slopes_shape) == 2:
            of_sequences = ["prefix", "alibi_slopes"]
        self.of_sequences = tuple(name in of_sequences for name in call.inputs)
        self.bias, self.keep_bits, self.prefix = map(call.place, ("bias", "keep_bits", "prefix"))
        self.run_dtype = getattr(mstype, dtype or call.dtype)
        bias = call.bias_dtype and (dtype or call.bias_dtype)
        self.bias_dtype = getattr(mstype, bias or "float32")
        alone = [one for one in sequences_alone(call) if one is not None]
        self.attention = nn.CellList(
            [backend.build(replace(one, dtype=dtype or call.dtype, bias_dtype=bias)) for one in alone]
        )
        keep, places = 0, []
        for query, query_end, key, key_end, _ in self.bounds:
            bytes_of_row = -(-(key_end - key) // 8)
            places.append((keep, query_end - query, bytes_of_row))
            keep += call.heads * (query_end - query) * bytes_of_row
        self.bits, self.keep_bytes = tuple(places), keep

    def construct(self, query, key, value, lengths_q, lengths_k, inputs):
        query = heads_first(query, self.heads, self.head_dim)
        key = heads_first(key, self.kv_heads, self.head_dim)
        value = heads_first(value, self.kv_heads, self.value_dim)
        if self.keep_bits is not None:
            _check_bytes(inputs[self.keep_bits].shape[0], self.keep_bytes)
        outputs, logsumexps = (), ()
        for (first, end, first_key, key_end, index), bits, cell in zip(self.bounds, self.bits, self.attention):
            part = query[:, :, first:end]
            if key_end == first_key:
                output = filled(part.shape[:3] + (self.value_dim,), 0)
                logsumexp = filled(part.shape[:3], -float("inf"))
                if self.sinks is not None:
                    logsumexp = filled(part.shape[:3], 0) + ops.reshape(inputs[self.sinks], (1, -1, 1))
            else:
                keys, values = key[:, :, first_key:key_end], value[:, :, first_key:key_end]
                own = ()
                for place, (tensor, of_sequences) in enumerate(zip(inputs, self.of_sequences)):
                    if of_sequences:
                        tensor = tensor[index : index + 1]
                    elif place == self.bias:
                        tensor = ops.cast(tensor, mstype.float32)[:, :, :, first_key:key_end]
                        tensor = ops.cast(tensor, self.bias_dtype)
                    elif place == self.keep_bits:
                        start, rows, row_bytes = bits
                        tensor = tensor[start : start + self.heads * rows * row_bytes]
                        tensor = ops.reshape(tensor, (1, self.heads, rows, row_bytes))
                    own = own + (tensor,)
                part, keys, values = self.as_run(part), self.as_run(keys), self.as_run(values)
                output, logsumexp = cell(part, keys, values, own)
                if self.prefix is not None:  # a prefix as data is known only here
                    beyond = ops.reshape(own[self.prefix] > key_end - first_key, (1, 1, 1, 1))
                    output = ops.masked_fill(output, beyond, float("nan"))
            outputs, logsumexps = outputs + (ops.cast(output, mstype.float32),), logsumexps + (logsumexp,)
        output = ops.reshape(ops.swapaxes(ops.concat(outputs, 2), 1, 2), self.output_shape)
        return ops.cast(output, self.dtype), ops.concat(logsumexps, 2)[0]

    def as_run(self, tensor):
        return ops.cast(tensor, self.run_dtype)


@constexpr(reuse_result=False)
def _check_bytes(given, expected):
    if given != expected:
        raise ValueError(f"keep_bits: got {given} bytes, allowed are the {expected} bytes of these sequences")


def heads_first(tensor, heads, width):
    """Bring rows of packed sequences into float32 (1, heads, rows, width)."""
    return ops.swapaxes(ops.reshape(ops.cast(tensor, mstype.float32), (1, -1, heads, width)), 1, 2)


class VarlenLoopOfTensors(nn.Cell):
    """Run the loop for lengths in tensors. Only PYNATIVE can read them; a graph has another Cell."""

    def __init__(self, backend: Backend, call: Call, in_graph: nn.Cell):
        super().__init__()
        self.call, self.in_graph = call, in_graph
        self.loop = functools.lru_cache(maxsize=64)(
            lambda lengths_q, lengths_k: VarlenLoop(
                backend, replace(call, storage=replace(call.varlen, ends_q=lengths_q, ends_k=lengths_k)), "float32"
            )
        )

    def __call__(self, query, key, value, lengths_q, lengths_k, inputs):
        call = self.call
        ends_q = call.varlen.ends_q or _read("cu_seqlens_q", lengths_q, call.seq_q)
        ends_k = call.varlen.ends_k or _read("cu_seqlens_k", lengths_k, call.seq_k)
        check_counts(ends_q, ends_k)
        return self.loop(ends_q, ends_k)(query, key, value, None, None, inputs)

    def construct(self, query, key, value, lengths_q, lengths_k, inputs):
        return self.in_graph(query, key, value, lengths_q, lengths_k, inputs)


def _read(name: str, lengths: Tensor, total: int) -> tuple:
    return check_lengths(name, lengths.asnumpy().tolist(), total)
