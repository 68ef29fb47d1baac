"""The check on demand, and the warning."""

import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import NumericsError, NumericsWarning
from ampjax.numerics import array_writes, check, patterns
from ampjax.numerics.check import warn_of_wrong_numbers
from ampjax.numerics.guard import FlagGuard, with_flag

pytestmark = pytest.mark.users


@pytest.fixture
def right_writes(monkeypatch):
    """A jaxlib in which writes into arrays are right and quick."""

    def jit(function):
        def operation_by_operation(*args):
            with jax.disable_jit():
                return function(*args)

        return operation_by_operation

    monkeypatch.setattr(
        array_writes,
        "jax",
        SimpleNamespace(**{**vars(jax), "jit": jit}),
    )
    monkeypatch.setattr(check, "slowness_of_writes", lambda: 2.0)


def test_this_process_computes_right_numbers(right_writes):
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
    monkeypatch.setattr(
        patterns,
        "jax",
        SimpleNamespace(**{**vars(jax), "jit": jit}),
    )
    monkeypatch.setattr(check, "GUARD", FlagGuard("guard", "-reduce", in_time=False))
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
        patterns,
        "jax",
        SimpleNamespace(
            **{
                **vars(jax),
                "jit": lambda f: lambda *x: f(*x) * np.float32("nan"),
            }
        ),
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
        (FlagGuard("guard", "-reduce", in_time=True), "cpu"),
        (FlagGuard("unneeded", None, in_time=True), "cpu"),
        (FlagGuard("guard", "-reduce", in_time=False), "gpu"),
    ],
    ids=["in time", "not needed", "no CPU"],
)
def test_nothing_is_compiled_where_numbers_are_known_to_be_right(
    guard, platform, wrong, monkeypatch
):
    set_value(guard.value, monkeypatch)
    monkeypatch.setattr(check, "GUARD", guard)
    warn_of_wrong_numbers("Trainer", [SimpleNamespace(platform=platform)])
    assert wrong == []


@pytest.mark.parametrize(
    "guard, advice",
    [
        (
            FlagGuard("environment", "-dot", in_time=True),
            "XLA_FLAGS sets --xla_cpu_experimental_ynn_fusion_type=-dot; take it out",
        ),
        (FlagGuard("environment", "-reduce", in_time=False), "JAX had started before"),
        (FlagGuard("unknown", None, in_time=True), "install another version of jaxlib"),
    ],
    ids=["the user's value", "set too late", "no such flag"],
)
def test_the_advice_fits_the_cause(guard, advice, wrong, monkeypatch):
    set_value(guard.value, monkeypatch)
    monkeypatch.setattr(check, "GUARD", guard)
    with pytest.raises(NumericsError, match=advice):
        amp.check_numerics()


def test_the_advice_where_flags_were_overwritten_after_the_import(wrong, monkeypatch):
    monkeypatch.setattr(check, "GUARD", FlagGuard("guard", "-reduce", in_time=True))
    set_value(None, monkeypatch)
    with pytest.raises(NumericsError, match="XLA_FLAGS was changed after ampjax was imported"):
        amp.check_numerics()


def set_value(value, monkeypatch):
    """Puts a value of the flag into `XLA_FLAGS`; None takes the flag away."""
    monkeypatch.setenv("XLA_FLAGS", "" if value is None else with_flag("", value))


def plain_jax_moves_rows_wrongly():
    """Asked of JAX directly, in the form of the report."""
    base = np.arange(128, dtype=np.int32).reshape(
        8,
        16,
    )
    moved = jax.jit(lambda x: (x + 1).at[1:].set((x + 1)[:-1]).reshape(1, 8, 16))(base)
    return not np.array_equal(
        moved[0],
        np.concatenate([base[:1], base[:-1]]) + 1,
    )


@pytest.mark.slow
def test_rows_that_are_moved_on_in_place_are_told_where_they_come_out_wrong(monkeypatch):
    monkeypatch.setattr(check, "slowness_of_writes", lambda: 2.0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        amp.check_numerics()
    assert bool(told) == plain_jax_moves_rows_wrongly()
    for each in told:
        assert str(each.message).startswith(
            "check_numerics: expected XLA's kernels on this CPU to agree with NumPy, got other numbers for `h.at[1:]"
        )
        assert str(each.message).endswith(f" {array_writes.INSTEAD}")
        assert each.filename == __file__
    assert bool(array_writes.advice_on_moved_rows()) == bool(told)


def test_each_moved_register_has_numpys_answer(right_writes):
    """JAX agrees where it computes one operation after the other."""
    assert len(list(array_writes.moved_rows())) == 3
    assert array_writes.wrongly_moved() == []


def test_what_is_advised_comes_out_right():
    h = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    moved = jax.jit(lambda h: jax.numpy.concatenate([h[:1], h[:-1]])[:, None])(h)
    np.testing.assert_array_equal(
        moved[:, 0],
        np.concatenate([h[:1], h[:-1]]),
    )


def test_slow_writes_are_told(right_writes, monkeypatch):
    monkeypatch.setattr(check, "slowness_of_writes", lambda: 2335.4)
    with pytest.warns(
        NumericsWarning,
        match=r"four kilobytes, got 2,335 times as long in jaxlib .*another version",
    ):
        amp.check_numerics()


def test_times_of_writes_are_compared(monkeypatch):
    """A machine on which a write costs as much as the array is large."""
    monkeypatch.setattr(array_writes, "_seconds", lambda size: 1e-9 * size)
    assert array_writes.slowness_of_writes() == 1024
