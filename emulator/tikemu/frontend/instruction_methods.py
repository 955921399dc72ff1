"""Methods of ``tik.Tik`` for the instructions.

Each has the documented parameters, converts its arguments and records one statement.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable

from ..errors import TikUnsupportedError
from ..isa import registry
from ..program.location import GENERATED, fail
from .signatures import checked_call
from .tracebacks import short_traceback


def _method(spec: Any) -> Callable[..., Any]:
    """Return a method with the signature of an instruction."""
    defaults, parameters, entries = {}, ["self"], []
    for name, parameter in spec.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            parameters.append(f"*{name}")
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            parameters.append(f"**{name}")
        elif parameter.default is inspect.Parameter.empty:
            parameters.append(name)
        else:
            defaults[f"_{name}"] = parameter.default
            parameters.append(f"{name}=_{name}")
        entries.append(f"{name!r}: {name}")
    source = (
        f"def {spec.name}({', '.join(parameters)}):\n"
        f"    return self._recorder.instruction(_spec, {{{', '.join(entries)}}})\n"
    )
    namespace = {"_spec": spec, **defaults}
    exec(compile(source, f"{GENERATED}{spec.name}>", "exec"), namespace)
    method = namespace[spec.name]
    method.__doc__, method.__qualname__ = spec.doc, f"Tik.{spec.name}"
    return checked_call(method, spec.aliases)


def _refusal(name: str, reason: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        fail(f"{name} is not supported on {self._recorder.soc.name}: {reason}", TikUnsupportedError)

    method.__name__, method.__qualname__, method.__doc__ = name, f"Tik.{name}", f"Refused: {reason}"
    return short_traceback(method)


def instruction_methods() -> dict[str, Callable[..., Any]]:
    """Add a method for every instruction, and a refusing method for every unsupported name."""
    methods = {name: _method(spec) for name, spec in registry.specs().items()}
    return {**methods, **{name: _refusal(name, reason) for name, reason in registry.unsupported().items()}}
