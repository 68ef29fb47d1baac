"""The eager oracle: no two operations are compiled together, float32 is widened, and what can't be evaluated so is told."""

import logging
import re

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from support import graphs

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import GraphError, SettingsError
from ampjax.jaxprs.primitives import CALLS, REMATERIALIZED
from ampjax.numerics.differences import compare
from ampjax.testing import init_params, reference

pytestmark = pytest.mark.slow

D = 3
PRIMITIVES = {
    getattr(jax.extend.core.primitives, name).name
    for name in dir(jax.extend.core.primitives)
    if name.endswith("_p")
}
PRIMITIVES.add("stage")  # the identity, which is not listed
OF_SEVERAL = {
    "scan",
    "while",
    "cond",
    "custom_jvp_call",
    "custom_vjp_call",
    *CALLS,
    *REMATERIALIZED,
}
"""Primitives that stand for several operations."""


def fused_wrongly(w, x):
    """XLA on CPUs computes this wrong where its fusion of reductions is on (jaxlib 0.10.2 and 0.12)."""
    return ((x @ jnp.full_like(x, 0.7)) * w).sum()


def loops(w, x):
    x = jax.lax.scan(
        lambda c, _: (jnp.tanh(c * w), c),
        x,
        None,
        length=3,
    )[0]
    return jax.lax.fori_loop(
        0,
        2,
        lambda i, c: c + jnp.sin(c * w),
        x,
    )


def a_while(w, x):
    n = jax.lax.while_loop(
        lambda n: n < 3, lambda n: n + 1, 0
    )  # which JAX can't differentiate when it is compiled
    return w * x / n


def a_branch(w, x):
    return jax.lax.cond(
        x.sum() > 0,
        lambda a: jnp.exp(a * w),
        lambda a: a - w,
        x,
    )


def library(w, x):
    """`jit` and `custom_jvp` inside of JAX's own functions."""
    return jax.nn.softmax(jax.nn.relu(x * w)) + jax.nn.gelu(x) + jax.nn.logsumexp(x * w)


def rematerialised(w, x):
    return jax.checkpoint(lambda a: jnp.sin(jnp.tanh(a * w)))(x)


@jax.custom_vjp
def cube(x):
    return x * x * x


cube.defvjp(
    lambda x: (cube(x), x),
    lambda x, g: (3 * g * x * x,),
)


def own_rule(w, x):
    return cube(x * w)


def one_node(body, shape=(D,), value=0.7):
    with ag.Graph() as g:
        y = ag.ppt(
            "node",
            body,
            params=np.full(shape, value, np.float32),
        )(ag.pump("x", shape))
        ag.sink("y", y)
        ag.loss(
            "loss",
            lambda y: 0.5 * jnp.sum(y * y),
        )(y)
    return g


def some(shape=(D,), n=2):
    result = []
    for i in range(n):
        result.append({"x": np.random.default_rng(i).normal(size=shape).astype(np.float32)})
    return result


@pytest.mark.nightly
def test_single_operations_are_compiled_only(caplog):
    bodies = [loops, a_while, a_branch, library, rematerialised, own_rule]
    unused = 11  # features that no other test has: nothing is compiled already
    with ag.Graph() as g:
        y = ag.pump("x", (unused,))
        for body in bodies:
            y = ag.ppt(
                body.__name__,
                body,
                params=np.full(unused, 0.7, np.float32),
            )(y)
        ag.loss(
            "loss",
            lambda y: 0.5 * jnp.sum(y * y),
        )(y)
    params = {}
    for body in bodies:
        params[body.__name__] = np.full(unused, 0.7, np.float32)
    data = some((unused,))
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        got = reference(g, params, data, oracle="eager")
    names = set(re.findall(r"Compiling jit\((.*?)\) with", caplog.text))
    assert {"tanh", "mul"} <= names <= PRIMITIVES - OF_SEVERAL

    def composed(params):
        rows = [d["x"].astype(np.float64) for d in data]
        for body in bodies:
            rows = [body(params[body.__name__], x) for x in rows]
        return 0.5 * sum(jnp.sum(y * y) for y in rows)

    with jax.enable_x64(True):
        loss, grads = jax.jit(jax.value_and_grad(composed))(
            {name: w.astype(np.float64) for name, w in params.items()}
        )
        assert got.loss == pytest.approx(float(loss), rel=1e-12)
        assert max(value for *_, value in compare(got.grads, grads)) <= 1e-11


def test_what_xla_fuses_wrongly_is_right_to_the_last_digits_of_float64():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(60, 60)).astype(np.float32)
    data = some((60, 60))
    got = reference(
        one_node(fused_wrongly, (60, 60)),
        {"node": w},
        data,
        oracle="eager",
    )
    mixed = []
    for d in data:
        mixed.append(d["x"].astype(np.float64) @ np.full((60, 60), 0.7))
    by_hand = [(m * w).sum() for m in mixed]
    for (_, y), want in zip(
        got.outputs["y"],
        by_hand,
        strict=True,
    ):
        np.testing.assert_allclose(y, want, rtol=1e-12)
    np.testing.assert_allclose(
        got.grads["node"],
        sum(y * m for y, m in zip(by_hand, mixed, strict=True)),
        rtol=1e-10,
    )


def test_single_precision_is_widened_and_nothing_else():
    seen = []

    def body(w, x, n, half):
        seen.append((w.dtype, x.dtype, n.dtype, half.dtype))
        return w * x * n + half.astype(x.dtype)

    with ag.Graph() as g:
        x = ag.pump("x", (D,))
        n = ag.pump("n", dtype="int32")
        half = ag.pump("half", (D,), "bfloat16")
        ag.sink(
            "y",
            ag.ppt(
                "node",
                body,
                params=np.ones(D, np.float32),
            )(
                x,
                n,
                half,
            ),
        )
    seen.clear()
    data = [
        {
            "x": np.full(D, 0.1, np.float32),
            "n": 3,
            "half": np.ones(D, jnp.bfloat16),
        }
    ]
    got = reference(
        g,
        {"node": np.ones(D, np.float32)},
        data,
        oracle="eager",
    )
    assert {tuple(map(str, dtypes)) for dtypes in seen} == {
        ("float64", "float64", "int32", "bfloat16")
    }
    (_, y), *_ = got.outputs["y"]
    assert y.dtype == np.float64 and y == pytest.approx(
        np.full(
            D,
            3 * np.float64(np.float32(0.1)) + 1,
        ),
        rel=1e-15,
    )
    assert (
        not jax.config.jax_enable_x64 and not jax.config.jax_disable_jit
    )  # both are left as they were


def test_a_body_that_pins_float32_rounds_as_it_says():
    def pinned(w, x):
        return (x * w).astype(jnp.float32)

    (_, y), *_ = reference(
        one_node(pinned),
        {"node": np.full(D, 0.7, np.float32)},
        some(),
        oracle="eager",
    ).outputs["y"]
    exact = some()[0]["x"].astype(np.float64) * np.float32(0.7)
    assert y.dtype == np.float32
    assert np.array_equal(y, exact.astype(np.float32))


@jax.custom_vjp
def narrow(x):
    return x


narrow.defvjp(
    lambda x: (x, None),
    lambda _, g: (g.astype(jnp.float32),),
)


@pytest.mark.parametrize(
    ("body", "where", "cause"),
    [
        (
            lambda w, x: jax.lax.add(
                w,
                x.astype(jnp.float32),
            ),
            "node `node`",
            "TypeError",
        ),
        (
            lambda w, x: jax.lax.scan(lambda c, _: (c, None), w * x, None, length=0)[0],
            "node `node`",
            "ValueError",
        ),
        (
            lambda w, x: narrow(w * x),
            "the reference, between bodies or on its way back",
            "(TypeError|ValueError)",
        ),
    ],
    ids=["types that do not fit", "a scan of no steps", "a rule for the way back"],
)
def test_what_can_not_be_evaluated_is_told(body, where, cause):
    text = f'{where}: expected what can be evaluated operation by operation in float64, got {cause}: .*or use `oracle="jit"`'
    with pytest.raises(GraphError, match=f"(?s){text}"):
        reference(
            one_node(body),
            {"node": np.ones(D, np.float32)},
            some(),
            oracle="eager",
        )


def test_unknown_oracles_and_two_at_once():
    with pytest.raises(
        SettingsError, match=r"setting `oracle`: expected one of \['eager', 'jit'\], got 'lazy'"
    ):
        amp.verify(
            graphs.chain(1),
            graphs.chain_data(1),
            oracle="lazy",
        )
    with pytest.raises(
        SettingsError, match="reference: expected `jit` or the oracle `eager`, got both"
    ):
        reference(
            graphs.chain(1),
            init_params(graphs.chain(1)),
            graphs.chain_data(1),
            jit=True,
            oracle="eager",
        )
