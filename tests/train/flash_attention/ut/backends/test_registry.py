"""Backends by name: laziness, choice, refusals."""

import concurrent.futures
import contextvars
import functools
import logging
import re
import sys
import types
from dataclasses import dataclass, replace

import pytest
from flash_attention import Call, attention_backend, cli, explain
from flash_attention.backends import registry
from flash_attention.backends.base import Backend
from flash_attention.call import AttentionRules, Paged, Varlen

CALL = Call(batch=1, heads=2, seq_q=8, seq_k=8, head_dim=16)


class Fake(Backend):
    """A backend with given answers to `unavailable` and `refuse`."""

    def __init__(self, name, unavailable=None, refusal=None):
        self.name = name
        self._unavailable, self._refusal = unavailable, refusal

    def unavailable(self):
        return self._unavailable

    def refuse(self, call):
        return self._refusal

    def build(self, call):
        return f"cell of {self.name}"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Forget the backends that were chosen, built or warned of."""
    monkeypatch.delenv(registry.ENVIRONMENT_VARIABLE, raising=False)
    registry.get_backend.cache_clear()
    registry._warn_slow.cache_clear()
    yield
    registry.get_backend.cache_clear()
    registry._warn_slow.cache_clear()


@pytest.fixture
def fakes(monkeypatch):
    """Replace all backends; returns a function that says what one of them answers."""

    def put(name, **answers):
        module = types.ModuleType(f"fake_{name}")
        module.BACKEND = Fake(name, **answers)
        monkeypatch.setitem(sys.modules, f"fake_{name}", module)
        monkeypatch.setitem(registry._MODULES, name, f"fake_{name}")
        registry.get_backend.cache_clear()

    for name in registry.backend_names():
        put(name)
    return put


def test_explain_lists_every_backend_the_choice_first(fakes):
    fakes("tik", unavailable="no device")
    fakes("fused", refusal="too long")
    verdicts = explain(CALL)
    assert set(verdicts) == set(registry.backend_names())
    assert next(iter(verdicts)) == "cpu"
    assert verdicts["tik"] == "no device"
    assert verdicts["fused"] == "too long"
    with attention_backend("emulator"):
        assert next(iter(explain(CALL))) == "emulator"


def test_automatic_choice_by_device(fakes):
    on_ascend = Call(batch=1, heads=2, seq_q=8, seq_k=8, head_dim=16, device="Ascend")
    assert registry.choose(CALL).name == "cpu"
    assert registry.choose(on_ascend).name == "tik"
    fakes("tik", refusal="bfloat16")
    assert registry.choose(on_ascend).name == "fused"
    assert registry.choose(Call(1, 2, 8, 8, 16, device="GPU")).name == "math"


def test_the_emulator_is_never_chosen_by_itself(fakes):
    for name in ("tik", "fused", "cpu", "math"):
        fakes(name, unavailable=f"no {name}")
    with pytest.raises(RuntimeError, match="no backend can run this call on CPU: cpu: no cpu; math: no math"):
        registry.choose(CALL)


def test_falling_back_to_math_warns_once_with_the_reason(fakes, caplog):
    fakes("cpu", unavailable="not built; build it with: make")
    with caplog.at_level(logging.WARNING, logger="flash_attention"):
        assert registry.choose(CALL).name == "math"
        assert registry.choose(CALL).name == "math"
    assert [record.getMessage() for record in caplog.records] == [
        "attention runs on the slow backend 'math', which stores all scores: cpu: not built; build it with: make"
    ]


def test_forcing_goes_by_argument_then_context_then_environment(fakes, monkeypatch):
    monkeypatch.setenv(registry.ENVIRONMENT_VARIABLE, "math")
    assert registry.choose(CALL).name == "math"
    with attention_backend("tik"):
        assert registry.choose(CALL).name == "tik"
        with attention_backend("fused"):
            assert registry.choose(CALL).name == "fused"
            assert registry.choose(CALL, "emulator").name == "emulator"
        assert registry.choose(CALL).name == "tik"
    assert registry.choose(CALL).name == "math"
    monkeypatch.setenv(registry.ENVIRONMENT_VARIABLE, "auto")
    assert registry.choose(CALL).name == "cpu"


def test_the_context_ends_with_an_exception(fakes):
    with pytest.raises(KeyError), attention_backend("tik"):
        raise KeyError
    assert registry.choose(CALL).name == "cpu"


def in_a_thread(function):
    """Return the result of a function that runs in a new thread."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_the_context_is_of_its_thread(fakes):
    def chosen():
        return registry.choose(CALL).name

    def of_its_own():
        with attention_backend("fused"):
            return chosen()

    with attention_backend("tik"):
        assert in_a_thread(chosen) == "cpu"
        assert in_a_thread(of_its_own) == "fused"
        assert in_a_thread(functools.partial(contextvars.copy_context().run, chosen)) == "tik"
        assert chosen() == "tik"


@pytest.mark.parametrize(
    ("storage", "what"),
    ((Varlen(count=2), "packed sequences (flash_attention_varlen)"), (Paged(16, 4), "paged cache (paged_attention)")),
)
def test_a_kind_of_call_that_a_backend_does_not_know_is_refused(fakes, storage, what):
    fakes("cpu")
    call = replace(CALL, batch=1, layout="BSND", storage=storage)
    assert registry.refusal("cpu", call) == f"it takes no {what}"


@dataclass(frozen=True)
class _MoreRules(AttentionRules):
    """The rules of a later release."""

    tilt: float = 0.0


@pytest.mark.parametrize("name", registry.backend_names())
def test_a_backend_refuses_a_rule_that_it_does_not_declare(name, monkeypatch):
    backend = registry.get_backend(name)
    monkeypatch.setattr(type(backend), "unavailable", lambda _: None)
    call = replace(CALL, rules=_MoreRules(tilt=1.0))
    assert registry.refusal(name, call) == "it takes no tilt"
    monkeypatch.setattr(type(backend), "rules", (*backend.rules, "tilt"))
    assert registry.refusal(name, call) is None


def test_fused_refuses_inputs_and_rules_that_its_operator_lacks(monkeypatch):
    monkeypatch.setattr(type(registry.get_backend("fused")), "unavailable", lambda _: None)
    causal = AttentionRules(causal=True)
    for unknown, fields in (
        ("sinks", {"sinks": True}),
        ("prefix", {"prefix": True, "rules": causal}),
        ("segment_ids, kv_segment_ids", {"segments": True}),
        ("softcap", {"rules": AttentionRules(softcap=30.0)}),
    ):
        assert registry.refusal("fused", replace(CALL, **fields)) == f"it takes no {unknown}"


def test_forcing_a_backend_that_refuses_raises_its_reason(fakes):
    fakes("tik", refusal="bfloat16: the Cube of Ascend 910 has no bfloat16")
    with attention_backend("tik"), pytest.raises(RuntimeError, match="backend 'tik' cannot run this call: bfloat16"):
        registry.choose(CALL)


@pytest.mark.parametrize("name", ("CPU", "", None, "flash"))
def test_unknown_names_are_refused(name, monkeypatch):
    with pytest.raises(ValueError, match="backend: got .* allowed are tik, fused, cpu"), attention_backend(name):
        pass
    if name:
        monkeypatch.setenv(registry.ENVIRONMENT_VARIABLE, name)
        with pytest.raises(ValueError, match="FLASH_ATTENTION_BACKEND: got"):
            registry.choose(CALL)


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("FLASH_ATTENTION_BACKEND", "cuda", "tik, fused, cpu, emulator, math, auto"),
        ("FLASH_ATTENTION_CORES", "many", "a number from 1 to 65535"),
        ("FLASH_ATTENTION_CORES", "\u00b2", "a number from 1 to 65535"),
        ("FLASH_ATTENTION_CORES", "0", "a number from 1 to 65535"),
        ("FLASH_ATTENTION_FORMS", "tensor_move=yes", "shifted_operands=0 or =1"),
        ("FLASH_ATTENTION_CPU_ISA", "sse9", "scalar"),
        ("FLASH_ATTENTION_CPU_POISON", "yes", "0 and 1"),
    ],
)
def test_nonsense_in_a_variable_is_an_error_on_every_way(variable, value, allowed, monkeypatch, capsys):
    """Neither is the variable ignored nor another backend taken. Empty is as if it were not set."""
    monkeypatch.setenv(variable, "")
    assert registry.choose(CALL).name == next(iter(explain(CALL))) == "cpu"
    monkeypatch.setenv(variable, value)
    for ask in (registry.choose, explain):
        with pytest.raises(ValueError, match=f"{variable}: got '{re.escape(value)}', allowed.*{allowed}"):
            ask(CALL)
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err.startswith(f"flash-attention info: {variable}: got ")


def test_explain_wants_a_call():
    with pytest.raises(TypeError, match="call: got str 'cpu', allowed is a flash_attention.Call"):
        explain("cpu")


def test_a_missing_module_is_a_reason_not_a_crash(monkeypatch):
    monkeypatch.setitem(registry._MODULES, "tik", "flash_attention.backends.nowhere")
    assert explain(CALL)["tik"] == "this installation has no module flash_attention.backends.nowhere"


def test_a_module_that_fails_to_import_says_why(monkeypatch, tmp_path):
    (tmp_path / "broken_backend.py").write_text("import no_such_driver\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry._MODULES, "tik", "broken_backend")
    assert explain(CALL)["tik"] == "importing broken_backend failed: No module named 'no_such_driver'"
