"""Models that only a batch takes: operations on whole sequences, parameters of several keys in one operation; trained by a trainer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import DataError, GraphError, SettingsError

SPEC = {"words": "int32[n]", "tags": "int32[n]"}
H = 3


def make_params():
    rng = np.random.default_rng(0)
    return {
        "embed": rng.normal(size=(7, H)).astype(np.float32),
        "output": {"w": rng.normal(size=(H, 4)).astype(np.float32)},
        "spare": np.ones(2, np.float32),
    }


def examples(n=11, seed=1):
    rng = np.random.default_rng(seed)
    found = []
    for length in rng.integers(1, 6, n):
        words = rng.integers(
            0,
            7,
            length,
        ).astype(np.int32)
        found.append({"words": words, "tags": words % 4})
    return found


def tagger(p, s):
    words = p["embed"][s["words"]][::-1]
    before = jnp.concatenate(
        [
            jnp.zeros((1, H)),
            words[:-1],
        ]
    )
    logits = (words + before) @ p["output"]["w"]
    amp.metric(
        "near",
        (logits.argmax(1) == s["tags"]).mean(),
    )
    amp.output("guess", logits.argmax(1))
    amp.output("first", logits[0])
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits,
        s["tags"],
    )
    return losses.mean() + 1e-2 * penalty, {"size": jnp.sum(p["spare"])}


@functools.cache
def compiled():
    return amp.compile(
        tagger,
        make_params(),
        SPEC,
        messages=False,
    )


def trainer(tx=None, **settings):
    return amp.Trainer(
        compiled().graph,
        tx or optax.adam(0.05),
        mode="batch",
        max_active_keys=4,
        **settings,
    )


def test_training_is_plain_optax_on_the_mean_of_the_function():
    tx = optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(0.05),
    )
    data = examples(12)
    own = trainer(tx)
    history = own.fit(
        compiled().data(data),
        compiled().data(data[:5]),
        epochs=2,
        progress=False,
    )
    params = make_params()
    state = tx.init(params)
    rng = np.random.default_rng(0)

    gradients = jax.jit(jax.grad(lambda p, one: tagger(p, one)[0]))

    for _ in range(2):
        order = rng.permutation(len(data))
        for start in range(0, len(data), 4):
            some = [data[i] for i in order[start : start + 4]]
            each = [gradients(params, one) for one in some]
            grads = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *each)
            changes, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, changes)
    found = compiled().params(own.params)
    for leaf, same in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(params),
        strict=True,
    ):
        np.testing.assert_allclose(
            leaf,
            same,
            rtol=2e-4,
            atol=1e-5,
        )
    assert history[-1].valid.keys() == {"loss", "near", "size"}
    want = np.mean(
        [
            tagger(
                params,
                one,
            )[0]
            for one in data[:5]
        ]
    )
    np.testing.assert_allclose(
        history[-1].valid["loss"],
        want,
        rtol=1e-3,
    )


def test_predictions_need_no_labels_and_come_in_order():
    data = examples(9)
    unlabelled = [{"words": one["words"]} for one in data]
    told = trainer().predict(
        compiled().data(unlabelled, labels=False),
        progress=False,
    )
    guess = []
    first = []
    for one in data:
        words = make_params()["embed"][one["words"]][::-1]
        before = np.concatenate(
            [
                np.zeros((1, H)),
                words[:-1],
            ]
        )
        logits = (words + before) @ make_params()["output"]["w"]
        guess += logits.argmax(1).tolist()
        first.append(logits[0])
    assert told["guess"].payload.tolist() == guess
    lengths = [len(one["words"]) for one in data]
    assert told["guess"].instance.tolist() == np.repeat(np.arange(9), lengths).tolist()
    np.testing.assert_allclose(
        told["first"].payload,
        first,
        rtol=1e-4,
        atol=1e-5,
    )


def test_an_output_that_depends_on_missing_labels_is_refused():
    def model(p, s):
        amp.output("told", s["tags"] * 2)
        return jnp.sum(p["w"]) * jnp.sum(s["tags"])

    own = amp.compile(
        model,
        {"w": np.ones(2, np.float32)},
        SPEC,
        messages=False,
    )
    one = amp.Trainer(own.graph, mode="batch")
    data = own.data(
        [{"words": [1, 2]}],
        labels=False,
    )
    with pytest.raises(
        DataError,
        match=r"\['tags'\]",
    ):
        one.predict(data, progress=False)


def test_frozen_keys_stay_and_checkpoints_go_on(tmp_path):
    data = compiled().data(examples())
    one = trainer(frozen=("output",))
    one.fit(data, epochs=1, progress=False)
    before = make_params()
    np.testing.assert_array_equal(
        compiled().params(one.params)["output"]["w"],
        before["output"]["w"],
    )
    one.save(tmp_path / "saved")
    one.fit(data, epochs=1, progress=False)
    other = trainer(frozen=("output",))
    other.restore(tmp_path / "saved")
    other.fit(data, epochs=1, progress=False)
    for leaf, same in zip(
        jax.tree.leaves(other.params),
        jax.tree.leaves(one.params),
        strict=True,
    ):
        np.testing.assert_array_equal(leaf, same)


def test_it_is_verified_against_the_function_itself():
    verdict = compiled().verify(
        examples(3),
        progress=False,
    )
    assert verdict.worst < 1e-5
    assert "The batch form agrees" in str(verdict)


def test_the_tolerance_follows_the_narrowest_floats_of_the_model():
    def model(p, s):
        words = p["embed"].astype(jnp.bfloat16)[s["words"]][::-1]
        logits = (words @ p["output"]["w"].astype(jnp.bfloat16)).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, s["tags"])
        return losses.mean()

    own = amp.compile(
        model,
        make_params(),
        SPEC,
        messages=False,
    )
    verdict = own.verify(examples(3), progress=False)
    assert 1e-5 < verdict.worst < 0.1


def test_keys_without_arrays_stay_as_they_are():
    empty = {"dict": {}, "list": [], "none": None}
    own = amp.compile(
        tagger,
        {**make_params(), **empty},
        SPEC,
        messages=False,
    )
    one = amp.Trainer(
        own.graph,
        optax.sgd(0.1),
        mode="batch",
        max_active_keys=4,
    )
    one.fit(
        own.data(examples(5)),
        epochs=1,
        progress=False,
    )
    found = own.params(one.params)
    assert {key: found[key] for key in empty} == empty
    assert own.node_params(found).keys() == make_params().keys()


@pytest.mark.parametrize(
    "options",
    [
        {"tx": optax.sgd(0.0)},
        {"gradient": "sum"},
        {"replicas": 2},
    ],
)
def test_settings_of_single_nodes_are_refused(options):
    def model(p, s):
        def step(h, word):
            add = amp.node(
                "add",
                **options,
            )(lambda table, h: jnp.tanh(h + table[0]))
            return add(p["embed"], h), ()

        h, _ = amp.scan(
            step,
            jnp.zeros(H),
            s["words"],
        )
        return jnp.sum(h)

    (name,) = options
    with pytest.raises(GraphError, match=f"without settings of its own.*`{name}` of node `add`"):
        amp.compile(
            model,
            make_params(),
            SPEC,
            messages=False,
        )


def test_two_outputs_with_one_name_are_refused():
    def model(p, s):
        amp.output("told", s["words"])
        amp.map(
            lambda word: amp.output("told", p["embed"][word]),
            s["words"],
        )
        return jnp.sum(p["embed"])

    with pytest.raises(GraphError, match="expected a name of its own for each output, got `told`"):
        amp.compile(
            model,
            make_params(),
            SPEC,
            messages=False,
        )


def test_what_passes_messages_is_refused():
    graph = compiled().graph
    data = compiled().data(examples(2))
    for call in (
        lambda: amp.Trainer(graph),
        lambda: compiled().explain(),
        lambda: amp.verify(graph, data),
        lambda: amp.simulate(graph, data),
    ):
        with pytest.raises(
            GraphError,
            match="expected a graph that passes messages",
        ):
            call()
    with pytest.raises(
        SettingsError,
        match="expected its default",
    ):
        trainer(min_update_interval=4)


def test_copies_and_tables_are_refused():
    with pytest.raises(
        GraphError,
        match="expected one copy, got 2",
    ):
        amp.compile(
            tagger,
            make_params(),
            SPEC,
            copies=2,
            messages=False,
        )
    table = amp.sparse.Table(
        np.zeros((7, H), np.float32),
        optax.sgd(0.1),
    )
    with pytest.raises(
        GraphError,
        match="expected arrays, got a table in host memory",
    ):
        amp.compile(
            tagger,
            {**make_params(), "embed": table},
            SPEC,
            messages=False,
        )


def test_a_model_without_a_loss_is_refused():
    with pytest.raises(
        GraphError,
        match="expected one number of floats",
    ):
        amp.compile(
            lambda p, s: p["embed"][s["words"]],
            make_params(),
            SPEC,
            messages=False,
        )
