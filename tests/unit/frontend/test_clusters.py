"""Which operations of a model become one node."""

import jax.numpy as jnp

import ampjax as amp


def test_a_loss_and_a_metric_of_the_same_wire_are_one_node():
    def model(params, example):
        def score(y, tag):
            amp.metric("accuracy", jnp.argmax(y) == tag)
            return -y[tag]

        ys = amp.map(lambda x: x @ params["a"], example["x"])
        return amp.sum(amp.map(score, ys, example["tags"]))

    graph = amp.compile(model, {"a": jnp.ones((2, 3))}, {"x": "float32[t,2]", "tags": "int32[t]"}).graph
    assert [name for name, node in graph.nodes.items() if node.kind == "NPT"] == ["score"]
