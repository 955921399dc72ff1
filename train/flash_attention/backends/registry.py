"""Backends by name, and the choice between them."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import logging
import os
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from flash_attention import __version__
from flash_attention.backends.base import Backend
from flash_attention.call import Call
from flash_attention.call.checks import check_name
from flash_attention.call.literals import BackendName
from flash_attention.duplicate_installs import warn_of_duplicate_installs
from flash_attention.variables import check_variables

if TYPE_CHECKING:
    from mindspore.nn import Cell

    from flash_attention.call.block_mask import BlockMask
    from flash_attention.sharding.shard import Shard

logger = logging.getLogger("flash_attention")

ENVIRONMENT_VARIABLE = "FLASH_ATTENTION_BACKEND"

# Where each backend lives. A module is imported on first use, so that one backend's requirements burden no other.
_MODULES = {
    "tik": "flash_attention.backends.tik",
    "fused": "flash_attention.backends.fused",
    "cpu": "flash_attention.backends.cpu",
    "emulator": "flash_attention.backends.emulator",
    "math": "flash_attention.backends.math",
}

# The backends that the automatic choice tries, in order. The emulator is for development: only its name chooses it.
_PREFERENCE = {"Ascend": ("tik", "fused", "math"), "CPU": ("cpu", "math"), "GPU": ("math",)}

_override: contextvars.ContextVar[str | None] = contextvars.ContextVar("flash_attention_backend", default=None)


class _Missing(Backend):
    """Stand for a backend whose module cannot be imported."""

    def __init__(self, name: str, reason: str):
        self.name = name
        self._reason = reason

    def unavailable(self) -> str | None:
        return self._reason

    def refuse(self, call: Call) -> str | None:
        return self._reason

    def build(self, call: Call, shard: Shard | None = None) -> Cell:
        raise RuntimeError(f"backend {self.name!r}: {self._reason}")


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends, usable here or not."""
    return tuple(_MODULES)


@functools.cache
def get_backend(name: str) -> Backend:
    """Return the backend called `name`. If its module cannot be imported, the backend says why."""
    check_name("backend", name, _MODULES)
    module = _MODULES[name]
    try:
        backend = getattr(importlib.import_module(module), "BACKEND", None)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            return _Missing(name, f"this installation has no module {module}")
        return _Missing(name, f"importing {module} failed: {error}")
    return backend or _Missing(name, f"{module} defines no BACKEND")


def serves_native() -> bool:
    """Return True if the native CPU kernel runs rotary embedding and changes of caches.

    There is no choice of backends for these.
    """
    import mindspore

    return mindspore.get_context("device_target") == "CPU" and get_backend("cpu").unavailable() is None


def refusal(name: str, call: Call, sharded: bool = False) -> str | None:
    """Return why backend `name` cannot run `call` here, or None if it can.

    `sharded`: as the share of one device of a graph that MindSpore shards.
    """
    backend = get_backend(name)
    reason = backend.unavailable()
    if reason is None and call.dynamic and call.kind not in backend.dynamic:
        reason = "takes no dynamic shapes in a graph: compile it for each shape (no set_inputs), or use PYNATIVE"
    if reason is None and sharded:
        reason = backend.refuse_sharded()
    if call.empty:  # no backend runs an empty call
        return reason or ("nothing is to be split over devices: a size is 0" if sharded else None)
    return reason or unknown(call, backend) or backend.refuse(call)


def unknown(call: Call, backend: Backend) -> str | None:
    """Return what of a call the backend does not declare, or None: its kind, its inputs, its rules."""
    functions = {"varlen": "packed sequences (flash_attention_varlen)", "paged": "paged cache (paged_attention)"}
    if call.kind not in backend.kinds:
        return f"it takes no {functions[call.kind]}"
    names = [name for name in call.inputs if name not in backend.takes]
    for rule in fields(call.rules):
        if getattr(call.rules, rule.name) != rule.default and rule.name not in backend.rules:
            names.append(rule.name)
    return f"it takes no {', '.join(names)}" if names else None


def available_backends() -> tuple[str, ...]:
    """Return the names of the backends that can run on this machine and device. They may still refuse a particular
    call.
    """
    return tuple(name for name in _MODULES if get_backend(name).unavailable() is None)


def explain(call: Call, block_mask: BlockMask | None = None) -> dict[str, str]:
    """Return every backend's verdict on `call`: "ok", or the reason why it cannot run it. The choice comes first.

    Args:
        call: the call.
        block_mask: of the call. Behind "ok" then stand the tiles that row blocks visit, and what becomes of the others.
            Default: None.

    Raises:
        TypeError: `call` is no Call, or `block_mask` no BlockMask.
        ValueError: the mask does not fit the call, or an environment variable of this package holds nonsense.

    Examples:
        >>> from flash_attention import Call, explain
        >>> call = Call(batch=1, heads=8, seq_q=1024, seq_k=1024, head_dim=128)
        >>> for name, verdict in explain(call).items():
        ...     print(name, verdict)
    """
    if not isinstance(call, Call):
        raise TypeError(f"call: got {type(call).__name__} {call!r}, allowed is a flash_attention.Call")
    check_variables()
    remarks = {}
    if block_mask is not None:
        from flash_attention.call.visits import masked, visits

        call = masked(call, block_mask)
        counted = f": {visits(call, block_mask)}; "
        remarks = {name: counted + get_backend(name).fate_of_hidden_tiles(call) for name in _MODULES}
    verdicts = {name: refusal(name, call) or "ok" for name in _MODULES}
    order = _PREFERENCE.get(call.device, ("math",))
    forced = forced_backend()
    if forced is not None:
        order = (forced,)
    chosen = [name for name in order if verdicts[name] == "ok"][:1]
    names = *chosen, *(other for other in verdicts if other not in chosen)
    return {name: verdicts[name] + (remarks.get(name, "") if verdicts[name] == "ok" else "") for name in names}


def forced_backend(requested: str | None = None) -> str | None:
    """Return the name of the forced backend, or None for the automatic choice.

    `requested` (an argument of the caller) goes before `attention_backend`, and that before the environment variable.
    """
    if requested is not None:
        check_name("backend", requested, _MODULES)
        return requested
    if _override.get() is not None:
        return _override.get()
    name = os.environ.get(ENVIRONMENT_VARIABLE, "").strip() or "auto"
    check_name(ENVIRONMENT_VARIABLE, name, (*_MODULES, "auto"))
    return None if name == "auto" else name


def prepares_block_masks(requested: str | None, device: str) -> bool:
    """Return if a backend that may run a call prepares block masks."""
    names = _PREFERENCE.get(device, ("math",)) if requested is None else (requested,)
    return any(get_backend(name).prepares_block_masks for name in names)


def choose(call: Call, requested: str | None = None, sharded: bool = False) -> Backend:
    """Return the backend that runs `call`; see `refusal` about `sharded`.

    Raises:
        ValueError: the forced backend does not exist.
        RuntimeError: the forced backend refuses the call, or every backend does; with the reasons.
    """
    from flash_attention.backends.composed.empty import EmptyCalls

    chosen = _choice(call, requested, sharded)
    if call.empty:
        return EmptyCalls(chosen.name)
    _warn_of_duplicate_installs()
    if call.dropout_threshold and not call.keep_bits:
        _warn_of_rounding(call.rules.dropout_rate, call.dropped_share)
    return chosen


def _choice(call: Call, requested: str | None, sharded: bool) -> Backend:
    check_variables()
    forced = forced_backend(requested)
    if forced is not None:
        reason = refusal(forced, call, sharded)
        if reason is not None:
            raise RuntimeError(f"backend {forced!r} cannot run this call: {reason}")
        return get_backend(forced)
    order = _PREFERENCE.get(call.device, ("math",))
    reasons: list[str] = []
    for name in order:
        reason = refusal(name, call, sharded)
        if reason is None:
            if name == "math" and reasons:
                _warn_slow(tuple(reasons))
            return get_backend(name)
        reasons.append(f"{name}: {reason}")
    raise RuntimeError(f"no backend can run this call on {call.device}: " + "; ".join(reasons))


@contextlib.contextmanager
def attention_backend(name: BackendName) -> Iterator[None]:
    """Use backend `name` for every attention call inside the block.

    A graph takes its backend when it is compiled: enter the block before the first call of a network in GRAPH mode.

    The block acts on its own thread and the coroutines of that thread (it sets a `contextvars` variable). Other threads
    keep their choice, also those that start inside it. To hand it on, run the thread's function in
    `contextvars.copy_context()`. To choose for the whole process, set FLASH_ATTENTION_BACKEND.

    Args:
        name: "tik", "fused", "cpu", "emulator" or "math".

    Raises:
        ValueError: no backend has that name.
    """
    check_name("backend", name, _MODULES)
    token = _override.set(name)
    try:
        yield
    finally:
        _override.reset(token)


@functools.cache
def _warn_of_duplicate_installs() -> None:
    warn_of_duplicate_installs(__version__)


@functools.cache
def _warn_of_rounding(rate: float, drawn: float) -> None:
    if abs(drawn - rate) > 1e-3 * (1 - rate):
        logger.warning(
            "dropout_rate: got %r, but decisions are drawn by 16 bits, at a rate of %r; keep_bits take any rate",
            rate,
            drawn,
        )


@functools.cache
def _warn_slow(reasons: tuple) -> None:
    logger.warning("attention runs on the slow backend 'math', which stores all scores: %s", "; ".join(reasons))
