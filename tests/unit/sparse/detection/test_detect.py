"""Detection: little programs with the right answer known, and what is said about them."""

import linecache
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import sparse_programs
from support.sparse_programs import DENSE, IDS, PARAMS, SPARSE, D, T, V, W, end

from ampjax.errors import DataError, ParameterError, SettingsError
from ampjax.sparse.detection.detect import find_sparse

PROGRAMS = SPARSE + DENSE


def leaf(variable):
    """The name by which a program knows a leaf: the first key of its path."""
    return re.match(r"\['(\w+)'\]", variable.path)[1]


def test_names_are_distinct():
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 80


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_right_answer(program):
    analysis = find_sparse(program.loss, program.params, program.batch)
    assert {leaf(v) for v in analysis if v.sparse} == set(program.sparse), str(analysis)
    for variable in analysis:
        if leaf(variable) in program.why:
            assert not variable.sparse
            assert program.why[leaf(variable)] in variable.reason


def test_a_notebooks_line_is_given_as_it_is_written(monkeypatch):
    cell = "def loss(params, batch):\n    rows = params['T'][batch]\n    return rows.sum()\n"
    file = "/tmp/ipykernel_12/34.py"
    monkeypatch.setitem(
        linecache.cache,
        file,
        (len(cell), None, cell.splitlines(True), file),
    )
    scope = {}
    exec(compile(cell, file, "exec"), scope)
    (variable,) = find_sparse(
        scope["loss"],
        {"T": np.ones((9, 2), np.float32)},
        np.array([1, 2]),
    )
    assert variable.sparse and "(`rows = params['T'][batch]`)" in variable.reason


def test_rows_from_a_function_of_the_old_rows_are_no_rows_that_are_written():
    def loss(params, batch):
        rows = jax.lax.stop_gradient(params["T"]).at[0].apply(jnp.exp)[batch]
        return (rows * params["w"]).sum()

    params = {
        "T": np.ones((9, 2), np.float32),
        "w": np.ones(2, np.float32),
    }
    analysis = find_sparse(loss, params, np.array([1, 2]))
    assert not any(variable.sparse for variable in analysis)


@pytest.mark.parametrize("name", ["tied softmax", "take", "nested jit"])
def test_reasons_name_the_users_line(name):
    (program,) = (p for p in PROGRAMS if p.name == name)
    (variable,) = (
        v for v in find_sparse(program.loss, program.params, program.batch) if leaf(v) == "T"
    )
    line = program.loss.__code__.co_firstlineno
    lines = [int(n) for n in re.findall(r"sparse_programs\.py:(\d+)", variable.reason)]
    assert lines and all(line < n < line + 5 for n in lines)


def test_shapes_are_enough():
    shapes = jax.eval_shape(lambda: (PARAMS, IDS))
    analysis = find_sparse(
        lambda p, ids: end(p, p["T"][ids]),
        *shapes,
    )
    assert analysis.sparse == ("['T']",)
    assert (analysis["['T']"].shape, analysis["['T']"].dtype) == ((V, D), jnp.float32)


def test_numpys_wide_types_are_what_jax_makes_of_them():
    params = {
        "T": np.zeros((V, D)),
        "W": np.zeros((D, D)),
    }
    analysis = find_sparse(
        lambda p, ids: end(p, p["T"][ids]),
        params,
        np.arange(3),
    )
    assert analysis["['T']"].sparse and analysis["['T']"].dtype == jnp.float32


def test_the_threshold_is_an_option():
    def loss(p, ids):
        return end(p, p["T"][ids])

    assert not find_sparse(loss, PARAMS, IDS, min_rows=V + 1)["['T']"].sparse
    assert find_sparse(
        loss,
        {"T": T[:7], "W": W},
        IDS,
        min_rows=7,
    )["['T']"].sparse


def test_printed():
    text = str(
        find_sparse(
            lambda p, ids: end(p, p["T"][ids]),
            PARAMS,
            IDS,
        )
    )
    assert re.fullmatch(
        r"\['T'\]  float32\[97, 4\]  sparse  1 read: gather promise_in_bounds \(test_detect\.py:\d+\)\n"
        r"\['W'\]  float32\[4, 4\]   dense   4 rows, fewer than 8",
        text,
    )


def test_numbers_in_a_batch_are_welcome():
    analysis = find_sparse(
        lambda p, b: end(p, p["T"][b["ids"]]) * b["scale"],
        PARAMS,
        {"ids": IDS, "scale": 2.0},
    )
    assert analysis.sparse == ("['T']",)


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda p, ids: p["T"][ids], r"float32\[2,3,4\]"),
        (lambda p, ids: ids.sum(), r"int32\[\]"),
        (lambda p, ids: {"loss": jnp.float32(0)}, "dict"),
        (lambda p, ids: (p["T"][ids], 0), r"float32\[2,3,4\]"),
        (lambda p, ids: (jnp.float32(0), 1, 2), "tuple"),
        (lambda p, ids: None, "NoneType"),
    ],
    ids=["rows", "integer", "dict", "aux without a scalar", "three results", "nothing"],
)
def test_a_loss_that_is_no_scalar(loss, got):
    with pytest.raises(
        SettingsError, match=rf"loss_fn.*expected a float scalar.*got {got}\. Take the mean"
    ):
        find_sparse(loss, PARAMS, IDS)


@pytest.mark.parametrize(
    ("params", "got"),
    [
        ({"n": jnp.arange(3)}, "`n` int32"),
        ({}, "no leaf at all"),
    ],
    ids=["integers only", "empty"],
)
def test_parameters_without_floats(params, got):
    with pytest.raises(
        ParameterError, match=rf"parameters: expected at least one float leaf, got {got}\."
    ):
        find_sparse(lambda p, ids: 0.0, params, IDS)


def test_a_parameter_that_is_no_array():
    with pytest.raises(ParameterError, match=r"parameter `a`: expected an array, got float 1\.0"):
        find_sparse(lambda p, ids: p["a"], {"a": 1.0}, IDS)


def test_a_batch_with_text():
    with pytest.raises(
        DataError, match=r"batch, leaf `text`: expected an array or a number, got str 'hello'"
    ):
        find_sparse(
            lambda p, b: end(p, p["T"]),
            PARAMS,
            {"text": "hello"},
        )


def test_the_users_own_error_comes_through():
    with pytest.raises(KeyError, match="missing"):
        find_sparse(lambda p, ids: p["missing"], PARAMS, IDS)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        find_sparse(
            lambda p, ids: 1.0 if p["T"][0, 0] > 0 else 2.0,
            PARAMS,
            IDS,
        )


def test_no_program_of_the_list_is_computed(monkeypatch):
    monkeypatch.setattr(
        jax.core.Tracer, "__bool__", lambda self: pytest.fail("a value was asked for")
    )
    for program in sparse_programs.SPARSE[:5]:
        find_sparse(
            program.loss,
            *jax.eval_shape(lambda p=program: (p.params, p.batch)),
        )
