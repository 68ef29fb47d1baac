"""What `Compiled.explain` says: state fields in words, and what is assumed of values that are read back."""

import jax.numpy as jnp
import numpy as np

import ampjax as amp

ONE = np.ones(2, np.float32)


def halving(p, s):
    h = p["start"] * s["x"]
    h = amp.while_loop(
        lambda h: amp.read(h.sum() > 1),
        lambda h: h * p["half"],
        h,
        most=4,
    )
    return jnp.sum(h * h)


def test_as_many_rounds_are_assumed_as_there_can_be():
    compiled = amp.compile(
        halving,
        {"start": ONE, "half": ONE / 2},
        {"x": "float32[2]"},
    )
    found = compiled.explain([{"x": ONE}] * 3)
    assert {name: n for name, n, *_ in found.dispatches}[
        "half"
    ] == 3 * 4 * 2  # forward and backward
    assert "where each `amp.read` gives what it assumes" in " ".join(str(found).split())
    assert ("round_1_i", "number of the round") in [field[:2] for field in found.fields]


def test_a_choice_that_the_host_makes_is_named_in_no_message():
    def model(p, s):
        _, root = amp.fold_tree(
            lambda x: p["leaf"][x],
            lambda x, kids: amp.sum(kids),
            s["tree"],
        )
        return jnp.sum(root)

    spec = {"tree": amp.Tree("int32[v]", "int32[v]", "int32[v]")}
    found = amp.compile(model, {"leaf": ONE}, spec).explain()
    named = {name for name, *_ in found.fields}
    guards = set()
    for _, _, rows, _ in found.nodes:
        for word in rows.split():
            if word.startswith(("leaf_", "if_")):
                guards.add(word)
    assert guards and guards <= named
    assert "amp.read" not in str(found)
