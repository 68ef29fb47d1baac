"""The optimizer's state of a runner is assigned to as plain optax's is: in parts, as hyperparameters are, and as a whole."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.optimizers import worst

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import ParameterError, SettingsError

RNG = np.random.default_rng(0)
NAMES = [f"t{k}" for k in range(4)]
PARAMS = {name: RNG.normal(size=(12 + k, 3)).astype(np.float32) for k, name in enumerate(NAMES)} | {
    "columns": RNG.normal(size=(3, 12)).astype(np.float32),
    "w": RNG.normal(size=3).astype(np.float32),
}
RATES = [0.1, 0.0, 0.5, 0.02, 0.3]


def adam(rate=0.1):
    return optax.inject_hyperparams(optax.adam)(learning_rate=rate)


def loss(params, batch):
    rows = sum(params[name][batch["ids"][:, k]] for k, name in enumerate(NAMES))
    return jnp.mean(
        ((rows + params["columns"][:, batch["ids"][:, 0]].T) @ params["w"] - batch["y"]) ** 2
    )


def batch(seed):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(0, 12, (4, 4)),
        "y": rng.normal(size=4).astype(np.float32),
    }


def make(tx=None, n_machines=2, **options):
    devices = jax.local_devices()
    machines = Resources(tuple(Machine(f"m{i}", (devices[i],)) for i in range(n_machines)))
    config = px.ParallaxConfig(alpha_threshold=2.0, check_equivalence="off", **options)
    return px.get_runner(loss, PARAMS, tx or adam(), machines, config)


class Plain:
    """Plain optax."""

    def __init__(self, tx=None):
        self.tx = tx or adam()
        self.params = PARAMS
        self.state = self.tx.init(PARAMS)

    def run(self, batch):
        updates, self.state = self.tx.update(
            jax.grad(loss)(self.params, batch),
            self.state,
            self.params,
        )
        self.params = optax.apply_updates(self.params, updates)


def same(runner, plain):
    assert (
        worst(
            (runner.params, runner.opt_state),
            (plain.params, plain.state),
        )
        < 2e-5
    )


OPTIONS = {
    "tables": {},
    "dense": {"keep_dense": ("*",)},
    "on every machine": {"run_option": "ar"},
    "at servers": {"sync": False, "max_staleness": 0, "n_machines": 1},
    "at processes": {"server_processes": True},
}


@pytest.mark.first_case
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.nightly) if n[:2] in ("on", "at") else n for n in OPTIONS],
)
def test_a_learning_rate_changes_when_it_is_assigned(name):
    with make(**OPTIONS[name]) as runner:
        plain = Plain()
        hyperparams = None
        for seed, rate in enumerate(RATES):
            if seed < 3:
                runner.opt_state.hyperparams["learning_rate"] = jnp.float32(rate)
                hyperparams = runner.opt_state.hyperparams
            else:
                hyperparams["learning_rate"] = rate  # of a state that was asked for some steps ago
            plain.state.hyperparams["learning_rate"] = jnp.float32(rate)
            runner.run(batch(seed))
            plain.run(batch(seed))
        assert float(runner.opt_state.hyperparams["learning_rate"]) == np.float32(RATES[-1])
        same(runner, plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "tables",
        "dense",
        pytest.param("on every machine", marks=pytest.mark.nightly),
    ],
)
def test_a_whole_state_is_taken_over(name):
    plain = Plain()
    runner = make(**OPTIONS[name])
    runner.run(batch(9))
    [plain.run(batch(seed)) for seed in range(3)]
    runner.reset(plain.params)
    runner.opt_state = plain.state
    same(runner, plain)
    early = make(**OPTIONS[name])
    early.opt_state = plain.state  # before it is known where it will be
    assert worst(early.opt_state, plain.state) == 0
    early.build(batch(0))
    assert worst(early.opt_state, plain.state) == 0
    for each in (runner, plain):
        each.run(batch(5))
    same(runner, plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tables", "dense"])
def test_parts_of_a_state_are_assigned(name):
    tx = optax.chain(
        optax.trace(0.5),
        optax.scale(-0.1),
    )
    runner = make(tx, **OPTIONS[name])
    plain = Plain(tx)
    for each in (runner, plain):
        each.run(batch(0))
    for trace in (runner.opt_state[0].trace, plain.state[0].trace):
        trace["t1"] = np.zeros((13, 3))
        trace["columns"] = np.arange(36.0).reshape(3, 12).astype(np.float32)
        trace["w"] = np.ones(3)
    plain.state = jax.tree.map(jnp.float32, plain.state)
    for each in (runner, plain):
        each.run(batch(1))
    same(runner, plain)


@pytest.mark.slow
def test_what_was_assigned_is_saved_and_outlives_a_restore(tmp_path):
    runner = make(n_machines=1)
    runner.run(batch(0))
    hyperparams = runner.opt_state.hyperparams
    hyperparams["learning_rate"] = 0.25
    runner.save(tmp_path / "c")
    hyperparams["learning_rate"] = 0.5
    runner.restore(tmp_path / "c")
    assert float(runner.opt_state.hyperparams["learning_rate"]) == 0.25
    hyperparams["learning_rate"] = 0.75
    assert float(runner.opt_state.hyperparams["learning_rate"]) == 0.75
    again = make(n_machines=1)
    again.restore(tmp_path / "c")
    assert float(again.build(batch(0)).opt_state.hyperparams["learning_rate"]) == 0.25


def wrong_key(runner):
    runner.opt_state.hyperparams["learning_rat"] = 0.1


def wrong_shape(runner):
    runner.opt_state.hyperparams["learning_rate"] = np.ones(2, np.float32)


def no_array(runner):
    runner.opt_state.hyperparams["learning_rate"] = "small"


def without_a_part(runner):
    del runner.opt_state.inner_state[0].mu["t1"]


MISTAKES = [
    (wrong_key, "optimizer state, `.hyperparams`: expected values for b1, b2, eps, eps_root, learning_rate, got learning_rat in place of none. Assign values to what is there"),
    (wrong_shape, "optimizer state, `.hyperparams['learning_rate']`: expected float32[], got float32[2]. Assign an array of this shape."),
    (no_array, "optimizer state, `.hyperparams['learning_rate']`: expected float32[], got str 'small'."),
    (without_a_part, "got none in place of .inner_state[0].mu['t1']. Assign values to what is there, or a whole state: `runner.opt_state = state`."),
]  # fmt: skip


@pytest.mark.first_case
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "text"),
    MISTAKES,
    ids=[mistake.__name__ for mistake, _ in MISTAKES],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(mistake, text):
    runner = make(n_machines=1)
    runner.run(batch(0))
    before = runner.params, runner.opt_state
    mistake(runner)
    with pytest.raises(ParameterError, match=re.escape(text)):
        runner.run(batch(1))
    assert runner.steps == 1 and float(runner.opt_state.hyperparams["learning_rate"]) == np.float32(
        0.1
    )
    assert worst((runner.params, runner.opt_state), before) == 0
    runner.run(batch(1))


def test_another_optimizers_state_is_refused():
    runner = make(n_machines=1)
    with pytest.raises(
        ParameterError, match="Give the state of the same optimizer for the same parameters"
    ):
        runner.opt_state = optax.sgd(0.1).init(PARAMS)
    with pytest.raises(
        ParameterError,
        match=re.escape("`.inner_state[0].mu['w']`: expected float32[3], got float32[2]"),
    ):
        runner.opt_state = adam().init(PARAMS | {"w": np.ones(2, np.float32)})


def test_arrays_of_a_state_can_not_be_written_into():
    runner = make(n_machines=1).build(batch(0))
    with pytest.raises(ValueError, match="read-only"):
        runner.opt_state.inner_state[0].mu["t1"][...] = 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "learning_rate",
            "one that it does not have. Make the optimizer with `optax.inject_hyperparams`, as in",
        ),
        (
            "params",
            "one that is read only. `runner.reset(params)` starts anew from other parameters.",
        ),
        ("opt_sate", "one that it does not have. Did you mean `opt_state`?"),
        ("steps", "one that is read only. `runner.restore(folder)` goes on"),
    ],
)
def test_an_assignment_that_would_be_lost_is_refused(name, text):
    runner = make(n_machines=1)
    with pytest.raises(SettingsError) as error:
        setattr(runner, name, PARAMS)
    expected = f"`runner.{name} = ...`: expected an attribute that can be assigned: `opt_state`, got {text}"
    assert str(error.value).startswith(expected)
    assert "params" in dir(runner) and name not in vars(runner)
