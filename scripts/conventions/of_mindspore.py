# /// script
# requires-python = "==3.11.*"
# dependencies = ["mindspore==2.10.0", "numpy==1.26.4"]
# ///
"""Answer for MindSpore's layer and composed attention, and for this package, on a CPU."""

import functools
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import questions
from mindspore import Tensor, nn, ops

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "train"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "emulator"))
import flash_attention


def tensor(array, dtype=None):
    """Return a Tensor, or None."""
    return None if array is None else Tensor(np.ascontiguousarray(array), dtype)


def composed(query, key, value, mask=None, bias=None):
    """Compute attention as models write it: matmul, masked_fill with -inf, softmax, matmul."""
    query, key, value, mask, bias = map(tensor, (query, key, value, mask, bias))
    scores = ops.matmul(query, key.swapaxes(-1, -2)) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = ops.masked_fill(scores, mask, float("-inf"))
    scores = scores if bias is None else scores + bias
    return ops.matmul(ops.softmax(scores, -1), value).asnumpy()


#: The cells of `ops.flash_attention_score` by the part of its docstring that says so. It has no kernel for a CPU.
DOCUMENTED = {
    "leftUpCausal": {"causal, 3 queries and 7 keys": "top left or bottom right"},
    "rightDownCausal": {"causal, 5 queries and 3 keys": "top left or bottom right"},
    "1/True indicates discard": {"True in a boolean mask": "hides"},
    "`attn_mask` shape is not valid": {"a boolean mask of rank 3": "refused"},
    "N2 must be a factor of N1": {"4 heads of query, 2 of key": "by itself", "4 heads of query, 1 of key": "by itself"},
    "drop_mask (Tensor, optional)": {"dropout of one seed and other shapes": "the caller gives the decisions"},
    '"BSH", "BNSD", "SBH", "BSND" or "TND"': {"layout": "`BSH`, `BNSD`, `SBH`, `BSND`, `TND`"},
}


@ms.jit  # PYNATIVE runs operators later, and may hand their errors to other calls
def _attention_score(tokens):
    return ops.flash_attention_score(tokens, tokens, tokens, 1, input_layout="BNSD")


def documented():
    """Return the cells of DOCUMENTED. Raise AssertionError if the function runs, or if its docstring lacks a part."""
    text = " ".join(ops.flash_attention_score.__doc__.split())
    assert text.rpartition("Supported Platforms:")[2].split()[0] == "``Ascend``"
    assert all(part in text for part in DOCUMENTED)
    tokens = ops.ones((1, 1, 16, 16), ms.float16)
    try:
        _attention_score(tokens)
    except RuntimeError as error:
        assert "Unsupported op [FlashAttentionScore] on CPU" in str(error)
        stated = {title: f"documented: {words}" for cells in DOCUMENTED.values() for title, words in cells.items()}
        absent = ("its logsumexp", "soft cap and bias", "a sink of logit 1 and a soft cap of 0.5", "rotary pairs")
        return stated | dict.fromkeys(absent, "—")
    raise AssertionError("flash_attention_score runs: ask it the questions")


def layer(query, key, value, mask=None, bias=None):
    """Run mindspore.nn.MultiheadAttention whose weights are identities."""
    heads, head_dim = query.shape[1], query.shape[3]
    cell = nn.MultiheadAttention(heads * head_dim, heads, batch_first=True, has_bias=False)
    cell.in_proj_weight.set_data(Tensor(np.tile(np.eye(heads * head_dim, dtype=np.float32), (3, 1))))
    cell.out_proj.weight.set_data(Tensor(np.eye(heads * head_dim, dtype=np.float32)))
    joined = [tensor(np.swapaxes(one, 1, 2)).reshape(one.shape[0], one.shape[2], -1) for one in (query, key, value)]
    mask = tensor(bias if mask is None else mask)
    if mask is not None and mask.ndim == 4:
        mask = mask.broadcast_to((query.shape[0], heads, query.shape[2], key.shape[2])).reshape(
            -1, query.shape[2], key.shape[2]
        )
    output = cell(*joined, attn_mask=mask, need_weights=False)[0].asnumpy()
    return np.swapaxes(output.reshape(query.shape[0], query.shape[2], heads, head_dim), 1, 2)


def ours(backend, dtype, query, key, value, window=(-1, -1), dropout=0.0, cap=0.0, lse=False, **options):
    """Run flash_attention."""
    output = flash_attention.flash_attention(
        *(tensor(one, dtype or (ms.float16 if one.dtype == np.float16 else ms.float32)) for one in (query, key, value)),
        **{name: one if isinstance(one, bool) else tensor(one) for name, one in options.items()},
        window_size=window,
        dropout_rate=dropout,
        seed=Tensor([1, 2], ms.int64) if dropout else None,
        softcap=cap,
        return_lse=lse,
        backend=backend,
    )
    return [one.asnumpy().astype(np.float32) for one in output] if lse else output.asnumpy().astype(np.float32)


def gradients(function, dtype, query, key, value, mask):
    """Return the gradients of query, key and value."""
    mask = Tensor(mask)
    of_each = ms.grad(lambda *tensors: function(*tensors, mask).sum(), (0, 1, 2))
    return [one.asnumpy() for one in of_each(*(Tensor(one, dtype) for one in (query, key, value)))]


def rotary(rows, cos, sin):
    """Run rotary_embedding."""
    return flash_attention.rotary_embedding(*map(Tensor, (rows, cos, sin))).asnumpy()


def column(backend, tokens=513):
    """Return the column of a backend of this package."""
    dtype = ms.float16 if backend == "emulator" else None
    run = functools.partial(ours, backend, dtype)

    def attend(query, key, value, mask=None, bias=None, causal=False, window=(-1, -1), cap=0.0, sinks=None,
               dropout=0.0, lse=False):  # fmt: skip
        bias = bias if dtype is None or bias is None else bias.astype(np.float16)
        return run(
            query, key, value, window, dropout, cap, lse, attention_mask=mask, bias=bias, causal=causal, sinks=sinks
        )

    function = functools.partial(flash_attention.flash_attention, backend=backend)
    return questions.Column(
        attend,
        functools.partial(gradients, function, dtype),
        rotary,
        layout="BNSD",
        window=(2, 0),
        dtype=np.float16 if dtype else np.float32,
        tokens=tokens,
    )


def columns():
    """Return every column."""
    return {
        "mindspore_score": questions.Column(None, layout=None, rest="not run", stated=documented()),
        "mindspore_composed": questions.Column(composed, layout="BNSD"),
        "mindspore_layer": questions.Column(layer, layout="BSH"),
        "ours_cpu": column("cpu"),
        "ours_math": column("math"),
        "ours_tik": column("emulator", 40),
    }


if __name__ == "__main__":
    questions.show(f"MindSpore {ms.__version__}", **columns())
