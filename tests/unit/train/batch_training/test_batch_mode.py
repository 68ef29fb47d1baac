"""Training by whole batches is plain optax training, and that of rounds of messages."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import batch_mode
from support.batch_mode import assert_close, compiled, examples, plain_optax, trainer
from support.effort import left_to_nightly

import ampjax as amp

TRANSFORMS = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(0.05),
    "clipped": optax.chain(
        optax.clip_by_global_norm(0.3),
        optax.adamw(0.05),
    ),
    "plateau": optax.chain(
        optax.sgd(0.1, momentum=0.9),
        optax.contrib.reduce_on_plateau(patience=1, cooldown=0),
    ),
    "labels": optax.multi_transform(
        {"slow": optax.sgd(0.01), "fast": optax.adam(0.1)},
        {"embed": "slow", "linear": "fast", "spare": "slow"},
    ),
}


@pytest.mark.parametrize(
    "name",
    ["labels", *left_to_nightly(TRANSFORMS, "labels")],
)
def test_it_is_plain_optax_on_the_mean_of_the_function(name):
    tx = TRANSFORMS[name]
    data = examples(10)
    own = trainer(tx=tx)
    own.fit(
        compiled().data(data),
        epochs=2,
        progress=False,
    )
    want = plain_optax(tx, data, 2)
    assert_close(
        compiled().params(own.params),
        want,
    )


@pytest.mark.parametrize(
    "mode, keys",
    [
        ("sync", 1),
        pytest.param("pipeline", 4, marks=pytest.mark.nightly),
    ],
)
def test_it_is_training_through_messages_in_rounds(mode, keys):
    data = compiled().data(examples())
    valid = compiled().data(examples(9, seed=2))
    histories = []
    params = []
    for one in (trainer(keys=keys), trainer(mode, keys=keys)):
        history = one.fit(
            data,
            valid,
            epochs=2,
            progress=False,
        )
        histories.append(history)
        params.append(one.params)
    assert_close(*params)
    for epoch, other in zip(*histories, strict=True):
        assert epoch.train.keys() == {"loss", "near", "size"}
        for part, same in ((epoch.train, other.train), (epoch.valid, other.valid)):
            assert part.keys() == same.keys()
            for metric, value in part.items():
                np.testing.assert_allclose(
                    value,
                    same[metric],
                    rtol=2e-5,
                )
        assert (epoch.updates, epoch.messages) == (other.updates, 0)


@pytest.mark.nightly
def test_evaluation_and_predictions_are_those_of_messages():
    data = examples(70)
    one, other = trainer(), trainer("pipeline")
    for own in (one, other):
        own.fit(
            compiled().data(examples()),
            progress=False,
        )
    instances = compiled().data(data)
    found = one.evaluate(instances)
    want = other.evaluate(instances)
    assert found.keys() == want.keys()
    for metric, value in found.items():
        np.testing.assert_allclose(
            value,
            want[metric],
            rtol=1e-4,
        )
    unlabelled = []
    for each in data:
        unlabelled.append({"words": each["words"], "x": each["x"]})
    told = one.predict(compiled().data(unlabelled, labels=False))["guess"]
    wanted = other.predict(instances)["guess"]
    np.testing.assert_allclose(
        told.payload,
        wanted.payload,
        rtol=1e-4,
        atol=1e-5,
    )
    assert told.instance.tolist() == wanted.instance.tolist()
    start = one.evaluate(
        instances,
        params=compiled().node_params(batch_mode.params()),
    )
    assert start["loss"] != found["loss"] == one.evaluate(instances)["loss"]


def test_outputs_of_elements_come_in_order():
    def tell(p, s):
        amp.output(
            "each",
            amp.map(
                lambda w: p["e"][w],
                s["words"],
            ),
        )
        amp.output("whole", s["words"])
        return amp.sum(
            amp.map(
                lambda w: p["e"][w],
                s["words"],
            )
        )

    own = amp.compile(
        tell,
        {"e": np.arange(7.0, dtype=np.float32)},
        {"words": "int32[n]"},
    )
    data = [{"words": each["words"]} for each in examples(5)]
    told = []
    for mode in ("batch", "pipeline"):
        one = amp.Trainer(
            own.graph,
            mode=mode,
            group_by_size=2,
        )
        told.append(one.predict(own.data(data)))
    for name in ("each", "whole"):
        np.testing.assert_array_equal(
            told[0][name].payload,
            told[1][name].payload,
        )
        np.testing.assert_array_equal(
            told[0][name].instance,
            told[1][name].instance,
        )


@pytest.mark.nightly
def test_sums_of_gradients_and_frozen_nodes_and_settings_of_single_nodes():
    def parts(p, s):
        h = amp.mean(
            amp.map(
                amp.node(
                    "table",
                    tx=optax.sgd(0.3),
                )(lambda w: p["embed"][w]),
                s["words"],
            )
        )
        return (h @ p["linear"]["w"] + p["linear"]["b"] - s["y"]) ** 2

    own = amp.compile(
        parts,
        batch_mode.params(),
        batch_mode.SPEC,
    )
    params = []
    for mode in ("batch", "pipeline"):
        for options in ({"gradient": "sum"}, {"frozen": ("linear",)}):
            one = amp.Trainer(
                own.graph,
                optax.sgd(0.01),
                mode=mode,
                max_active_keys=4,
                **options,
            )
            one.fit(
                own.data(examples()),
                progress=False,
            )
            params.append(one.params)
    assert_close(params[0], params[2])
    assert_close(params[1], params[3])
    start = batch_mode.params()["linear"]
    assert batch_mode.same_bits(params[1]["linear"], start)


def test_dropout_draws_in_training_alone_and_anew_in_each_round():
    own = compiled(batch_mode.dropped)
    data = own.data(examples(8))
    still = optax.sgd(0.0)
    runs = []
    for seed in (0, 0, 1):
        one = trainer(
            tx=still,
            function=batch_mode.dropped,
            seed=seed,
        )
        history = one.fit(
            data,
            data,
            epochs=2,
            progress=False,
        )
        runs.append([(epoch.train["loss"], epoch.valid["loss"]) for epoch in history])
    assert runs[0] == runs[1]
    (first, without), (second, also) = runs[0]
    assert first != second and without == also
    assert runs[2][0][0] != first
    assert runs[2][0][1] == pytest.approx(without)


@pytest.mark.nightly
def test_all_programs_are_compiled_ahead():
    one = trainer(
        tx=optax.sgd(0.123),
        compile_ahead=True,
        group_by_size=4,
    )
    data = compiled().data(examples(40))
    history = one.fit(
        data,
        compiled().data(examples(9, seed=3)),
        epochs=2,
        progress=False,
    )
    assert [epoch.compilations for epoch in history] == [0, 0]
    other = trainer(tx=optax.sgd(0.321))
    other.warm_up(data)
    start = other.params
    assert batch_mode.same_bits(start, trainer().params)
    assert [epoch.compilations for epoch in other.fit(data, progress=False)] == [0]


@pytest.mark.nightly
def test_integers_among_parameters_stay_and_unread_ones_are_updated():
    tx = optax.adamw(0.1, weight_decay=0.5)
    data = examples(6)
    one = trainer(tx=tx)
    one.fit(compiled().data(data), progress=False)
    found = compiled().params(one.params)
    assert (found["spare"] < 0.95).all()
    assert_close(
        found,
        plain_optax(tx, data, 1),
    )


@pytest.mark.nightly
def test_hyperparameters_are_assigned_in_callbacks():
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)

    def stop(trainer, epoch):
        trainer.opt_state["all nodes"].hyperparams["learning_rate"] = 0.0

    one = trainer(tx=tx)
    kept = []
    history = one.fit(
        compiled().data(examples()),
        epochs=2,
        callbacks=[stop, lambda trainer, epoch: kept.append(trainer.params)],
        progress=False,
    )
    assert len(history) == 2
    assert batch_mode.same_bits(*kept)
    assert not batch_mode.same_bits(kept[0], trainer().params)


def test_a_callback_ends_training_and_a_loss_that_is_lost_does():
    one = trainer()
    data = examples()
    history = one.fit(
        compiled().data(data),
        epochs=5,
        callbacks=[lambda trainer, epoch: True],
        progress=False,
    )
    assert len(history) == 1
    data[3] = {
        **data[3],
        "y": np.float32(np.nan),
    }
    with pytest.warns(RuntimeWarning, match="expected a finite training loss, got nan"):
        history = one.fit(
            compiled().data(data),
            epochs=3,
            progress=False,
        )
    assert history.diverged and len(history) == 1


class Drawn:
    """Other examples in each epoch."""

    def __init__(self, seed=0):
        self.seed = seed

    def plain(self):
        return examples(10, self.seed)

    def reshuffle(self, rng):
        return Drawn(int(rng.integers(100)))


@pytest.mark.nightly
def test_data_are_drawn_anew_for_each_epoch():
    runs = []
    for mode in ("batch", "pipeline"):
        one = trainer(mode)
        one.fit(
            compiled().data(Drawn()),
            epochs=3,
            progress=False,
        )
        runs.append(one.params)
    assert_close(*runs)


def test_a_model_in_double_precision():
    def square(p, s):
        return (p["w"] * amp.sum(s["x"]) - 1) ** 2

    with jax.enable_x64(True):
        own = amp.compile(
            square,
            {"w": np.float64(0.3)},
            {"x": "float64[n]"},
        )
        data = []
        for n in range(1, 5):
            data.append({"x": np.arange(n) + 1e-9})
        params = []
        for mode in ("batch", "pipeline"):
            one = amp.Trainer(
                own.graph,
                optax.sgd(1e-3),
                mode=mode,
                max_active_keys=2,
            )
            one.fit(
                own.data(data),
                progress=False,
            )
            params.append(one.params["w"])
        assert params[0].dtype == jnp.float64
        np.testing.assert_allclose(
            *params,
            rtol=1e-13,
        )


def test_gradients_whose_sum_is_beyond_float16():
    def model(params, example):
        return params["w"] * example["x"]

    params = {"w": jnp.float16(1)}
    spec = {"x": "float32[]"}
    rising = amp.compile(model, params, spec, messages=False)
    own = amp.Trainer(
        rising.graph,
        optax.sgd(2.0**-14),
        mode="batch",
        max_active_keys=8,
    )
    history = own.fit(
        rising.data([{"x": np.float32(16384)}] * 8),
        progress=False,
    )
    assert rising.params(own.params)["w"] == 0  # the sum of the gradients is 131072
    assert history[0].train["loss"] == 16384
