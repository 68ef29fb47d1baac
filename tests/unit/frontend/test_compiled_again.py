"""A model that is compiled again is an equal graph and finds the kernels of the first one: a notebook's cell that is run twice compiles once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.parity import ours

import ampjax as amp
from ampjax.engine.kernels.shared_kernels import KERNELS
from ampjax.frontend.compile_model import Compiled

SPEC = {"words": "int32[w]", "x": "float32[w,3]", "y": "float32[]"}


def parameters(seed: int = 0) -> dict[str, Any]:
    def draw(i, *shape):
        return jax.random.normal(jax.random.key(seed + i), shape)

    return {
        "embed": draw(0, 5, 3),
        "left": {"w": draw(1, 3, 3)},
        "right": {"w": draw(2, 3, 3)},
        "out": draw(3, 6),
    }


def model(
    scale: float = 2.0,
    table: Any = (1.0, 2.0, 3.0),
) -> Any:
    weights = np.array(table, np.float32)

    def lstm(p: Any, xs: Any, reverse: bool) -> Any:
        return amp.scan(
            lambda h, x: (
                jax.nn.relu((h + x) @ p["w"]),
                None,
            ),
            jnp.zeros(3),
            xs,
            reverse=reverse,
        )[0]

    def of_one(p: Any, s: Any) -> Any:
        v = amp.map(
            lambda w, x: scale * p["embed"][w] + weights * x,
            s["words"],
            s["x"],
        )
        v = amp.map(
            lambda x: amp.dropout(jax.nn.softplus(x), 0.5),
            v,
        )
        h = jnp.concatenate(
            [
                lstm(
                    p["left"],
                    v,
                    False,
                ),
                lstm(p["right"], v, True),
            ]
        )
        return (h @ p["out"] - s["y"]) ** 2

    return of_one


def bodies(compiled: Compiled) -> dict[str, Any]:
    result = {}
    for name, node in compiled.graph.nodes.items():
        if hasattr(node.op, "body"):
            result[name] = node.op.body
    return result


def test_the_same_model_is_an_equal_graph() -> None:
    one, other = (amp.compile(model(), parameters(), SPEC) for _ in range(2))
    assert str(one.graph) == str(other.graph)
    assert len(bodies(one)) == 6 and bodies(one) == bodies(other)
    assert {name: hash(body) for name, body in bodies(one).items()} == {
        n: hash(b) for n, b in bodies(other).items()
    }


def test_initial_values_make_no_other_kernels() -> None:
    assert bodies(amp.compile(model(), parameters(), SPEC)) == bodies(
        amp.compile(model(), parameters(7), SPEC)
    )


@pytest.mark.parametrize(
    "other",
    [model(3.0), model(table=(1.0, 2.0, 4.0))],
)
def test_another_constant_is_another_body_in_the_node_that_has_it(other: Any) -> None:
    first, second = (bodies(amp.compile(m, parameters(), SPEC)) for m in (model(), other))
    assert [name for name in first if first[name] != second[name]] == ["embed"]


def test_nodes_that_compute_the_same_have_equal_bodies() -> None:
    found = bodies(amp.compile(model(), parameters(), SPEC))
    assert found["left"] == found["right"] != found["out"]


def test_what_is_fed_in_other_ways_is_another_body() -> None:
    """The same operations, on parts of a message in another order."""

    def swapped(is_swapped: bool) -> Any:
        def of_one(p: Any, s: Any) -> Any:
            one, other = amp.scan(
                lambda c, x: ((c[0] + x, c[1] * 2.0), None),
                (0.0, 1.0),
                s["x"],
            )[0]
            return p["w"] * (other - one if is_swapped else one - other)

        return bodies(
            amp.compile(
                of_one,
                {"w": np.float32(1)},
                {"x": "float32[t]"},
            )
        )

    assert swapped(False)["w"] == swapped(False)["w"] != swapped(True)["w"]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_model_compiled_again_compiles_no_kernel() -> None:
    tx = optax.sgd(0.1)
    data = [
        {
            "words": np.array([1, 2]),
            "x": np.ones((2, 3), np.float32),
            "y": np.float32(1),
        }
    ] * 2

    def trained() -> tuple[Any, int]:
        compiled = amp.compile(model(), parameters(), SPEC)
        trainer = amp.Trainer(compiled.graph, tx, max_active_keys=1, compile_ahead=False)
        trainer.fit(compiled.data(data), epochs=1, progress=False)
        return trainer, KERNELS.n_held

    first, n_held = trained()
    n_executables = sum(_executables())
    second, n_held_by_both = trained()
    assert n_held_by_both == n_held and sum(_executables()) == n_executables
    for one, other in zip(
        jax.tree.leaves(first.params),
        jax.tree.leaves(second.params),
        strict=True,
    ):
        assert np.array_equal(one, other)


def _executables() -> list[int]:
    """How many executables each kernel has that is held."""
    result = []
    for kernel in KERNELS._held.values():
        for function in (kernel.once, kernel.looped):
            if function is not None:
                result.append(function._cache_size())
    return result


@jax.custom_vjp
def doubled(x: jax.Array) -> jax.Array:
    return 2 * x


doubled.defvjp(
    lambda x: (doubled(x), None),
    lambda _, gradient: (3 * gradient,),
)


def test_a_rule_of_the_users_own_for_gradients_is_kept() -> None:
    """Nothing says that two such rules are equal, so a model that has one compiles its kernels again."""

    def of_one(p, s):
        return doubled(p["a"]["w"] * s["x"])

    one, other = (
        amp.compile(of_one, {"a": {"w": np.float32(5)}}, {"x": "float32[]"}) for _ in range(2)
    )
    _, loss, gradients = ours(
        one.graph,
        one.data([{"x": np.float32(7)}]),
    )
    assert loss == 70 and gradients["a"]["w"] == 21
    assert bodies(one)["a"] == bodies(other)["a"]
    assert bodies(one)["loss"] != bodies(other)["loss"]


@pytest.mark.slow
def test_control_nodes_are_the_same_as_well() -> None:
    one, other = (amp.compile(model(), parameters(), SPEC).graph.nodes for _ in range(2))

    def kinds(nodes):
        result = {}
        for name, node in nodes.items():
            if node.is_control:
                result[name] = node.kind
        return result

    assert kinds(one) == kinds(other) and len(kinds(one)) > 4
