"""Calls that become one: choices between the same functions of the same values, and reductions of sequences of one length."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.model_laws import Compiled64

import ampjax as amp

RNG = np.random.default_rng(0)
PARAMS = {name: {"w": RNG.normal(size=(2, 2))} for name in ("gate", "e0", "e1", "e2")}
SPEC = {"x": "float64[t,2]", "k": "int32[t]"}
INSTANCES = [
    {"x": RNG.normal(size=(n, 2)), "k": RNG.integers(0, 3, n).astype(np.int32)} for n in (0, 1, 6)
]  # fmt: skip


def chosen(score):
    return amp.read((score > 0).astype(jnp.int32) + (score > 1).astype(jnp.int32))


def law_of(row, instances=INSTANCES):
    return Compiled64(
        lambda p, s: amp.sum(
            amp.map(
                lambda x, k: row(p, x, k),
                s["x"],
                s["k"],
            )
        ),
        PARAMS,
        SPEC,
        instances,
    )


def experts(p, x):
    return [lambda k=k: (jnp.tanh(x @ p[f"e{k}"]["w"]), jnp.int32(k)) for k in range(3)]


def places(graph, name):
    """Nodes that compute with the parameters of `name`."""
    result = []
    for other in graph.nodes:
        if other == name or (other.startswith(f"{name}_") and "/" not in other):
            result.append(other)
    return result


@pytest.mark.nightly
def test_each_function_is_one_node_and_all_numbers_are_read_at_once():
    def row(p, x, k):
        h = x @ p["gate"]["w"]
        (a, i), (b, j), (c, _) = (
            amp.switch(chosen(score), experts(p, x)) for score in (h[0], h[1], h[0] + 1)
        )
        return jnp.sum(a * b) * i + j * jnp.sum(c)

    with jax.enable_x64(True):
        law = law_of(row)
        assert [places(law.graph, f"e{k}") for k in range(3)] == [["e0"], ["e1"], ["e2"]]
        assert places(law.graph, "read") == ["read"]
        assert law.graph.nodes["gate"].outputs[0].type.shape == (3,)
        law.check_direction()
        law.check_gradients()


def test_a_choice_that_needs_another_ones_result_stays_apart():
    def row(p, x, k):
        first, _ = amp.switch(
            chosen((x @ p["gate"]["w"])[0]),
            experts(p, x),
        )
        second, _ = amp.switch(
            chosen(first[0]),
            experts(p, x),
        )
        return jnp.sum(first * second)

    with jax.enable_x64(True):
        law = law_of(row)
        assert places(law.graph, "e0") == ["e0", "e0_2"]
        law.check_direction()


def test_so_do_choices_of_other_values_those_that_the_example_makes_and_those_that_tell_metrics():
    def of_other_values(p, x, k):
        h = x @ p["gate"]["w"]
        return jnp.sum(
            amp.switch(chosen(h[0]), experts(p, x))[0]
            + amp.switch(chosen(h[1]), experts(p, 2 * x))[0]
        )

    def of_the_example(p, x, k):
        return jnp.sum(amp.switch(k, experts(p, x))[0] + amp.switch((k + 1) % 3, experts(p, x))[0])

    def with_metrics(p, x, k):
        def told(e):
            amp.metric("size", jnp.sum(e()[0]))
            return e()[0]

        h = x @ p["gate"]["w"]
        each = [lambda e=e: told(e) for e in experts(p, x)]
        return jnp.sum(amp.switch(chosen(h[0]), each) * amp.switch(chosen(h[1]), each))

    with jax.enable_x64(True):
        for row in (of_other_values, of_the_example, with_metrics):
            law = law_of(row)
            assert places(law.graph, "e0") == ["e0", "e0_2"]
            law.check_direction()


def test_functions_may_hold_loops_and_nodes_with_replicas():
    def row(p, x, k):
        grow = amp.node(
            "e0",
            replicas=2,
        )(lambda h: jnp.tanh(h @ p["e0"]["w"]))

        def looped(x):
            return amp.while_loop(
                lambda h: amp.read(h[0] < 0.5),
                lambda h: h @ p["e1"]["w"] + 0.4,
                x,
                most=3,
            )

        h = x @ p["gate"]["w"]
        visits = []
        for score in h:
            visits.append(
                amp.cond(
                    amp.read(score > 0),
                    grow,
                    looped,
                    x,
                )
            )
        return jnp.sum(visits[0] - 2 * visits[1])

    with jax.enable_x64(True):
        law = law_of(row)
        assert places(law.graph, "e1") == ["e1"]
        law.check_direction()


def in_a_scan(p, x, k):
    return jnp.sum(
        amp.fori_loop(
            k,
            lambda i, h: jnp.tanh(of_two(p, h) + x * i),
            jnp.full(2, 0.2),
        )
    )


def in_a_while_loop(p, x, k):
    def go_on(h):
        return amp.read(jnp.sum(h**2) < 2)

    return jnp.sum(
        amp.while_loop(
            go_on,
            lambda h: of_two(p, h) + h * 1.3 + 0.1,
            x @ p["gate"]["w"],
            most=3,
        )
    )


def in_a_joined_choice(p, x, k):
    h = x @ p["gate"]["w"]
    functions = [
        lambda: jnp.tanh(of_two(p, x) + 0.3),
        lambda: x * 2,
    ]
    first, second = (amp.switch(amp.read((score > 0).astype(jnp.int32)), functions) for score in h)
    return jnp.sum(first * second)


def of_two(p, x):
    h = x @ p["gate"]["w"]
    return (
        amp.switch(chosen(h[0]), experts(p, x))[0] - 2 * amp.switch(chosen(h[1]), experts(p, x))[0]
    )


@pytest.mark.first_case
@pytest.mark.parametrize("row", [in_a_scan, in_a_while_loop, in_a_joined_choice])
def test_choices_are_joined_wherever_they_are(row):
    with jax.enable_x64(True):
        law = law_of(row)
        assert [places(law.graph, f"e{k}") for k in range(3)] == [["e0"], ["e1"], ["e2"]]
        law.check_direction()


@pytest.mark.nightly
def test_many_choices_at_once():
    def row(p, x, k):
        h = x @ p["gate"]["w"]
        return sum(
            jnp.sum(amp.switch(chosen(h[0] + i / 10 - 3), experts(p, x))[0]) * i for i in range(70)
        )

    with jax.enable_x64(True):
        law = law_of(row, INSTANCES[1:2])
        assert places(law.graph, "e0") == ["e0"]
        law.check_direction()


@pytest.mark.parametrize("n", [1, 2])
def test_a_number_that_every_function_reads_is_read(n):
    def row(p, x, k):
        h = x @ p["gate"]["w"]
        functions = [
            lambda: chosen((x @ p["e0"]["w"])[0]),
            lambda: chosen((x @ p["e1"]["w"])[1]),
        ]
        read = []
        for score in h[:n]:
            read.append(
                amp.cond(
                    amp.read(score > 0),
                    *functions,
                )
            )
        return sum(
            jnp.sum(amp.switch(number, [lambda: h, lambda: h**2, lambda: x])) for number in read
        )

    with jax.enable_x64(True):
        law = law_of(row)
        assert places(law.graph, "e0") == ["e0"]
        law.check_direction()


@pytest.mark.nightly
def test_each_choice_draws_for_itself():
    def row(p, x, k):
        def noisy(x):
            return amp.stochastic(
                lambda key, x: jax.random.normal(key, x.shape),
                lambda x: x,
                x @ p["e0"]["w"],
            )

        h = x @ p["gate"]["w"]
        first, second = (
            amp.cond(amp.read(h[0] > bound), noisy, lambda x: x, x) for bound in (-9, -99)
        )
        return jnp.sum((first - second) ** 2)

    def model(p, s):
        return amp.sum(
            amp.map(
                lambda x, k: row(p, x, k),
                s["x"],
                s["k"],
            )
        )

    params = jax.tree.map(jnp.float32, PARAMS)
    spec = {"x": "float32[t,2]", "k": "int32[t]"}
    data = []
    for instance in INSTANCES[1:]:
        data.append(
            {
                **instance,
                "x": np.float32(instance["x"]),
            }
        )
    compiled = amp.compile(model, params, spec)
    assert places(compiled.graph, "e0") == ["e0"]
    assert compiled.loss(params, data) == 0
    trainer = amp.Trainer(compiled.graph, optax.sgd(0.0))
    assert trainer.fit(compiled.data(data), epochs=1).epochs[0].train["loss"] > 0.1


@pytest.mark.parametrize("n", [2, 3])
def test_a_number_that_is_not_read_is_refused(n):
    def row(p, x, k):
        h = x @ p["gate"]["w"]
        numbers = [
            chosen(h[0]),
            *(jnp.int32(h[1] > i) for i in range(n - 1)),
        ]
        return sum(jnp.sum(amp.switch(number, experts(p, x))[0]) for number in numbers)

    with (
        jax.enable_x64(True),
        pytest.raises(amp.errors.GraphError, match="a choice that follows from the instance"),
    ):
        law_of(row)


def test_reductions_of_what_travels_together_are_one_node():
    def model(p, s):
        xs = amp.map(
            lambda x: x @ p["e0"]["w"],
            s["x"],
        )
        ys = amp.map(
            lambda x: (x @ p["e1"]["w"])[:1],
            s["x"],
        )
        total = amp.sum(xs)
        most = amp.max(xs)
        soft = amp.logsumexp(xs)
        other = amp.sum(ys)
        later = amp.sum(
            amp.map(
                lambda x: jnp.sin(x) * total,
                xs,
            )
        )
        found = jnp.sum(later) + jnp.sum(total) * other[0] + jnp.sum(amp.sum(s["x"]))
        return found + jnp.where(
            amp.length(s["x"]) > 0,
            jnp.sum(most * soft),
            0.0,
        )

    with jax.enable_x64(True):
        law = Compiled64(model, PARAMS, SPEC, INSTANCES[1:])
        reductions = []
        for name, node in law.graph.nodes.items():
            if node.kind == "Reduce":
                reductions.append(name)
        assert reductions == ["sum_max_logsumexp", "sum", "sum_2"]
        law.check_direction()


def test_reductions_of_a_graphs_nodes_are_one_node_too():
    def model(p, s):
        scores = amp.map(
            lambda x: x @ p["e0"]["w"],
            s["x"],
        )
        return jnp.sum(amp.logsumexp(scores) - amp.sum(scores)) * amp.max(scores)[0]

    spec = {"x": "float64[v,2]", "edges": amp.Edges("v", kinds=1)}
    none = np.zeros(0, np.int32)
    data = []
    for n in (1, 4):
        data.append(
            {
                "x": RNG.normal(size=(n, 2)),
                "edges": amp.Edges(none, none, none),
            }
        )
    with jax.enable_x64(True):
        law = Compiled64(model, PARAMS, spec, data)
        assert [node.kind for node in law.graph.nodes.values()].count("Reduce") == 1
        law.check_direction()
