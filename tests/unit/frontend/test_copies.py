"""Copies of a node, and of a whole network, of a model that is a function: the same loss and gradients as without."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import GraphError

PARAMS = {
    "embed": np.linspace(-1, 1, 12, dtype=np.float32).reshape(
        4,
        3,
    ),
    "cell": np.linspace(1, -1, 9, dtype=np.float32).reshape(
        3,
        3,
    ),
    "edge": np.linspace(0, 1, 9, dtype=np.float32).reshape(
        3,
        3,
    ),
}
SPEC = {"tokens": "int32[t]", "marks": "int32[v]", "edges": amp.Edges("v")}


def model(replicas):
    """Uses a key at two places, a loop, edges, and a branch whose constant result has no input."""

    def network(p, s):
        cell = amp.node(
            "recurrent",
            replicas=replicas,
        )(lambda h, x: jnp.tanh((h + x) @ p["cell"]))
        x = amp.map(
            lambda t: p["embed"][t],
            s["tokens"],
        )
        h, _ = amp.scan(
            lambda h, x: (cell(h, x), None),
            jnp.ones(3),
            x,
        )
        amp.output("last", h)
        marks = amp.map(
            lambda m: p["embed"][m],
            s["marks"],
        )
        heard = amp.propagate(
            [lambda v: v @ p["edge"]],
            s["edges"],
            marks,
        )

        def score(t, v):
            return jnp.sum((h + amp.cond(t > 1, lambda: jnp.ones(3), lambda: v)) ** 2)

        found = amp.sum(
            amp.map(
                score,
                s["tokens"],
                x,
            )
        ) + jnp.sum(amp.sum(heard) ** 2)
        return found, {"mean": jnp.mean(h)}

    return network


def instance(tokens):
    n = len(tokens)
    senders = np.arange(n, dtype=np.int32)
    return {
        "tokens": np.array(tokens, np.int32),
        "marks": np.array(tokens[::-1], np.int32),
        "edges": amp.Edges(senders, (senders + 1) % n),
    }


INSTANCES = [instance(tokens) for tokens in ([0, 1], [2, 3, 1], [3], [1, 1, 0, 2], [0])]


def trained(compiled, epochs=0):
    trainer = amp.Trainer(
        compiled.graph,
        optax.sgd(0.05),
        max_active_keys=3,
        workers=2,
        min_update_interval=2,
    )
    data = compiled.data(INSTANCES)
    if epochs:
        trainer.fit(data, epochs=epochs, progress=False)
    return trainer, trainer.accumulate(data, update=False)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "replicas, copies",
    [
        *(pytest.param(*more, marks=pytest.mark.nightly) for more in ((3, 1), (1, 2))),
        (2, 2),
    ],
)
def test_copies_compute_what_one_computes(replicas, copies):
    alone = amp.compile(model(1), PARAMS, SPEC)
    several = amp.compile(model(replicas), PARAMS, SPEC, copies=copies)
    one, want = trained(alone)
    other, got = trained(several)
    assert got == pytest.approx(want, rel=1e-6)
    assert (
        len([name for name in other.gradients if name.startswith("recurrent")]) == replicas * copies
    )
    for name, (gradient, rows) in one.gradients.items():
        sums = []
        for node, entry in other.gradients.items():
            if several.graph.nodes[node].role == name:
                sums.append(entry)
        assert sum(n for _, n in sums) == rows
        found = jax.tree.map(
            lambda *each: sum(each),
            *(tree for tree, _ in sums),
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            found,
            gradient,
        )
    by_key = several.gradients(other.gradients), alone.gradients(one.gradients)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        *by_key,
    )
    np.testing.assert_allclose(
        other.predict(several.data(INSTANCES))["last"].payload,
        one.predict(alone.data(INSTANCES))["last"].payload,
        rtol=1e-6,
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_parameters_of_copies_are_those_of_the_model():
    compiled = amp.compile(model(2), PARAMS, SPEC, copies=2)
    names = set(compiled.node_params(PARAMS))
    assert names == set(compiled.graph.parameterised) and "recurrent/1/0" in names
    trainer, _ = trained(compiled, epochs=1)
    learnt = compiled.params(trainer.params)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a, b),
        compiled.params(compiled.node_params(PARAMS)),
        PARAMS,
    )
    assert all(np.abs(learnt[key] - PARAMS[key]).max() > 0 for key in PARAMS)
    copies = []
    for i in range(2):
        for j in range(2):
            copies.append(trainer.params[f"recurrent/{i}/{j}"]["cell"])
    np.testing.assert_allclose(
        learnt["cell"],
        np.mean(copies, axis=0),
        rtol=1e-6,
    )
    assert "recurrent/0/1" in str(compiled.explain())


def test_mistakes_are_told():
    cell = amp.node("recurrent", replicas=2)(lambda p, x: x @ p["cell"])
    with pytest.raises(
        GraphError,
        match=r"test_copies.py:.*: expected one place for a node with replicas, got another",
    ):
        amp.compile(
            lambda p, s: jnp.sum(
                cell(
                    p,
                    amp.sum(
                        amp.map(
                            lambda t: cell(p, t * jnp.ones(3)),
                            s["tokens"],
                        )
                    ),
                )
            ),
            PARAMS,
            SPEC,
        )
    with pytest.raises(
        GraphError, match=r"test_copies.py:.*: expected a number of replicas, at least 1, got 0"
    ):
        amp.node("cell", replicas=0)
    with pytest.raises(
        GraphError, match=r"compile, copies: expected a number of copies, at least 1, got 1.5"
    ):
        amp.compile(model(1), PARAMS, SPEC, copies=1.5)  # pyright: ignore[reportArgumentType]
