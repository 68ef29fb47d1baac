"""What random models have found: the smallest model of each mistake of the compiler, kept."""

from __future__ import annotations

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.model_laws import Compiled64

import ampjax as amp
from ampjax.frontend.rules import foresight

PARAMS = {
    "a": np.array([0.3, -0.8]),
    "b": np.array([0.5, 0.2]),
    "embed": np.linspace(-1, 1, 10).reshape(5, 2),
}
SPEC = {
    "words": "int32[w]",
    "chars": "int32[w,c]",
    "y": "float64[2]",
    "n": "int32[]",
    "tree": amp.Tree("int32[v]", "int32[v]", {"word": "int32[v]"}),
}
TREE = amp.Tree(
    np.array([-1, 0, 0]),
    np.array([0, 0, 1]),
    {"word": np.array([1, 2, 3])},
)
INSTANCES = [
    {
        "words": np.array([1, 2]),
        "chars": [[3], [4, 0]],
        "y": np.array([1.0, -0.5]),
        "n": 2,
        "tree": TREE,
    },
    {
        "words": np.array([], int),
        "chars": amp.Ragged.of([]),
        "y": np.array([-0.3, 0.4]),
        "n": 0,
        "tree": amp.Tree.of(
            ((1, 2), 3),
            lambda x: {"word": x},
            {"word": 0},
        ),
    },
]


def is_up(x):
    return amp.read(x[0] > 0.1)


def constants_where_a_read_value_decides(p, s):
    x = amp.cond(
        is_up(s["y"] * p["a"]),
        lambda: jnp.ones(2),
        lambda: p["b"],
    )
    return jnp.sum(x**2) + jnp.sum(p["a"] ** 2)


def constants_in_a_choice_within_one_that_a_read_value_makes(p, s):
    def inner():
        return amp.cond(
            amp.length(s["words"]) > 1,
            lambda: jnp.ones(2),
            lambda: p["b"],
        )

    return jnp.sum(amp.cond(is_up(s["y"] * p["a"]), inner, lambda: s["y"]) ** 2)


def a_choice_by_a_constant_in_a_loop(p, s):
    def body(x):
        return amp.cond(
            jnp.int32(2) > 1,
            lambda: x * p["a"],
            lambda: x,
        )

    return jnp.sum(amp.while_loop(is_up, body, s["y"], most=2) ** 2)


def a_test_that_the_instance_answers_after_the_first_round(p, s):
    x = amp.while_loop(
        lambda x: is_up(x * p["a"] + 0.1),
        lambda x: s["y"],
        jnp.zeros(2),
        most=2,
    )
    return jnp.sum(x**2)


def a_test_that_a_constant_answers_after_the_first_round(p, s):
    x = amp.while_loop(
        is_up,
        lambda x: jnp.ones(2),
        s["y"] * p["b"],
        most=2,
    )
    return jnp.sum((x * p["a"]) ** 2)


def a_carry_that_no_round_reads(p, s):
    x = amp.while_loop(
        is_up,
        lambda x: p["a"] - p["a"] ** 2,
        s["y"] * p["b"],
        most=2,
    )
    return jnp.sum(x**2)


def lengths_of_one_sequence_in_two_spaces(p, s):
    def each(i, h):
        return h + p["a"] * amp.sum(
            amp.map(
                lambda w: jnp.sin(p["embed"][w] * h),
                s["words"],
            )
        )

    h = amp.fori_loop(s["n"], each, s["y"])
    return jnp.sum(h**2) + jnp.sum(
        amp.mean(
            amp.map(
                lambda w: p["embed"][w],
                s["words"],
            )
        )
    )


def a_tree_that_is_gone_through_both_ways(p, s):
    down = amp.scan_tree(
        lambda h, n: jnp.tanh(h * p["a"] + n["word"]),
        s["y"],
        s["tree"],
    )
    up, _ = amp.fold_tree(
        lambda n: p["embed"][n["word"]],
        lambda n, x, y: x * y + p["b"],
        s["tree"],
        arity=2,
    )
    return jnp.sum(
        amp.sum(
            amp.map(
                lambda x, y: x * y,
                down,
                up,
            )
        )
    )


def sequences_of_sequences_from_outside(p, s):
    def each(c):
        return amp.sum(
            amp.map(
                lambda x: p["embed"][x],
                c,
            )
        )

    return jnp.sum(
        amp.sum(
            amp.map(
                lambda w: w["word"] * amp.sum(amp.map(each, s["chars"])),
                s["tree"].value,
            )
        )
    )


def a_computed_sequence_from_outside_in_a_tree(p, s):
    v = amp.map(
        lambda w: p["embed"][w] * p["a"],
        s["words"],
    )

    def leaf(n):
        return (
            amp.mean(
                amp.map(
                    lambda x: x * p["b"],
                    v,
                )
            )
            + n["word"]
        )

    _, root = amp.fold_tree(
        leaf,
        lambda n, x, y: x * y + p["b"],
        s["tree"],
        arity=2,
    )
    return jnp.sum(root**2)


def a_number_that_a_choice_gives_counts(p, s):
    k = amp.cond(
        s["n"] > 1,
        lambda: s["n"],
        lambda: jnp.int32(1),
    )
    long = amp.sum(
        amp.map(
            lambda w: (w > 1).astype(jnp.int32),
            s["words"],
        )
    )
    return jnp.sum(amp.fori_loop(k + long, lambda i, h: h * p["a"] + i, s["y"]) ** 2)


def a_read_value_of_the_instance_chooses(p, s):
    return jnp.sum(
        amp.switch(amp.read(s["n"]), [lambda: p["a"], lambda: s["y"], lambda: p["b"] * s["y"]]) ** 2
    )


def names_that_nodes_have_already(p, s):
    f = amp.node("w")(lambda x: x * p["a"])  # the sequence's name
    g = amp.node("sum")(lambda x: x * p["b"])  # a combinator's
    scanned, _ = amp.scan(
        lambda h, w: (
            jnp.tanh(h + p["embed"][w]),
            None,
        ),
        s["y"],
        s["words"],
    )
    return jnp.sum(g(f(g(scanned))) ** 2)


def weights_of_instances(p, s):
    return amp.sum(
        amp.map(
            lambda w: jnp.sum(p["embed"][w] ** 2),
            s["words"],
        )
    ) / 3.0 + jnp.sum(p["a"] ** 2) / (s["n"] + 3)


def taken_where_it_is_there(p, s):
    def first():
        return p["embed"][amp.take(s["words"], -1)]

    return jnp.sum(amp.cond(amp.length(s["words"]) > 0, first, lambda: p["a"]) ** 2)


def arrays_that_the_model_closes_over(p, s):
    return jnp.sum(CONSTANT * p["a"] * s["y"] + jnp.arange(2))


CONSTANT = np.array([2.0, 3.0])


def trees_in_leaves_of_trees(p, s):
    def fold(leaf):
        def branch(n, kids):
            return jnp.tanh(amp.sum(kids) * p["a"])

        return amp.fold_tree(leaf, branch, s["tree"])[1]

    return amp.sum(
        amp.map(
            lambda word: jnp.sum(fold(lambda n: fold(lambda n: s["y"]))),
            s["words"],
        )
    )


def a_carry_that_is_an_element_from_outside(p, s):
    """Copies of elements for each word do not know how many elements there are."""
    rows = amp.softmax(
        amp.map(
            lambda word: p["embed"][word],
            s["words"],
        )
    )

    def last():
        return amp.scan(
            lambda carry, row: (row, None),
            s["y"],
            rows,
        )[0]

    return amp.sum(
        amp.map(
            lambda word: jnp.sum(last() * word),
            s["words"],
        )
    )


def a_carry_of_children_that_forgets_the_one_before(p, s):
    """The last child's state still has the child's own fields when it meets what is pumped at the parent."""

    def each(carry, kid):
        return (
            (s["y"] * p["a"], kid[0] * 2),
            None,
        )

    def branch(n, kids):
        return jnp.prod(amp.scan(each, (jnp.zeros(2), s["y"][0]), kids)[0][0]) * s["y"]

    values, root = amp.fold_tree(
        lambda n: s["y"],
        branch,
        s["tree"],
    )
    return jnp.sum(root * p["b"]) + amp.sum(
        amp.map(
            lambda value: value[0],
            values,
        )
    )


@pytest.mark.parametrize(
    "model",
    [
        constants_where_a_read_value_decides,
        constants_in_a_choice_within_one_that_a_read_value_makes,
        a_choice_by_a_constant_in_a_loop,
        a_carry_that_no_round_reads,
        a_test_that_the_instance_answers_after_the_first_round,
        a_test_that_a_constant_answers_after_the_first_round,
        lengths_of_one_sequence_in_two_spaces,
        a_tree_that_is_gone_through_both_ways,
        sequences_of_sequences_from_outside,
        a_computed_sequence_from_outside_in_a_tree,
        a_number_that_a_choice_gives_counts,
        a_read_value_of_the_instance_chooses,
        names_that_nodes_have_already,
        weights_of_instances,
        taken_where_it_is_there,
        arrays_that_the_model_closes_over,
        trees_in_leaves_of_trees,
        a_carry_that_is_an_element_from_outside,
        a_carry_of_children_that_forgets_the_one_before,
    ],
    ids=lambda model: model.__name__,
)
def test_a_graph_computes_what_its_model_computes(model):
    with jax.enable_x64(True):
        compiled = Compiled64(model, PARAMS, SPEC, INSTANCES)
        compiled.check_direction()
        compiled.check_gradients()


def test_what_chooses_among_carries_after_their_loop_needs_no_word_of_it():
    """The loop is built by then: it would not go on to the next word."""

    def model(p, s):
        before = amp.scan(lambda h, word: (h * p["a"] + p["embed"][word], h), s["y"], s["words"])[1]
        chosen = amp.map(
            lambda word, h: amp.cond(
                word > 1,
                lambda: h * p["b"],
                lambda: h,
            ),
            s["words"],
            before,
        )
        return jnp.sum(amp.sum(chosen))

    instance = {
        **INSTANCES[0],
        "words": np.array([1, 2, 3, 0, 1, 4, 2]),
        "chars": [[0]] * 7,
    }
    with jax.enable_x64(True), mock.patch.object(foresight, "BITS", 3):
        compiled = Compiled64(model, PARAMS, SPEC, [instance])
        compiled.check_direction()
        compiled.check_gradients()


def test_no_rows_at_all():
    """Several values in one payload, in no row."""
    with jax.enable_x64(True):
        Compiled64(
            lengths_of_one_sequence_in_two_spaces, PARAMS, SPEC, INSTANCES[1:]
        ).check_direction()


def test_a_metric_told_at_two_places_is_the_mean_over_both():
    def model(p, s):
        amp.metric("told", s["y"][0])
        return jnp.sum(p["a"] * s["y"]), {"told": s["y"][1] * p["a"][0]}

    with jax.enable_x64(True):
        compiled = Compiled64(model, PARAMS, SPEC, INSTANCES)
        wanted = np.mean([[s["y"][0], s["y"][1] * PARAMS["a"][0]] for s in INSTANCES])
        assert compiled.reference().metrics["told"] == pytest.approx(wanted)


def test_the_engine_runs_a_node_whose_result_nothing_reads():
    def model(p, s):
        unread = amp.map(
            lambda word: p["embed"][word],
            s["words"],
        )
        return amp.sum(
            amp.map(
                lambda word, row: jnp.sum(p["a"] * s["y"]) * word,
                s["words"],
                unread,
            )
        )

    params = jax.tree.map(jnp.float32, PARAMS)
    compiled = amp.compile(model, params, {"words": "int32[w]", "y": "float32[2]"})
    instances = []
    for one in INSTANCES:
        instances.append(
            {
                "words": one["words"],
                "y": np.float32(one["y"]),
            }
        )
    trainer = amp.Trainer(
        compiled.graph,
        optax.sgd(0.0),
        compile_ahead=False,
    )
    got = trainer.accumulate(compiled.data(instances), update=False)["loss_sum"]
    assert got == pytest.approx(float(compiled.loss(params, instances)))
    want = compiled.node_params(jax.grad(lambda p: compiled.loss(p, instances))(params))
    for node, (gradient, _) in trainer.gradients.items():
        np.testing.assert_allclose(gradient, want[node], rtol=1e-5)
