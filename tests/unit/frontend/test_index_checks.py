"""Ids and labels outside of what they index: JAX reads another row or gives NaN without a word, so data with such numbers are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import DataError
from ampjax.sparse import Table

EMBED = np.ones((5, 3), np.float32)
OUT = np.ones((3, 4), np.float32)
PARAMS = {"embed": EMBED, "out": {"w": OUT}}
XENT = optax.softmax_cross_entropy_with_integer_labels
A_ROW = "from -5 to 4, of a row of the parameters `embed`"
AN_ENTRY = "from -4 to 3, of one of 4 entries"


def total(values):
    return jnp.sum(amp.sum(values))


def at_any_depth(p, s):
    def word(chars):
        return amp.scan(
            lambda h, c: (jnp.tanh(h + p["embed"][c]), None),
            jnp.zeros(3),
            chars,
        )[0]

    return total(amp.map(word, s["cs"]))


def by_a_branch_of_its_own(p, s):
    """Where `y` is 7 or more, another branch reads nothing."""
    return jnp.sum(
        amp.cond(
            s["y"] < 7,
            lambda: p["embed"][s["y"]],
            lambda: jnp.zeros(3),
        )
    )


GOOD = {
    "ws": [0, 4, -1],
    "cs": [[], [1, 4]],
    "y": 3,
    "v": [0, 1, -4],
    "table": np.ones((3, 2), np.float32),
}
SPEC = {
    "ws": "int32[w]",
    "cs": "int32[u,c]",
    "y": "int32[]",
    "v": "int32[3]",
    "table": "float32[3,2]",
}


@pytest.mark.parametrize(
    ("model", "bad", "expected", "got"),
    [
        (lambda p, s: total(amp.map(lambda w: p["embed"][w], s["ws"],)), {"ws": [1, 5]}, A_ROW, 5),
        (lambda p, s: total(amp.map(lambda w: p["embed"][w], s["ws"],)), {"ws": [-6]}, A_ROW, -6),
        (lambda p, s: total(amp.map(lambda w: jnp.take(p["embed"], w, axis=0), s["ws"])), {"ws": [7]}, A_ROW, 7),
        (lambda p, s: total(amp.map(lambda w: p["embed"][w - 1, 2], s["ws"])), {"ws": [3, 6]}, A_ROW, 5),
        (lambda p, s: total(amp.map(amp.node("word")(lambda w: p["embed"][w]), s["ws"])), {"ws": [5]}, A_ROW, 5),
        (at_any_depth, {"cs": [[1], [2, 5]]}, A_ROW, 5),
        (by_a_branch_of_its_own, {"y": 6}, A_ROW, 6),
        (lambda p, s: jnp.sum(p["embed"][s["v"]]), {"v": [0, 5, 1]}, A_ROW, 5),
        (lambda p, s: jnp.sum(p["embed"][s["v"], s["v"] % 3]), {"v": [0, 5, 1]}, A_ROW, 5),
        (lambda p, s: jnp.sum(jax.vmap(lambda i: p["embed"][i])(s["v"])), {"v": [0, 5, 1]}, A_ROW, 5),
        (lambda p, s: jnp.sum(jax.vmap(lambda i: p["embed"][i, 1])(s["v"])), {"v": [0, 1, -6,]}, A_ROW, -6),
        (lambda p, s: jnp.sum(jax.vmap(lambda row, i: row[i])(jnp.ones((3, 1)) * p["out"]["w"][0], s["v"])), {"v": [0, 4, 1]}, AN_ENTRY, 4),
        (lambda p, s: XENT(p["out"]["w"][0], s["y"],), {"y": 4}, AN_ENTRY, 4),
        (lambda p, s: total(amp.map(lambda w: XENT(p["embed"][w] @ p["out"]["w"], w - 1), s["ws"])), {"ws": [-4]}, AN_ENTRY, -5),
        (lambda p, s: jnp.sum(XENT(jnp.ones((3, 1)) * p["out"]["w"][0], s["v"])), {"v": [0, 1, 4]}, AN_ENTRY, 4),
        (lambda p, s: jax.nn.log_softmax(p["out"]["w"][0])[s["y"]], {"y": 4}, AN_ENTRY, 4),
        (lambda p, s: jnp.take_along_axis(p["out"]["w"][0], s["y"][None], 0)[0], {"y": -5}, AN_ENTRY, -5),
        (lambda p, s: jax.nn.one_hot(s["y"], 4) @ p["out"]["w"][0], {"y": 4}, "a class below 4, as many as `one_hot` has", 4),
        (lambda p, s: jnp.sum(jax.nn.one_hot(s["v"], 4, axis=0) * p["out"]["w"][0, 0]), {"v": [9, 0, 0]}, "a class below 4, as many", 9),
        (lambda p, s: jnp.sum(s["table"][s["y"] % 4] * s["table"][s["y"]]) * p["embed"][0, 0], {"y": 3}, "from -3 to 2, of one of 3 entries", 3),
    ],
)  # fmt: skip
def test_numbers_outside_are_errors_of_the_data(model, bad, expected, got):
    compiled = amp.compile(model, PARAMS, SPEC)
    fine = GOOD | ({"y": 2} if "table" in expected or "of 3" in expected else {})
    compiled.data([fine, fine])
    with pytest.raises(DataError) as caught:
        compiled.data([fine, fine, fine | bad])
    told = str(caught.value)
    assert told.startswith("test_index_checks.py:") and ", instance 2: expected a" in told
    assert f"{expected}" in told and f", got {got}. Mend the data" in told


@pytest.mark.parametrize(
    "model",
    [
        lambda p, s: jnp.sum(p["embed"][jnp.clip(s["y"], 0, 4)]),
        lambda p, s: jnp.sum(p["embed"].at[s["y"]].get(mode="fill", fill_value=0)),
        lambda p, s: jnp.sum(p["embed"].at[s["v"]].get(mode="clip")),
        lambda p, s: jnp.sum(
            amp.look_up(
                p["embed"],
                s["y"],
            )
        ),
        lambda p, s: jnp.sum(p["embed"][jnp.where(s["y"] < 5, s["y"], 0)]),
        lambda p, s: jax.nn.one_hot(jnp.minimum(s["y"], 3) - 9, 4) @ p["out"]["w"][0],
        by_a_branch_of_its_own,
    ],
)
def test_what_says_that_numbers_may_lie_outside_is_left_alone(model):
    compiled = amp.compile(model, PARAMS, {"y": "int32[]", "v": "int32[3]"})
    assert len(compiled.data([{"y": y, "v": [y, -y, 0]} for y in (0, 9, 77)])) == 3


def test_rows_of_a_table_in_host_memory():
    params = {
        "embed": Table(EMBED, optax.sgd(0.1)),
        "out": {"w": OUT},
    }

    def model(p, s):
        return XENT(
            amp.look_up(p["embed"], s["w"]) @ p["out"]["w"],
            s["y"],
        )

    compiled = amp.compile(model, params, {"w": "int32[]", "y": "int32[]"})
    compiled.data([{"w": 4, "y": 0}])
    for wrong in (5, -1):
        with pytest.raises(
            DataError,
            match=f"instance 1: expected a number from 0 to 4, of a row of the table `embed`, got {wrong}",
        ):
            compiled.data(
                [
                    {"w": 0, "y": 0},
                    {"w": wrong, "y": 0},
                ]
            )


def test_labels_that_are_missing_are_not_checked():
    def model(p, s):
        amp.output(
            "logits",
            p["out"]["w"][0] * s["x"],
        )
        return XENT(
            p["out"]["w"][0] * s["x"],
            s["y"],
        )

    compiled = amp.compile(model, PARAMS, {"x": "float32[]", "y": "int32[]"})
    assert len(compiled.data([{"x": 1.0}], labels=False)) == 1
