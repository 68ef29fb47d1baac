"""The check on demand, and the warning."""

import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import NumericsError, NumericsWarning
from ampjax.numerics import check, patterns
from ampjax.numerics.check import warn_of_wrong_numbers
from ampjax.numerics.guard import Guard, with_flag

pytestmark = pytest.mark.users


def test_this_process_computes_right_numbers():
    assert amp.check_numerics().startswith(
        f"jax {jax.__version__} computes all 3 known patterns rightly on this CPU, with"
    )


@pytest.fixture
def wrong(monkeypatch):
    """A process whose kernels are wrong, and whose guard came too late; gives the names of the patterns that were compiled."""
    compiled = []

    def jit(function):
        compiled.append(function)
        return lambda *arguments: function(*arguments) * np.float32(1.01)

    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=-reduce")
    monkeypatch.setattr(patterns, "jax", SimpleNamespace(**{**vars(jax), "jit": jit}))
    monkeypatch.setattr(check, "GUARD", Guard("guard", "-reduce", in_time=False))
    monkeypatch.setattr(check, "_asked", [])
    return compiled


def test_wrong_numbers_are_an_error(wrong):
    with pytest.raises(
        NumericsError,
        match=r"check_numerics: expected XLA's kernels on this CPU to agree with NumPy, got other numbers for \d of 3 known patterns, first sum\(\(x @ constant\) \* w\) over matrices: .* in place of .*import ampjax first",
    ):
        amp.check_numerics()


def test_numbers_that_are_none_are_wrong(monkeypatch):
    monkeypatch.setattr(
        patterns, "jax", SimpleNamespace(**{**vars(jax), "jit": lambda f: lambda *x: f(*x) * np.float32("nan")})
    )
    assert len(patterns.wrong_patterns()) == 3


def test_the_warning_comes_once_in_a_process(wrong):
    with pytest.warns(NumericsWarning, match="Trainer: expected XLA's kernels"):
        warn_of_wrong_numbers("Trainer", jax.local_devices())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_wrong_numbers("get_runner", jax.local_devices())
    assert len(wrong) == 3


@pytest.mark.parametrize(
    "guard, platform",
    [
        (Guard("guard", "-reduce", in_time=True), "cpu"),
        (Guard("unneeded", None, in_time=True), "cpu"),
        (Guard("guard", "-reduce", in_time=False), "gpu"),
    ],
    ids=["in time", "not needed", "no CPU"],
)
def test_nothing_is_compiled_where_numbers_are_known_to_be_right(guard, platform, wrong, monkeypatch):
    set_value(guard.value, monkeypatch)
    monkeypatch.setattr(check, "GUARD", guard)
    warn_of_wrong_numbers("Trainer", [SimpleNamespace(platform=platform)])
    assert wrong == []


@pytest.mark.parametrize(
    "guard, advice",
    [
        (
            Guard("environment", "-dot", in_time=True),
            "XLA_FLAGS sets --xla_cpu_experimental_ynn_fusion_type=-dot; take it out",
        ),
        (Guard("environment", "-reduce", in_time=False), "JAX had started before"),
        (Guard("unknown", None, in_time=True), "install another version of jaxlib"),
    ],
    ids=["the user's value", "set too late", "no such flag"],
)
def test_the_advice_fits_the_cause(guard, advice, wrong, monkeypatch):
    set_value(guard.value, monkeypatch)
    monkeypatch.setattr(check, "GUARD", guard)
    with pytest.raises(NumericsError, match=advice):
        amp.check_numerics()


def test_the_advice_where_flags_were_overwritten_after_the_import(wrong, monkeypatch):
    monkeypatch.setattr(check, "GUARD", Guard("guard", "-reduce", in_time=True))
    set_value(None, monkeypatch)
    with pytest.raises(NumericsError, match="XLA_FLAGS was changed after ampjax was imported"):
        amp.check_numerics()


def set_value(value, monkeypatch):
    """Puts a value of the flag into `XLA_FLAGS`; None takes the flag away."""
    monkeypatch.setenv("XLA_FLAGS", "" if value is None else with_flag("", value))
