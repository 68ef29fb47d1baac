"""Training in rounds is plain optax training wherever parameters are; what asynchronous training refuses; frozen parts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.plain_models import SPEC, TRANSFORMS, Model, example, parameters

import ampjax as amp
from ampjax.errors import DataError, SettingsError, SettingsWarning

QUIET = {"progress": False}
MODEL = Model(
    (("branch", "first", "second"), ("scan", "first", "second")),
    "square",
)
"""Two keys, one of them read in two places; two keys that nothing reads."""

EXAMPLES = [example(np.random.default_rng(seed)) for seed in range(7)]


def compiled(copies=1):
    return amp.compile(MODEL, parameters(0), SPEC, copies=copies)


def wanted(
    name,
    size=2,
    epochs=1,
    tx=None,
    gradient="mean",
) -> dict:
    """Parameters of plain optax training, in rounds of some examples in order."""
    tx = TRANSFORMS[name] if tx is None else tx
    step = optax.with_extra_args_support(tx)
    params = jax.tree.map(jnp.asarray, parameters(0))
    state = tx.init(params)
    for _ in range(epochs):
        for i in range(0, len(EXAMPLES), size):
            part = EXAMPLES[i : i + size]
            n = len(part) if gradient == "mean" else 1

            def minimised(p, part=part, n=n):
                return sum(MODEL(p, e) for e in part) / n

            loss, grads = jax.value_and_grad(minimised)(params)
            updates, state = step.update(grads, state, params, value=loss)
            params = optax.apply_updates(params, updates)
    return params


def close(one, other, rtol=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6),
        one,
        other,
    )


PLACES = {
    "workers": {"workers": 3},
    "copies": {"copies": 2, "workers": 2},
    "hosts": {"hosts": amp.Hosts(2, kind="threads")},
    "copies on hosts": {
        "copies": 2,
        "hosts": amp.Hosts(2, kind="threads"),
    },
}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["global norm and adamw", "plateaus", "adam"])
def test_a_step_of_all_parameters_wherever_they_are(place, name):
    options = dict(PLACES[place])
    model = compiled(options.pop("copies", 1))
    trainer = amp.Trainer(
        model.graph, TRANSFORMS[name], mode="pipeline", max_active_keys=2, **options
    )
    try:
        trainer.accumulate(model.data(EXAMPLES))
        close(model.params(trainer.params), wanted(name))
        copies = []
        for node in trainer.params:
            if node.startswith("first"):
                copies.append(trainer.params[node])
        for copy in copies[1:]:
            jax.tree.map(np.testing.assert_array_equal, copy, copies[0])
    finally:
        trainer.close()


@pytest.mark.first_case
@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_the_loss_that_a_transform_gets_is_the_one_whose_gradient_it_gets(gradient):
    model = compiled()
    polyak = optax.polyak_sgd(max_learning_rate=0.1)
    trainer = amp.Trainer(
        model.graph, polyak, mode="pipeline", max_active_keys=2, gradient=gradient
    )
    trainer.accumulate(model.data(EXAMPLES))
    close(
        model.params(trainer.params),
        wanted("polyak", tx=polyak, gradient=gradient),
    )


def test_parameters_that_nothing_reads_decay_as_in_optax():
    model = compiled()
    trainer = amp.Trainer(model.graph, TRANSFORMS["adamw"], mode="sync")
    assert {*trainer.params} == {"first", "second", "unread parameters"}
    trainer.accumulate(model.data(EXAMPLES))
    found = model.params(trainer.params)
    close(found, wanted("adamw", 1))
    assert not np.array_equal(
        found["third"]["w"],
        parameters(0)["third"]["w"],
    )
    again = amp.Trainer(model.graph, params=model.node_params(found))
    close(model.params(again.params), found, 0)


def test_a_fit_goes_on_from_a_checkpoint_of_a_joint_step(tmp_path):
    model = compiled()

    def make(**options):
        return amp.Trainer(
            model.graph,
            TRANSFORMS["global norm and adamw"],
            mode="pipeline",
            max_active_keys=2,
            **options,
        )

    trainer = make()
    trainer.accumulate(model.data(EXAMPLES))
    trainer.save(tmp_path / "saved")
    again = make(seed=0)
    again.restore(tmp_path / "saved")
    for each in (trainer, again):
        each.accumulate(model.data(EXAMPLES))
    jax.tree.map(np.testing.assert_array_equal, again.params, trainer.params)
    close(model.params(again.params), wanted("global norm and adamw", epochs=2))
    jax.tree.map(np.testing.assert_array_equal, again.opt_state, trainer.opt_state)


@pytest.mark.parametrize(
    ("tx", "mode", "expected", "got"),
    [
        (
            optax.adamw(0.1),
            "async",
            "the state ScaleByAdamState, EmptyState, EmptyState",
            "ScaleByAdamState, EmptyState",
        ),
        (
            optax.sgd(0.1),
            "async",
            "the state EmptyState, EmptyState",
            "ScaleByAdamState, EmptyState",
        ),
        (TRANSFORMS["global norm"], "sync", "the state no state", "ScaleByAdamState, EmptyState"),
    ],
    ids=["adamw", "sgd", "another mode"],
)
def test_a_checkpoint_of_another_optimizer(tmp_path, tx, mode, expected, got):
    model = compiled()
    amp.Trainer(model.graph, optax.adam(0.1)).save(tmp_path / "saved")
    trainer = amp.Trainer(model.graph, tx, mode=mode)
    before = trainer.params
    with pytest.raises(DataError) as error:
        trainer.restore(tmp_path / "saved")
    text = f"optimizer of `second`: expected {expected}, got {got}. Make the trainer with the optimizer and mode"
    assert text in str(error.value)
    assert len(str(error.value)) < 400
    jax.tree.map(np.testing.assert_array_equal, trainer.params, before)


@pytest.mark.parametrize("mode", ["async", "pipeline", "batch"])
def test_a_checkpoint_of_another_optimizer_with_the_same_state(tmp_path, mode):
    model = compiled()
    amp.Trainer(
        model.graph,
        optax.adam(0.1),
        mode=mode,
    ).save(tmp_path / "saved")
    amp.Trainer(
        model.graph,
        optax.adam(0.2),
        mode=mode,
    ).restore(tmp_path / "saved")
    trainer = amp.Trainer(
        model.graph,
        optax.nadam(0.1),
        mode=mode,
    )
    before = trainer.params
    with pytest.raises(DataError, match=r"optimizer of `.*that computes otherwise") as error:
        trainer.restore(tmp_path / "saved")
    assert len(str(error.value)) < 400
    jax.tree.map(np.testing.assert_array_equal, trainer.params, before)


def test_a_checkpoint_of_another_model_is_not_called_one_of_another_optimizer(tmp_path):
    def trainer(*names):
        model = amp.compile(
            lambda p, e: sum(jnp.sum(jnp.tanh(p[name]) * e["x"]) for name in names),
            {name: np.ones(3, np.float32) for name in names},
            {"x": "float32[3]"},
        )
        return amp.Trainer(
            model.graph,
            optax.adam(0.1),
            mode="batch",
        )

    trainer("one").save(tmp_path / "saved")
    with pytest.raises(DataError, match=r"dense leaves: expected .*params/two.*, got .*params/one"):
        trainer("two", "three").restore(tmp_path / "saved")


def test_gradients_that_were_accumulated_before_are_part_of_the_next_round():
    model = compiled()
    trainer = amp.Trainer(
        model.graph,
        optax.sgd(0.1),
        mode="pipeline",
        max_active_keys=7,
    )
    trainer.accumulate(model.data(EXAMPLES[:3]), update=False)
    trainer.accumulate(model.data(EXAMPLES[3:]))
    close(model.params(trainer.params), wanted("sgd", 7))


def test_a_node_has_a_transform_of_its_own_in_rounds_too():
    first = amp.node(
        "first",
        tx=optax.sgd(0.5),
    )(lambda p, x: jnp.tanh(x @ p["w"]))

    def function(p, e):
        return jnp.sum((first(p["a"], e["x"]) @ p["b"]["w"]) ** 2)

    params = {}
    for key in "ab":
        params[key] = {
            "w": np.eye(2, dtype=np.float32),
        }
    model = amp.compile(function, params, {"x": "float32[2]"})
    clipped = optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1))
    trainer = amp.Trainer(model.graph, clipped, mode="sync")
    one = {"x": np.array([0.3, 0.8], np.float32)}
    trainer.accumulate(model.data([one]))
    grads = jax.grad(function)(
        jax.tree.map(jnp.asarray, params),
        one,
    )
    b, _ = clipped.update(
        {"b": grads["b"]},
        clipped.init({"b": params["b"]}),
    )
    close(
        model.params(trainer.params),
        {
            "a": {"w": params["a"]["w"] - 0.5 * grads["a"]["w"]},
            "b": {"w": params["b"]["w"] + b["b"]["w"]},
        },
    )


# What is refused


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_line_search_is_refused(mode):
    text = r"setting `tx`.*: expected a transform of gradients, parameters and, at most, the loss \(`value`\), got one that also needs `grad`.*A line search calls the loss"
    with pytest.raises(SettingsError, match=text):
        trainer = amp.Trainer(
            compiled().graph,
            optax.lbfgs(),
            mode=mode,
        )
        trainer.accumulate(compiled().data(EXAMPLES))


def sharpness_aware(**settings):
    away = optax.chain(
        optax.contrib.normalize(),
        optax.sgd(0.05),
    )
    return optax.contrib.sam(optax.sgd(0.1), away, **settings)


@pytest.mark.parametrize("mode", ["batch", "pipeline"])
def test_a_transform_that_takes_no_staleness_is_not_given_one(mode):
    """SAM: two steps away from the parameters, then one that counts."""

    def function(p, e):
        return jnp.sum((p["w"] @ e["x"] - 1) ** 2)

    params = {"w": np.eye(2, dtype=np.float32)}
    examples = []
    for x in ([0.3, 0.8], [1, -1]):
        examples.append({"x": np.array(x, np.float32)})
    model = amp.compile(function, params, {"x": "float32[2]"})
    tx = sharpness_aware(sync_period=3)
    trainer = amp.Trainer(model.graph, tx, mode=mode, max_active_keys=2)
    trainer.fit(model.data(examples), epochs=4, progress=False)

    mean = lambda p: sum(function(p, e) for e in examples) / 2
    own = jax.tree.map(jnp.asarray, params)
    state = tx.init(own)
    for _ in range(4):
        updates, state = tx.update(
            jax.grad(mean)(own),
            state,
            own,
        )
        own = optax.apply_updates(own, updates)
    close(model.params(trainer.params), own)


def test_a_transform_that_calls_the_loss_is_refused():
    text = (
        r"at most, the loss \(`value`\), got one that also needs `grad_fn`.*without `opaque_mode`"
    )
    with pytest.raises(SettingsError, match=text):
        amp.Trainer(
            compiled().graph,
            sharpness_aware(opaque_mode=True),
            mode="sync",
        )


def test_labels_of_other_keys_are_refused_with_optaxs_words():
    tx = optax.multi_transform(
        {"slow": optax.sgd(0.1)},
        {"other": "slow"},
    )
    with pytest.raises(
        SettingsError,
        match=r"setting `tx`: expected a transform that fits these parameters, got ValueError: .*the keys of the parameters",
    ):
        amp.Trainer(compiled().graph, tx, mode="sync")


def test_labels_by_key_are_refused_in_asynchronous_mode():
    text = r"setting `tx`, node `second`: expected a transform that fits these parameters.*`amp.node\(name, tx=...\)`.*mode='pipeline'"
    with pytest.raises(SettingsError, match=text):
        amp.Trainer(compiled().graph, TRANSFORMS["labels by key"])


def test_a_rule_that_needs_the_loss_is_refused_in_asynchronous_mode():
    model = compiled()
    trainer = amp.Trainer(model.graph, TRANSFORMS["plateaus"])
    with pytest.raises(
        SettingsError, match="one that needs the loss, which asynchronous updates don't have"
    ):
        trainer.accumulate(model.data(EXAMPLES))


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["global norm", "only if finite"])
def test_a_rule_that_looks_at_all_parameters_is_warned_of_in_asynchronous_mode(name):
    model = compiled()
    trainer = amp.Trainer(model.graph, TRANSFORMS[name])
    with pytest.warns(
        SettingsWarning,
        match=r"got one that looks at all of them together.*amp.node\(name, tx=...\)",
    ):
        trainer.accumulate(model.data(EXAMPLES))
    trainer.accumulate(model.data(EXAMPLES))  # it is said once


# Frozen parts


@pytest.mark.first_case
@pytest.mark.parametrize("mode", ["async", "pipeline"])
@pytest.mark.parametrize("name", ["global norm", "adam"])
@pytest.mark.filterwarnings("ignore::ampjax.errors.SettingsWarning")
def test_frozen_nodes_stay_as_they_are(mode, name):
    model = compiled()
    trainer = amp.Trainer(
        model.graph,
        TRANSFORMS[name],
        mode=mode,
        max_active_keys=2,
        frozen=("first",),
    )
    trainer.fit(model.data(EXAMPLES), epochs=2, **QUIET)
    found = model.params(trainer.params)
    close(found["first"], parameters(0)["first"], 0)
    assert not np.allclose(
        found["second"]["w"],
        parameters(0)["second"]["w"],
    )


def test_optimizers_do_not_see_frozen_nodes():
    model = compiled()
    trainer = amp.Trainer(
        model.graph,
        TRANSFORMS["global norm"],
        mode="sync",
        frozen=("first",),
    )
    trainer.accumulate(model.data(EXAMPLES[:1]))
    params = jax.tree.map(jnp.asarray, parameters(0))
    grads = jax.grad(MODEL)(params, EXAMPLES[0]) | {"first": None}
    updates, _ = TRANSFORMS["global norm"].update(
        grads, TRANSFORMS["global norm"].init(params | {"first": None})
    )
    close(
        model.params(trainer.params)["second"],
        optax.apply_updates(params["second"], updates["second"]),
    )


def test_frozen_names():
    with pytest.raises(
        SettingsError,
        match=r"setting `frozen`: expected names among \['second', 'first'\], got 'fist'. Did you mean `first`\?",
    ):
        amp.Trainer(compiled().graph, frozen=("fist",))
    with pytest.raises(
        SettingsError,
        match=r"setting `frozen`: expected names of nodes, got 'first'. Write `frozen=",
    ):
        amp.Trainer(compiled().graph, frozen="first")
