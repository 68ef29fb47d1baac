"""Which operations of a model become one node."""

import jax.numpy as jnp

import ampjax as amp


def test_a_loss_and_a_metric_of_the_same_wire_are_one_node():
    def model(params, example):
        def score(y, tag):
            amp.metric("accuracy", jnp.argmax(y) == tag)
            return -y[tag]

        ys = amp.map(
            lambda x: x @ params["a"],
            example["x"],
        )
        return amp.sum(amp.map(score, ys, example["tags"]))

    graph = amp.compile(
        model,
        {"a": jnp.ones((2, 3))},
        {"x": "float32[t,2]", "tags": "int32[t]"},
    ).graph
    assert [name for name, node in graph.nodes.items() if node.kind in ("NPT", "Loss")] == ["loss"]


def test_operations_that_read_the_same_wires_are_one_node():
    def model(params, example):
        def both(y):
            return jnp.tanh(y), jnp.argmax(y)

        ys = amp.map(
            lambda x: x @ params["a"],
            example["x"],
        )
        return amp.sum(
            amp.map(
                lambda z, k: z[k],
                *amp.map(both, ys),
            )
        )

    graph = amp.compile(
        model,
        {"a": jnp.ones((2, 3))},
        {"x": "float32[t,2]"},
    ).graph
    assert [name for name, node in graph.nodes.items() if node.kind == "NPT"] == ["both"]
