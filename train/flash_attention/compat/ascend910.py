"""Offer the layer under the paths and signatures of earlier FlashAttention layers. They are layers for the Ascend 910.

Two signatures are in use. After `head_dim` come

    (a)  dropout_rate, prev_block_num, next_block_num, tiling_stgy_name, dp, mp, have_attention_mask_batch, alibi
    (b)  head_num, dropout_rate, prev_block_num, next_block_num, tiling_stgy_name, dp, mp, high_precision,
         have_attention_mask_batch, alibi, use_mqa

(a) belongs to `flash_attention.FlashAttention` and acctransformer's master branch; (b) to acctransformer's
branch fa1_for_ms2.2.11 and to `mindspore.nn.layer.flash_attention` in MindSpore 2.2 (some of its releases leave
tiling_stgy_name out). `install` makes the layer importable under both paths.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from flash_attention.bridge.tensors import compile_time, spec, tensor_spec
from flash_attention.call.checks import check_bool, check_int
from flash_attention.nn.layer.flash_attention import FlashAttention as Layer

PATHS = ("acctransformer.flash_attention.nn.layer.flash_attention", "mindspore.nn.layer.flash_attention")

_BEFORE = ("dropout_rate", "prev_block_num", "next_block_num")
_AFTER = ("dp", "mp")
_PLAIN_TAIL = ("have_attention_mask_batch", "alibi")
_TAIL = ("high_precision", "have_attention_mask_batch", "alibi", "use_mqa")


class Arguments(NamedTuple):
    """Arguments of one of the two signatures, taken apart."""

    layer: dict  # keywords of flash_attention.FlashAttention
    head_num: int | None
    use_mqa: bool


def read_arguments(arguments: tuple, keywords: dict) -> Arguments:
    """Take the arguments after head_dim apart, whichever signature they follow.

    An integer of at least 1 in first place is head_num: dropout_rate is below 1.

    Args:
        arguments, keywords: what the caller gave after head_dim.

    Raises:
        TypeError: too many arguments, an argument twice, or an argument whose meaning differs between signatures.
        ValueError: high_precision or use_mqa must be bool, head_num must be an int of at least 1.
    """
    keywords = dict(keywords)
    given = list(arguments)
    if given and isinstance(given[0], bool):
        raise TypeError(
            f"second argument: got {given[0]!r}, allowed is head_num (an int >= 1) or dropout_rate (a float)"
        )
    counted = bool(given) and isinstance(given[0], int) and given[0] >= 1
    with_heads = counted or "head_num" in keywords
    names = ["head_num"] if counted else []
    names += _BEFORE
    place = len(names)
    # Some releases with head_num have no tiling_stgy_name. The argument in its place shows it.
    names += () if place < len(given) and isinstance(given[place], int) and with_heads else ("tiling_stgy_name",)
    names += _AFTER
    if with_heads:
        names += _TAIL
    elif len(given) > len(names):
        if {"high_precision", "use_mqa"} & set(keywords):
            raise TypeError(
                f"got {len(given) + 1} positional arguments without head_num, and high_precision or use_mqa: what "
                "comes after mp differs between the signatures; give it by keyword"
            )
        names += _PLAIN_TAIL
    if len(given) > len(names):
        raise TypeError(f"got {len(given) + 1} positional arguments, allowed are head_dim and {', '.join(names)}")
    for name, value in zip(names, given):
        if name in keywords:
            raise TypeError(f"{name}: given by position and by keyword, allowed is one of them")
        keywords[name] = value
    head_num = keywords.pop("head_num", None)
    if head_num is not None:
        check_int("head_num", head_num, 1)
    check_bool("high_precision", keywords.pop("high_precision", True))  # sums and softmax are float32 always
    use_mqa = keywords.pop("use_mqa", False)
    check_bool("use_mqa", use_mqa)
    return Arguments(keywords, head_num, use_mqa)


class Operator:
    """Stand for an operator of the earlier layers, so that code configuring it works.

    It configures nothing. The layer's own `dp`, `mp` and `shard` split its operators. `recompute()` of the cell around
    them decides whether they run again in the backward pass.
    """

    def __init__(self, name: str = ""):
        self.name = name or type(self).__name__

    def recompute(self, mode: bool = True) -> Operator:
        """Accept, without effect."""
        check_bool("mode", mode)
        return self

    def shard(self, in_strategy=None, out_strategy=None) -> Operator:
        """Accept, without effect."""
        return self

    def add_prim_attr(self, name: str, value) -> Operator:
        """Accept, without effect."""
        return self


@compile_time
def _check_width(query, head_dim):
    shape = tensor_spec("query", query).shape
    if shape and shape[-1] < head_dim:
        raise ValueError(f"query: got heads of {shape[-1]}, allowed is head_dim {head_dim} or wider")


class FlashAttention(Layer):
    """`flash_attention.FlashAttention` with either signature, see the module.

    Args:
        head_dim (int): size of a head.
        arguments, keywords: as one of the signatures has them; the keyword-only arguments of
            `flash_attention.FlashAttention` are taken too. head_num has to be the heads of query. high_precision has no
            effect, because sums and softmax are always in float32. With use_mqa, key and value have one head.

    Query, key and value may be wider than head_dim, filled with zeros. The scale stays 1 / sqrt(head_dim), and the
    output has zeros behind the heads.

    Inputs, outputs: as in `flash_attention.FlashAttention`.

    Raises:
        TypeError, ValueError: an argument is not allowed, or its meaning differs between the signatures.
    """

    argument_names = (*Layer.argument_names, ("attention_mask", "attn_mask"))
    attend = Layer.construct  # a graph finds neither `Layer.construct` nor, in a subclass, the `super()` of this class

    def __init__(self, head_dim, *arguments, **keywords):
        read = read_arguments(arguments, keywords)
        check_int("head_dim", head_dim, 1)
        super().__init__(head_dim, **{"scale": head_dim**-0.5, **read.layer})
        self.widths = None, read.layer.get("value_head_dim")
        if self.input_layout != "BNSD":
            raise ValueError(
                f"input_layout: got {self.input_layout!r}, allowed is BNSD, as in the layers this replaces"
            )
        self.head_num = read.head_num
        self.use_mqa = read.use_mqa
        self.flash_attention = Operator("flash_attention")
        self.drop_gen_mask = Operator("drop_gen_mask")
        self.fill_v2 = Operator("fill_v2")
        self.do_dropout = Operator("do_dropout")

    def construct(self, query, key, value, attn_mask=None, alibi_mask=None):
        if self.head_num is not None and query.shape[1] != self.head_num:
            raise ValueError(f"query: got {query.shape[1]} heads, allowed is head_num {self.head_num}")
        if self.use_mqa and (key.shape[1] != 1 or value.shape[1] != 1):
            raise ValueError(f"key, value: got {key.shape[1]} and {value.shape[1]} heads, allowed with use_mqa is 1")
        _check_width(spec(query), self.head_dim)
        return self.attend(query, key, value, attn_mask, alibi_mask)

    def shard(self, in_strategy=None, out_strategy=None):
        """Split as `flash_attention.FlashAttention.shard` does; without strategies, dp and mp stay as they are.

        The strategy of a dropout mask, which earlier layers have after the strategy of attention_mask, is left out:
        the keep decisions are no tensor here.
        """
        if in_strategy is None:
            return self
        if self.dropout_rate > 0 and len(in_strategy) > 4:
            in_strategy = (*in_strategy[:4], *in_strategy[5:])
        return super().shard(in_strategy, out_strategy)


_installed: dict[str, types.ModuleType | None] = {}  # our names in sys.modules, with the modules before


def install(*, replace: bool = False, flash_attn: bool = False) -> dict[str, str]:
    """Make the layer importable under the import paths of the layers it replaces.

    Call it before the code that imports them. Calling it again changes nothing.

    Args:
        replace: also if a package of that name is really installed.
        flash_attn: also `flash_attention.compat.flash_attn` under the name flash_attn.

    Returns:
        Per import path "installed", or why it was left alone.

    Examples:
        >>> import flash_attention
        >>> report = flash_attention.install()
        >>> from acctransformer.flash_attention.nn.layer.flash_attention import FlashAttention
        >>> layer = FlashAttention(128, 16, 0.0, 65536, 0, dp=1, mp=1, high_precision=True)
    """
    check_bool("replace", replace)
    check_bool("flash_attn", flash_attn)
    report = {path: _install(path, _modules_of_layer(path), replace) for path in PATHS}
    if flash_attn:
        report["flash_attn"] = _install("flash_attn", _modules_of_flash_attn(), replace)
    return report


def uninstall() -> None:
    """Undo `install`: put back the modules that stood there before."""
    for name in sorted(_installed, reverse=True):
        before = _installed.pop(name)
        parent, _, leaf = name.rpartition(".")
        if before is None:
            del sys.modules[name]
            if parent in sys.modules:
                vars(sys.modules[parent]).pop(leaf, None)
        else:
            _place(name, before)


def _install(name: str, modules: Iterator[types.ModuleType], replace: bool) -> str:
    if name not in _installed:
        if _is_there(name) and not replace:
            return "left alone: it is really installed; install(replace=True) replaces it"
        for module in modules:
            _installed[module.__name__] = sys.modules.get(module.__name__)
            _place(module.__name__, module)
    return "installed"


def _modules_of_layer(path: str) -> Iterator[types.ModuleType]:
    """Yield the missing packages around the module, then the module. Each is in place before the next is asked for."""
    packages = path.split(".")
    for depth in range(1, len(packages)):
        package = ".".join(packages[:depth])
        if not _is_there(package):
            stand_in = types.ModuleType(package, f"Stands for {package}: flash_attention.install().")
            stand_in.__path__ = []
            yield stand_in
    module: Any = types.ModuleType(path, f"FlashAttention of {__name__}: flash_attention.install().")
    module.FlashAttention = FlashAttention
    module.__all__ = ["FlashAttention"]
    yield module


def _modules_of_flash_attn() -> Iterator[types.ModuleType]:
    for leaf in ("", ".flash_attn_interface", ".bert_padding", ".layers", ".layers.rotary"):
        ours = importlib.import_module(f"flash_attention.compat.flash_attn{leaf}")
        # It has a spec, because client code asks for the spec to see whether the package is there.
        found = importlib.machinery.ModuleSpec(f"flash_attn{leaf}", None, is_package=hasattr(ours, "__path__"))
        module = importlib.util.module_from_spec(found)
        vars(module).update({name: getattr(ours, name) for name in getattr(ours, "__all__", ())})
        yield module


def _is_there(name: str) -> bool:
    """Return True if a module can be imported. Only the packages around it are imported."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _place(name: str, module: types.ModuleType) -> None:
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(importlib.import_module(parent), leaf, module)
