"""The optimizer's state is read by name, assigned to, and moved between trainers; and other parameters are evaluated."""

import jax
import numpy as np
import optax
import pytest
from support import graphs

import ampjax as amp
from ampjax.errors import ParameterError, SettingsError

QUIET = {"progress": False}
DATA = graphs.chain_data(8)
ADAM = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
PLACES = {
    "async": {},
    "together": {
        "mode": "pipeline",
        "tx": optax.chain(optax.clip_by_global_norm(1.0), ADAM),
    },
    "hosts": {"hosts": amp.Hosts(2, kind="threads")},
    "together on hosts": {
        "mode": "pipeline",
        "tx": optax.chain(optax.clip_by_global_norm(1.0), ADAM),
        "hosts": amp.Hosts(2, kind="threads"),
    },
}


def made(place="async", **options):
    settings = {"tx": ADAM, **PLACES[place], **options}
    return amp.Trainer(
        graphs.chain(2),
        settings.pop("tx"),
        **settings,
    )


def rates(trainer):
    """The dictionaries of hyperparameters."""
    parts = []
    for state in trainer.opt_state.values():
        for part in (state, *state):
            parts.append(part)
    return [part.hyperparams for part in parts if hasattr(part, "hyperparams")]


@pytest.fixture(params=PLACES)
def trainer(request):
    found = made(request.param)
    yield found
    found.close()


@pytest.mark.first_case
def test_an_assigned_rate_holds_from_then_on(trainer):
    trainer.accumulate(DATA)
    before = trainer.params
    for rate in rates(trainer):
        rate["learning_rate"] = 0.0
    trainer.accumulate(DATA)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, before)
    assert all(rate["learning_rate"] == 0 for rate in rates(trainer))
    for rate in rates(trainer):
        rate["learning_rate"] = 0.1
    trainer.accumulate(DATA)
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(trainer.params), jax.tree.leaves(before), strict=True)
    )


def test_an_assignment_in_a_callback_holds_from_the_next_epoch_on():
    trainer = made()
    seen = []

    def stop(trainer, epoch):
        seen.append(trainer.params)
        for rate in rates(trainer):
            rate["learning_rate"] = 0.0

    trainer.fit(DATA, epochs=3, callbacks=[stop], **QUIET)
    jax.tree.map(
        np.testing.assert_array_equal,
        seen[1],
        seen[0],
    )
    jax.tree.map(
        np.testing.assert_array_equal,
        seen[2],
        seen[0],
    )


def test_an_old_copy_changes_only_what_was_assigned_to():
    trainer = made()
    plain = made()
    old = trainer.opt_state
    for each in (trainer, plain):
        each.accumulate(DATA)
    old["f0"].hyperparams["learning_rate"] = np.float32(0.1)  # as it is
    for each in (trainer, plain):
        each.accumulate(DATA)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, plain.params)


def test_an_assigned_rate_is_saved(tmp_path):
    trainer = made()
    trainer.opt_state["f0"].hyperparams["learning_rate"] = 0.5
    trainer.save(tmp_path / "saved")
    again = made()
    again.restore(tmp_path / "saved")
    assert [float(rate["learning_rate"]) for rate in rates(again)] == [0.5, pytest.approx(0.1)]


def test_states_move_between_trainers(trainer):
    if "all nodes" in trainer.opt_state:
        options = {"tx": PLACES["together"]["tx"], "mode": "pipeline"}
    else:
        options = {}
    other = made(**options)
    other.accumulate(DATA)
    trainer.set_params(other.params)
    trainer.opt_state = other.opt_state
    jax.tree.map(np.testing.assert_array_equal, trainer.opt_state, other.opt_state)
    for each in (trainer, other):
        each.accumulate(DATA)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        trainer.params,
        other.params,
    )


@pytest.mark.first_case
@pytest.mark.parametrize("place", PLACES)
def test_random_keys_in_a_state_are_read_saved_and_moved(place, tmp_path):
    noise = optax.chain(
        optax.add_noise(0.1, 0.5, jax.random.key(3)),
        optax.sgd(0.1),
    )
    trainer, other = (made(place, tx=noise) for _ in range(2))
    trainer.accumulate(DATA)
    trainer.save(tmp_path / "saved")
    other.set_params(trainer.params)
    other.opt_state = trainer.opt_state
    trainer.accumulate(DATA)
    other.accumulate(DATA)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        trainer.params,
        other.params,
    )
    after = trainer.params
    trainer.restore(tmp_path / "saved")
    trainer.accumulate(DATA)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        trainer.params,
        after,
    )
    with pytest.raises(ParameterError, match="expected random keys, got numbers"):
        trainer.opt_state = jax.tree.map(
            lambda x: np.zeros(np.shape(x), np.float32),
            trainer.opt_state,
        )
    for each in (trainer, other):
        each.close()


def test_what_can_not_be_assigned_says_so():
    trainer = made()
    trainer.accumulate(DATA)
    before = trainer.opt_state
    with pytest.raises(ValueError, match="read-only"):
        trainer.opt_state["f0"].inner_state[0].mu[...] = 0
    for states in (None, [before["f0"]], before["f0"]):
        with pytest.raises(
            ParameterError,
            match=r"optimizer states: expected a tree by name, of \['f0', 'f1'\], got ",
        ):
            trainer.opt_state = states
    with pytest.raises(
        ParameterError,
        match=r"optimizer state of `f9`: expected one of the names \['f0', 'f1'\], got another name",
    ):
        trainer.opt_state = {"f9": before["f0"]}
    with pytest.raises(
        ParameterError,
        match=r"optimizer state of `f0`: expected the structure .*, got .*the same optimizer",
    ):
        trainer.opt_state = {
            "f1": before["f0"],
            "f0": optax.adam(0.1).init(np.float32(1)),
        }
    with pytest.raises(ParameterError, match=r"expected an array of shape \(\), got \(2,\)"):
        trainer.opt_state = {
            "f0": jax.tree.map(
                lambda x: np.zeros(2),
                before["f0"],
            )
        }
    with pytest.raises(ParameterError, match=r"expected int32 numbers, got 'fast'"):
        trainer.opt_state = {
            "f0": jax.tree.map(lambda x: "fast", before["f0"]),
        }
    jax.tree.map(np.testing.assert_array_equal, trainer.opt_state, before)


def test_other_parameters_are_evaluated_and_nothing_is_changed(trainer):
    other = jax.tree.map(lambda x: 2 * x, trainer.params)
    before = trainer.params
    own = trainer.evaluate(DATA)["loss"]
    doubled = trainer.evaluate(DATA, params=other)["loss"]
    some = trainer.evaluate(DATA, params={"f1": other["f1"]})["loss"]
    assert trainer.evaluate(DATA)["loss"] == own != doubled != some
    jax.tree.map(np.testing.assert_array_equal, trainer.params, before)
    trainer.set_params(other)
    assert trainer.evaluate(DATA)["loss"] == doubled
    with pytest.raises(ParameterError, match="parameters of `f9`"):
        trainer.evaluate(DATA, params={"f9": 1.0})


def test_other_parameters_predict():
    model = amp.compile(
        lambda p, e: (amp.output("y", p["w"] * e["x"]), (p["w"] * e["x"] - e["z"]) ** 2)[1],
        {"w": np.float32(2)},
        {"x": "float32[]", "z": "float32[]"},
    )
    trainer = amp.Trainer(model.graph)
    data = model.data(
        [{"x": np.float32(3)}],
        labels=False,
    )
    assert trainer.predict(data, params={"w": np.float32(5)})["y"].payload.tolist() == [15.0]
    assert trainer.predict(data)["y"].payload.tolist() == [6.0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "learning_rate",
            "got one that it does not have. Make the optimizer with `optax.inject_hyperparams`",
        ),
        ("parms", "got one that it does not have. Did you mean `params`?"),
        ("graph", "got one that is read only"),
    ],
)
def test_an_assignment_that_would_be_lost_is_refused(name, text):
    trainer = made()
    graph = trainer.graph
    with pytest.raises(SettingsError) as error:
        setattr(trainer, name, 0.1)
    assert (
        f"`trainer.{name} = ...`: expected an attribute that can be assigned: `opt_state`, `params`, {text}"
        in str(error.value)
    )
    assert trainer.graph is graph and not hasattr(trainer, "learning_rate")
