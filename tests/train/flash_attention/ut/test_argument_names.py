"""Check every argument of every public function.

Errors name an argument as the caller wrote it.
"""

import inspect
import re

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    FlashAttention,
    KVCache,
    flash_attention,
    flash_attention_varlen,
    paged_attention,
    paged_caches,
    prepare,
    reshape_and_cache,
    rotary_embedding,
    scaled_dot_product_attention,
)
from flash_attention.call.names import renamed
from flash_attention.compat import ascend910, flash_attn, mindnlp, mindspore_ops, transformers
from flash_attention.compat.flash_attn import bert_padding
from flash_attention.compat.flash_attn.layers.rotary import apply_rotary_emb
from mindspore import Tensor, nn

from tests.train.flash_attention.support.modes import in_mode


def tensor(*shape, dtype="float32"):
    return Tensor(np.ones(shape, dtype))


class Module(nn.Cell):
    """Stand for a model's attention."""


def layer(query, key, value, attn_mask=None, alibi_mask=None):
    """Call the layer of earlier packages."""
    return ascend910.FlashAttention(16, alibi=True)(query, key, value, attn_mask, alibi_mask)


def of_new(make, method="construct"):
    """Return a Cell's method as a function that calls it on a new Cell."""

    def call(*given, **named):
        made = make()
        return made(*given, **named) if method == "construct" else getattr(made, method)(*given, **named)

    call.__signature__ = inspect.signature(getattr(make(), method))
    return call


def kv_cache():
    """Return a cache of two sequences."""
    return KVCache(2, 8, 4, 16, dtype="float32")


DENSE, TOKENS, SCORES = (2, 6, 4, 16), (6, 4, 16), (2, 4, 6, 6)
ENDS = Tensor([0, 2, 6], ms.int32)
PLAIN = {"q": tensor(*DENSE), "k": tensor(*DENSE), "v": tensor(*DENSE)}
ROWS = {"q": tensor(*TOKENS), "k": tensor(*TOKENS), "v": tensor(*TOKENS)}
LENGTHS = {"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS, "max_seqlen_q": 4, "max_seqlen_k": 4}
CACHE = {"q": tensor(2, 1, 4, 16), "k_cache": tensor(2, 8, 4, 16), "v_cache": tensor(2, 8, 4, 16)}
NEW = {"k": tensor(2, 1, 4, 16), "v": tensor(2, 1, 4, 16), "cache_seqlens": 3}
TURNED = {"rotary_cos": tensor(9, 8), "rotary_sin": tensor(9, 8)}
HEADS_FIRST = {"query": tensor(*SCORES[:3], 16), "key": tensor(*SCORES[:3], 16), "value": tensor(*SCORES[:3], 16)}
MINDSPORE = {**HEADS_FIRST, "head_num": 4, "input_layout": "BNSD"}
TND = {"query": tensor(*TOKENS), "key": tensor(*TOKENS), "value": tensor(*TOKENS), "head_num": 4, "input_layout": "TND"}
MASK = {"attention_mask": None}

PAGED = {"block_tables": Tensor([[0, 1], [1, 0]], ms.int32), "context_lens": Tensor([3, 9], ms.int32)}
OF_CACHE = {"key_cache": CACHE["k_cache"], "value_cache": CACHE["v_cache"]}

# Entry: function and arguments that it takes.
ENTRIES = {
    "flash_attention": (flash_attention, HEADS_FIRST),
    "flash_attention_varlen": (
        flash_attention_varlen,
        {**dict(zip(HEADS_FIRST, ROWS.values())), "cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS},
    ),
    "paged_attention": (paged_attention, {"query": tensor(2, 4, 16), **OF_CACHE, **PAGED}),
    "paged_caches": (paged_caches, {"blocks": 2, "block_size": 16, "kv_heads": 2, "head_dim": 16}),
    "reshape_and_cache": (
        reshape_and_cache,
        {"key": ROWS["k"][:2], "value": ROWS["v"][:2], **OF_CACHE, "slot_mapping": Tensor([0, 9], ms.int32)},
    ),
    "rotary_embedding": (rotary_embedding, {"x": tensor(*DENSE), "cos": tensor(9, 8), "sin": tensor(9, 8)}),
    "layer": (of_new(lambda: FlashAttention(16, alibi=True, causal=True)), HEADS_FIRST),
    "rules of the layer": (FlashAttention, {"head_dim": 16}),
    "KVCache": (KVCache, {"batch": 2, "max_length": 8, "kv_heads": 2, "head_dim": 16}),
    "call of a KVCache": (of_new(kv_cache), dict.fromkeys(("query", "key", "value"), tensor(2, 1, 4, 16))),
    "update of a KVCache": (of_new(kv_cache, "update"), dict.fromkeys(("key", "value"), tensor(2, 1, 4, 16))),
    "attention of a KVCache": (of_new(kv_cache, "attend"), {"query": tensor(2, 1, 4, 16)}),
    "order of a KVCache": (of_new(kv_cache, "reorder"), {"indices": (1, 0)}),
    "reset of a KVCache": (of_new(kv_cache, "reset"), {"indices": (1,)}),
    "scaled_dot_product_attention": (scaled_dot_product_attention, HEADS_FIRST),
    "flash_attn_func": (flash_attn.flash_attn_func, PLAIN),
    "flash_attn_varlen_func": (flash_attn.flash_attn_varlen_func, {**ROWS, **LENGTHS}),
    "flash_attn_with_kvcache": (flash_attn.flash_attn_with_kvcache, {**CACHE, **NEW, **TURNED}),
    "flash_attn_with_kvcache, pages": (
        flash_attn.flash_attn_with_kvcache,
        {**CACHE, "block_table": Tensor([[0, 1], [1, 0]], ms.int32), "cache_seqlens": Tensor([3, 9], ms.int32)},
    ),
    "apply_rotary_emb": (apply_rotary_emb, {"x": tensor(*DENSE), "cos": tensor(9, 8), "sin": tensor(9, 8)}),
    "index_first_axis": (bert_padding.index_first_axis, {"input": tensor(*TOKENS), "indices": ENDS[:2]}),
    "index_put_first_axis": (
        bert_padding.index_put_first_axis,
        {"values": tensor(2, 4), "indices": ENDS[:2], "first_axis_dim": 7},
    ),
    "unpad_input": (
        bert_padding.unpad_input,
        {"hidden_states": tensor(*DENSE), "attention_mask": tensor(2, 6, dtype="int32")},
    ),
    "unpad_input_for_concatenated_sequences": (
        bert_padding.unpad_input_for_concatenated_sequences,
        {"hidden_states": tensor(*DENSE), "attention_mask_in_length": tensor(2, 6, dtype="int32")},
    ),
    "pad_input": (
        bert_padding.pad_input,
        {"hidden_states": tensor(2, 4), "indices": ENDS[:2], "batch": 2, "seqlen": 4},
    ),
    "flash_attention_score": (mindspore_ops.flash_attention_score, MINDSPORE),
    "flash_attention_score, TND": (
        mindspore_ops.flash_attention_score,
        {**TND, "actual_seq_qlen": (2, 6), "actual_seq_kvlen": (2, 6)},
    ),
    "transformers": (transformers.attention_forward, {"module": Module(), **HEADS_FIRST, **MASK}),
    "mindnlp": (mindnlp.attention_forward, {"module": Module(), **HEADS_FIRST, **MASK}),
    "earlier layer": (layer, HEADS_FIRST),
}

NUMBER = "x", float("inf"), [1]
FLAG = 1, None
WINDOW = 3, (1, 2, 3), ("a", 1)
TENSOR = 3, tensor(5, dtype="float32"), "float64"
OPTIONAL = 3, tensor(7), tensor(7, dtype="float64")
INTEGERS = "x", tensor(2, dtype="float32"), tensor(2, 2, 2, dtype="int32")
# Argument: what is wrong for it; a dtype stands for the given tensor in that dtype.
WRONG = {
    **dict.fromkeys(("q", "k", "v", "query", "key", "value", "x"), (None, *TENSOR)),
    **dict.fromkeys(("k_cache", "v_cache", "key_cache", "value_cache"), (None, *TENSOR, "int8")),
    **dict.fromkeys(("cos", "sin", "rotary_cos", "rotary_sin", "hidden_states"), TENSOR[:2]),
    **dict.fromkeys(("softmax_scale", "scale", "scaling", "scalar_value"), NUMBER),
    **dict.fromkeys(("dropout_p", "dropout", "dropout_rate"), ("x", 1.5, [1])),
    **dict.fromkeys(("causal", "is_causal", "enable_gqa", "deterministic", "return_softmax_lse"), FLAG[:1]),
    **dict.fromkeys(("alibi", "bias_grad", "return_lse", "alibi_grad", "paged", "have_attention_mask_batch"), FLAG),
    **dict.fromkeys(("sinks", "bias", "kv_segment_ids", "keep_bits"), OPTIONAL),
    **dict.fromkeys(("block_tables", "context_lens", "slot_mapping"), (None, *INTEGERS)),
    **dict.fromkeys(("offsets", "tokens"), (*INTEGERS, -1)),
    **dict.fromkeys(("causal_alignment", "tiling_stgy_name", "backend", "padding_side"), ("x", 3, [1])),
    **dict.fromkeys(("dtype",), ("int8", "float64", 3)),
    **dict.fromkeys(("prev_block_num", "next_block_num"), ("x", 1.5, -1)),
    **dict.fromkeys(("dp", "mp", "blocks", "block_size", "kv_heads", "max_length", "head_dim"), ("x", 1.0, 0)),
    **dict.fromkeys(("num_blocks", "value_head_dim"), ("x", 1.0, 700)),
    **dict.fromkeys(("return_attn_probs", "rotary_interleaved", "interleaved"), FLAG),
    **dict.fromkeys(
        ("alibi_slopes", "block_mask", "s_aux", "attn_mask", "attention_mask", "alibi_mask", "segment_ids"), OPTIONAL
    ),
    **dict.fromkeys(
        ("cu_seqlens_q", "cu_seqlens_k", "cu_seqlens"), (*INTEGERS, Tensor([0, 4, 2]), [0, 4, 2], (4.0, 6), (0, 9), ())
    ),
    **dict.fromkeys(("cache_seqlens", "seqlen_offsets"), (*INTEGERS, -1)),
    **dict.fromkeys(("cache_batch_idx", "cache_leftpad", "block_table"), INTEGERS),
    **dict.fromkeys(("indices", "attention_mask_in_length", "unused_mask"), INTEGERS),
    **dict.fromkeys(("first_axis_dim", "batch", "seqlen", "num_splits", "sliding_window"), ("x", -1)),
    **dict.fromkeys(("actual_seq_qlen", "actual_seq_kvlen"), (*INTEGERS, (3, 2), Tensor([4, 3], ms.int32))),
    **dict.fromkeys(("sparse_mode", "head_num", "inner_precise"), ("x",)),
    **dict.fromkeys(("pre_tokens", "next_tokens"), ("x",)),
    "window_size": WINDOW,
    "softcap": ("x", -1.0),
    "seed": (3, tensor(2)),
    "keep_prob": ("x", 0.0),
    "input_layout": ("x", 3),
    "real_shift": OPTIONAL[:2],
    "drop_mask": OPTIONAL[:2],
    "padding_mask": OPTIONAL[:1],
    "prefix": ("x", tensor(2)),
    "inplace": (True,),
    "inference": ("x",),
    "input": TENSOR[:1],
    "values": TENSOR[:2],
}
#: The same by entry.
WRONG_HERE = {
    ("rules of the layer", "seed"): ("x", -1),
    ("rules of the layer", "batch"): (2,),
    ("rules of the layer", "block_mask"): (3, tensor(1, 1, 3, 3)),
    ("flash_attention", "batch"): (2,),
    ("reshape_and_cache", "slot_mapping"): INTEGERS[:2],
    ("paged_caches", "value_head_dim"): ("x", 1.0, 0),
    ("KVCache", "num_blocks"): ("x", 1.0, 0),
}
# Arguments without effect, which take anything, or without a meaning of their own.
NOT_LOOKED_AT = {
    *("max_seqlen_q", "max_seqlen_k", "max_seqlen", "module", "kwargs", "arguments", "keywords"),
    *("argument_names", "shards", "rules"),
}
# Values that other arguments need before the argument is checked.
NEEDS = {
    ("flash_attention_score", "prefix"): {"sparse_mode": 5, "attn_mask": tensor(*SCORES, dtype="uint8")},
    ("flash_attention_score", "drop_mask"): {"keep_prob": 0.5},
    ("flash_attention_score, TND", "drop_mask"): {"keep_prob": 0.5},
    ("flash_attention_score, TND", "attn_mask"): {"sparse_mode": 2},
    ("scaled_dot_product_attention", "seed"): {"dropout_p": 0.5},
    ("KVCache", "num_blocks"): {"paged": True},
    ("flash_attention", "seed"): {"dropout_rate": 0.5},
    ("flash_attention_varlen", "seed"): {"dropout_rate": 0.5},
    ("flash_attention", "keep_bits"): {"dropout_rate": 0.5},
    ("flash_attention_varlen", "keep_bits"): {"dropout_rate": 0.5},
    ("flash_attention", "prefix"): {"causal": True},
    ("flash_attention_varlen", "prefix"): {"causal": True},
}
# Arguments that come in pairs, or that are refused beside the arguments that the entry gets here.
PAGES = "flash_attn_with_kvcache, pages"
APART = {
    ("flash_attention_varlen", "kv_segment_ids"),
    ("flash_attn_with_kvcache", "block_table"),
    *((PAGES, name) for name in ("cache_batch_idx", "k", "v", "rotary_cos", "rotary_sin")),
}


def wrong_calls(entry):
    """Yield each argument of an entry and a wrong value of it."""
    function, given = ENTRIES[entry]
    for name in inspect.signature(function).parameters:
        if name in NOT_LOOKED_AT or (entry, name) in APART:
            continue
        assert name in WRONG, f"{name} of {entry}: say what is wrong"
        for wrong in WRONG_HERE.get((entry, name), WRONG[name]):
            if wrong in ("float64", "int8") and name != "dtype":
                if given.get(name) is None:
                    continue
                wrong = given[name].astype(getattr(ms, wrong))
            yield name, wrong


OURS = "query|key|value|scale|dropout_rate|attention_mask|bias|sinks|keep_bits|cu_seqlens_[qk]|offsets|return_lse"
OURS += "|key_cache|value_cache|block_tables|context_lens|slot_mapping|window_size|causal"


def named_as_written(message, entry, name):
    """Return whether a message begins with the name and names no foreign argument. It says what is wrong."""
    function, _ = ENTRIES[entry]
    parameters = set(inspect.signature(function).parameters)
    foreign = set(re.findall(rf"(?<!\ba )(?<!compact )(?<![\w/])({OURS})(?![\w])", message)) - parameters
    said = re.search(
        r": (got .*(allowed|but |here |which |with |has )|given |needed |.*(takes none|no meaning))", message
    )
    return name in re.split(r", (?=[^:]*:)|:", message.partition(": ")[0] + ":") and not foreign and bool(said)


def called(entry, name, wrong):
    """Return the message of an entry for a wrong argument, None if there is none."""
    function, given = ENTRIES[entry]
    try:
        function(**{**given, **NEEDS.get((entry, name), {}), name: wrong})
    except (TypeError, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_argument(entry):
    function, given = ENTRIES[entry]
    with in_mode("pynative"):
        if entry != "mindnlp":
            function(**given)  # nothing else is wrong
        messages = [(name, wrong, called(entry, name, wrong)) for name, wrong in wrong_calls(entry)]
    assert len(messages) > 2
    bad = [one for one in messages if one[2] is None or not named_as_written(one[2], entry, one[0])]
    assert not bad, "\n".join(f"{name} = {wrong!r}: {message}"[:300] for name, wrong, message in bad)


class InGraph:
    """Hold functions for a graph. What is wrong in each is its name."""

    def is_causal(x):
        return scaled_dot_product_attention(x, x, x, is_causal=1)

    def softmax_scale(x):
        return flash_attn.flash_attn_func(x, x, x, softmax_scale="x")

    def dropout_p(x):
        return flash_attn.flash_attn_func(x, x, x, 0.1)

    def cu_seqlens_k(x):
        return flash_attn.flash_attn_varlen_func(x[0], x[0], x[0], (0, 6), (0, 7), 6, 6)

    def k(x):
        return flash_attn.flash_attn_with_kvcache(x, x, x, x[:, :, :3], x, cache_seqlens=0)

    def scaling(x):
        return transformers.attention_forward(None, x, x, x, None, scaling="x", is_causal=True)

    def attn_mask(x):
        return mindspore_ops.flash_attention_score(x, x, x, 4, attn_mask=x, input_layout="BSND")


@pytest.mark.parametrize("name", [name for name in vars(InGraph) if name[0] != "_"])
def test_in_a_graph(name):
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: "):
        ms.jit(vars(InGraph)[name])(tensor(*DENSE))


def test_the_earlier_layer_in_a_graph():
    earlier, query = ascend910.FlashAttention(16, alibi=True), tensor(2, 4, 6, 16)
    for wrong, message in (((tensor(7),), "^attn_mask: got shape"), ((None, tensor(7)), "^alibi_mask: got shape")):
        with in_mode("graph"), pytest.raises(ValueError, match=message):
            earlier(query, query, query, *wrong)


TWO, ONE_SEQUENCE = Tensor([0, 2, 6], ms.int32), Tensor([0, 6], ms.int32)
FEWER, TABLE = tensor(2, 8, 3, 16), Tensor([[0], [1]], ms.int32)
#: Wrong calls by the beginnings of their messages, which name the second argument as the caller does.
OTHERS = {
    "segment_ids, cu_seqlens_q, cu_seqlens_k: got segment ids beside": lambda q: flash_attention_varlen(
        q[0], q[0], q[0], ENDS, ENDS, kv_segment_ids=tensor(1, 6, dtype="int32")
    ),
    "key_cache: got dtype int8, allowed are float32; quantised caches are out of scope": lambda q: paged_attention(
        q[:, 0], *[tensor(2, 8, 4, 16, dtype="int8")] * 2, *PAGED.values()
    ),
    "alibi_slopes: given together with a bias": lambda q: flash_attention(
        q, q, q, bias=tensor(1, 6, 1, 4), alibi_slopes=tensor(6)
    ),
    "seed: got int32 of shape (2,), allowed is int64 of shape (2,)": lambda q: flash_attention(
        q, q, q, dropout_rate=0.1, seed=Tensor([1, 2], ms.int32)
    ),
    "k: got 3 heads, which do not divide the 4 heads of q;": lambda q: flash_attn.flash_attn_func(q, FEWER, FEWER),
    "k: got dtype float16, but q is float32;": lambda q: flash_attn.flash_attn_func(
        q, *[tensor(*DENSE, dtype="float16")] * 2
    ),
    "k_cache: got 3 heads, which do not divide the 4 heads of q;": lambda q: flash_attn.flash_attn_with_kvcache(
        q, FEWER, FEWER
    ),
    "key_cache: got 3 heads, which do not divide the 4 heads of query;": lambda q: paged_attention(
        q, FEWER, FEWER, TABLE, TWO[1:]
    ),
    "v: got shape (2, 2, 4, 16), allowed is": lambda q: flash_attn.flash_attn_with_kvcache(
        q, CACHE["k_cache"], CACHE["v_cache"], q[:, :1], q[:, :2], cache_seqlens=0
    ),
    "cu_seqlens_k: got the lengths of 1 sequences, but cu_seqlens_q has 2;": (
        lambda q: flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], TWO, ONE_SEQUENCE, 6, 6)
    ),
    "cu_seqlens_k: got the lengths of 2 sequences, but cu_seqlens_q has 1;": (
        lambda q: flash_attn.flash_attn_varlen_func(q[0], q[0], q[0], (0, 6), TWO, 6, 6)
    ),
    "real_shift: got dtype int32, allowed are": lambda q: mindspore_ops.flash_attention_score(
        q, q, q, 4, real_shift=tensor(2, 4, 6, 6, dtype="int32"), input_layout="BSND"
    ),
}


@pytest.mark.parametrize("message", OTHERS)
def test_the_argument_beside(message):
    with in_mode("pynative"), pytest.raises((TypeError, ValueError)) as caught:
        OTHERS[message](tensor(*DENSE))
    assert str(caught.value).startswith(message)


def test_words_that_are_no_names_stay():
    names = ("key", "k"), ("value", "v"), ("query", "q"), ("causal", "is_causal"), ("bias", "attn_mask")
    message = (
        "key: got 1 heads, which do not divide the 4 heads of query; 1 hides a key, the compact causal (2, 2), 'key'"
    )
    assert renamed(message, names) == message.replace("key: ", "k: ").replace("of query", "of q")
    assert (
        renamed("key, value: got shapes of key and value", (("key", "kv"), ("value", "kv"))) == "kv: got shapes of kv"
    )
    assert renamed("causal: got 1, with causal=True and causal_alignment", names) == (
        "is_causal: got 1, with is_causal=True and causal_alignment"
    )


def test_functions_with_other_names_share_a_cell(monkeypatch):
    """Names belong to errors. A Cell that raises none once it is made has none."""
    made = []
    run = prepare.DenseCall
    monkeypatch.setattr(prepare, "DenseCall", lambda *given: made.append(run(*given)) or made[-1])
    query = tensor(3, 7, 5, 16)
    with in_mode("pynative"):
        outputs = (
            flash_attention(query, query, query, input_layout="BSND", causal_alignment="bottom_right"),
            flash_attn.flash_attn_func(query, query, query),
        )
    assert len(made) == 1
    assert np.array_equal(*(output.asnumpy() for output in outputs))
