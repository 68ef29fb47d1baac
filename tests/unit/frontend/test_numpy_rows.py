"""Operations on all rows in NumPy, beside JAX's own results under `vmap`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampjax.frontend.deduction.numpy_rows import rows_in_numpy

RNG = np.random.default_rng(0)
ROWS = {
    "n": RNG.integers(-5, 6, 50).astype(np.int32),
    "v": RNG.integers(
        -5,
        6,
        (50, 4),
    ).astype(np.int32),
    "x": RNG.normal(size=(50, 4)).astype(np.float32),
    "flags": RNG.random((50, 4)) < 0.5,
}


def require_same(equation, found, wanted):
    assert found.dtype == wanted.dtype, equation
    assert found.shape == wanted.shape, equation
    assert found.tobytes() == wanted.tobytes(), equation


def done_in_numpy(function, rows):
    """The names of a function's operations that NumPy does, each checked beside JAX."""
    first = {name: values[0] for name, values in rows.items()}
    jaxpr = jax.make_jaxpr(function)(first)
    done = []

    def run(jaxpr, values):
        known = dict(zip(jaxpr.invars, values, strict=True))

        def read(atom):
            return (atom.val, False) if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            given = [read(atom) for atom in equation.invars]
            operands = [value for value, _ in given]
            is_column = [is_one for _, is_one in given]
            bind = lambda *row, e=equation: e.primitive.bind(*row, **e.params)
            if equation.primitive.name in ("jit", "pjit"):
                results = run(equation.params["jaxpr"].jaxpr, given)
            elif not any(is_column):
                results = [(bind(*operands), False)]
            else:
                axes = [0 if is_one else None for is_one in is_column]
                wanted = np.asarray(jax.vmap(bind, axes)(*operands))
                found = rows_in_numpy(equation, operands, is_column)
                if found is not None:
                    done.append(equation.primitive.name)
                    require_same(equation, found[0], wanted)
                results = [(wanted, True)]
            known |= dict(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    run(
        jaxpr.jaxpr,
        [(values, True) for values in jax.tree.leaves(rows)],
    )
    return done


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda r: r["n"][None], "broadcast_in_dim"),
        (lambda r: jnp.broadcast_to(r["v"], (3, 4)), "broadcast_in_dim"),
        (
            lambda r: jnp.broadcast_to(
                r["x"][:, None],
                (4, 2),
            ),
            "broadcast_in_dim",
        ),
        (lambda r: r["x"].reshape(2, 2), "reshape"),
        (lambda r: jnp.squeeze(r["v"].reshape(1, 4, 1)), "squeeze"),
        (
            lambda r: jnp.pad(
                r["x"],
                (1, 3),
                constant_values=2.0,
            ),
            "pad",
        ),
        (
            lambda r: jnp.pad(
                r["v"].reshape(2, 2),
                ((0, 1), (2, 0)),
            ),
            "pad",
        ),
        (lambda r: r["v"] + r["v"] * 3, "add"),
        (
            lambda r: jnp.where(
                r["flags"],
                r["v"],
                7,
            ),
            "select_n",
        ),
        (lambda r: (r["v"] < 2).astype(jnp.float32), "lt"),
        (lambda r: jnp.sum(r["v"]), "reduce_sum"),
        (
            lambda r: jnp.max(
                r["v"].reshape(2, 2),
                axis=1,
            ),
            "reduce_max",
        ),
        (lambda r: jnp.min(r["v"], keepdims=True), "reduce_min"),
        (lambda r: jnp.maximum(r["x"], 0.5), "max"),
        (
            lambda r: jnp.minimum(
                r["x"],
                r["x"] * 2,
            ),
            "min",
        ),
    ],
)
def test_numpy_does_as_jax_does(function, name):
    assert name in done_in_numpy(function, ROWS)


@pytest.mark.parametrize(
    "function",
    [
        lambda r: jnp.sum(r["x"]),
        lambda r: r["x"] * 2,
        lambda r: jnp.exp(r["x"]),
        lambda r: r["x"].astype(jnp.int32),
        lambda r: jnp.maximum(r["x"] * 0, 0.0),  # zeros have a sign
        lambda r: jnp.maximum(r["x"] / 0, jnp.nan),
        lambda r: jnp.maximum(r["x"] * 1e-38, 1e-39),
        lambda r: jax.lax.pad(
            r["x"],
            0.0,
            [(0, 0, 1)],
        ),
        lambda r: jax.lax.pad(
            r["x"],
            0.0,
            [(-1, 0, 0)],
        ),
        lambda r: jax.lax.pad(
            r["x"],
            r["x"][0],
            [(1, 0, 0)],
        ),
    ],
)
def test_what_rounds_or_is_unclear_is_left_to_jax(function):
    moves = {"slice", "squeeze", "reshape", "broadcast_in_dim"}
    assert not {*done_in_numpy(function, ROWS)} - moves


@pytest.mark.parametrize(
    "dtype",
    [jnp.bfloat16, jnp.float16, jnp.float32],
)
def test_floats_become_integers_as_in_jax(dtype):
    """JAX takes the nearest integer of the dtype, and 0 for NaN; NumPy the last bits of the number."""
    rows = {
        "x": np.array(
            [300.0, -5.0, np.nan, 1e4],
            dtype,
        )
    }
    assert (
        done_in_numpy(
            lambda rows: rows["x"].astype(jnp.uint8),
            rows,
        )
        == []
    )
