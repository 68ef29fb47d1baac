"""Rows that begin anew, and rows that are added between steps, equal plain optax in every home of a variable."""

import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.optimizers import worst
from support.worker_runners import TWO, here, kill, same_model
from support.worker_runners import batch as worker_batch
from support.worker_runners import make as make_workers

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, SettingsError, TableError

RNG = np.random.default_rng(0)
NAMES = [f"t{k}" for k in range(4)]


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


PARAMS = {name: normal(RNG, 12 + k, 3) for k, name in enumerate(NAMES)}
PARAMS["columns"] = normal(RNG, 3, 12)
PARAMS["w"] = normal(RNG, 3)
ONES = np.ones((1, 3))
ADDED = np.arange(15, dtype=np.float32).reshape(5, 3)
LONGER = PARAMS | {"t1": np.concatenate([PARAMS["t1"], ADDED])}
CLOSE = 2e-5  # as in `test_optimizer_state`: replicas sum in another order than one device
TX = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)


def loss(params, batch):
    """Four tables of one form, which are kept as one, and a table of columns."""
    ids = batch["ids"].T
    total = params["columns"][:, ids[0]].T
    for name, own in zip(NAMES, ids, strict=True):
        total = total + params[name][own]
    error = total @ params["w"] - batch["y"]
    return jnp.mean(error**2)


def batch(seed):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(0, 12, (4, 4)),
        "y": normal(rng, 4),
    }


def make(
    n_machines=2,
    params=PARAMS,
    loss=loss,
    tx=TX,
    **options,
):
    machines = []
    for i, device in enumerate(jax.local_devices()[:n_machines]):
        machines.append(Machine(f"m{i}", (device,)))
    config = px.ParallaxConfig(**{"alpha_threshold": 2.0, "check_equivalence": "off"} | options)
    return px.get_runner(
        loss,
        params,
        tx,
        Resources(tuple(machines)),
        config,
    )


class Plain:
    """Plain optax."""

    def __init__(self, params=PARAMS, loss=loss, tx=TX):
        self.tx = tx
        self.params = params
        self.state = tx.init(params)
        self.loss = loss

    def run(self, batch):
        updates, self.state = self.tx.update(
            jax.grad(self.loss)(self.params, batch),
            self.state,
            self.params,
        )
        self.params = optax.apply_updates(self.params, updates)

    def assign(self, name, rows, values):
        """Rows of a table along its first axis, columns along the last."""
        place = (slice(None), rows) if name == "columns" else rows
        values = values.T if name == "columns" else values

        def begun(path, old, new):
            if path[-1] != jax.tree_util.DictKey(name):
                return old
            return jnp.asarray(old).at[place].set(new[place])

        leaf = jnp.asarray(self.params[name])
        leaf = leaf.at[place].set(values)
        self.params = self.params | {name: leaf}
        fresh = self.tx.init(self.params)
        self.state = jax.tree_util.tree_map_with_path(begun, self.state, fresh)


OPTIONS = {
    "tables": {},
    "dense": {"keep_dense": ("*",)},
    "some dense": {"keep_dense": ("t1", "columns")},
    "lazy": {"table_mode": "lazy", "partitions": 3},
    "on every machine": {"run_option": "ar"},
    "at servers": {"sync": False, "max_staleness": 0, "n_machines": 1},
    "at processes": {"server_processes": True},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.nightly) if n[:2] in ("on", "at", "la") else n
        for n in OPTIONS
    ],
)
def test_rows_begin_anew(name):
    # SGD moves no row without a gradient, so lazy tables are plain optax, too.
    tx = optax.adagrad(0.1) if name == "lazy" else TX
    with make(tx=tx, **OPTIONS[name]) as runner:
        plain = Plain(tx=tx)
        is_dense = "columns" in OPTIONS[name].get("keep_dense", "") or name == "dense"
        for seed in range(4):
            assigned = {"t1": 3, "t3": 1}
            if not is_dense:
                assigned["columns"] = 2
            for variable, count in assigned.items():
                if seed == 0 and variable == "columns":
                    continue  # before the first batch nobody knows that its rows are its columns
                rng = np.random.default_rng(seed + count)
                rows = rng.choice(12, count, replace=False)
                values = normal(rng, count, 3)
                runner.assign_rows(variable, rows, values)
                plain.assign(variable, rows, values)
            runner.assign_rows("t0", [], np.zeros((0, 3)))
            runner.run(batch(seed))
            plain.run(batch(seed))
        assert worst(runner.params, plain.params) < CLOSE
        assert worst(runner.opt_state, plain.state) < CLOSE


def test_rows_begin_anew_in_a_state_that_was_assigned():
    runner = make(n_machines=1)
    state = jax.tree.map(
        lambda leaf: leaf + 1,
        Plain().state,
    )
    runner.opt_state = state
    runner.assign_rows("t2", [4], ONES)
    mu = runner.opt_state.inner_state[0].mu
    assert mu["t2"][3:6, 0].tolist() == [1, 0, 1]
    assert (mu["t1"] == 1).all()
    assert (runner.params["t2"][4] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.nightly) if n[:2] in ("on", "at", "la", "so") else n
        for n in OPTIONS
    ],
)
def test_more_rows_are_as_if_training_had_begun_with_them(name):
    with (
        make(**OPTIONS[name]) as runner,
        make(
            params=LONGER,
            **OPTIONS[name],
        ) as other,
    ):
        for each in (runner, other):
            [each.run(batch(seed)) for seed in range(2)]
        runner.grow_rows("t1", ADDED)
        assert runner.steps == 2 and runner.plan is None
        assert worst(runner.params, other.params) == 0
        for each in (runner, other):
            each.opt_state.hyperparams["learning_rate"] = 0.2
            own = batch(7)
            own["ids"][:, 1] = [12, 17, 3, 12]
            [each.run(own) for _ in range(2)]
        got = runner.params, runner.opt_state
        assert worst(got, (other.params, other.opt_state)) < CLOSE
        assert runner.steps == 4


def test_a_variable_grows_before_the_first_batch_and_with_a_state_that_was_assigned():
    runner = make(n_machines=1)
    runner.grow_rows("t1", np.ones((2, 3)))
    assert runner.params["t1"].shape == (15, 3)
    state = runner.opt_state
    runner.opt_state = jax.tree.map(lambda leaf: leaf + 1, state)
    runner.grow_rows("t1", ONES)
    mu = runner.opt_state.inner_state[0].mu["t1"]
    assert mu.sum(1).tolist() == [3.0] * 15 + [0]
    runner.run(batch(0))


def test_a_runner_that_has_grown_saves_and_goes_on(tmp_path):
    checkpoint = px.Checkpoints(tmp_path / "steps", every_steps=1)
    runner = make(n_machines=1, checkpoint=checkpoint)
    runner.run(batch(0))
    runner.grow_rows("t1", ADDED)
    runner.run(batch(1))
    again = make(n_machines=1, params=LONGER, checkpoint=checkpoint)
    assert again.resume() == 2
    assert worst(again.params, runner.params) == 0
    text = "assign_rows: expected a batch after a checkpoint was restored, got none yet. Call `build` with a batch."
    with pytest.raises(SettingsError, match=re.escape(text)):
        again.assign_rows("t1", [0], ONES)
    again.build(batch(2))
    again.assign_rows("t1", [0], ONES)
    assert (again.rows("t1", [0]) == ONES).all()


ASSIGNED = [
    (
        "t9",
        [0],
        [[1, 1, 1]],
        SettingsError,
        "assign_rows, variable: expected one of columns, t0, t1, t2, t3, w, got 't9'.",
    ),
    (
        "t1",
        [0.5],
        [[1, 1, 1]],
        DataError,
        "assign_rows of `t1`, ids: expected integers, got float64.",
    ),
    (
        "t1",
        [13],
        [[1, 1, 1]],
        DataError,
        "assign_rows of `t1`, ids: expected ids in [0, 13), got 13.",
    ),
    ("t1", [-1], ONES, DataError, "expected ids in [0, 13), got -1."),
    (
        "t1",
        [2, 2],
        [[1, 1, 1]] * 2,
        DataError,
        "assign_rows of `t1`, ids: expected one axis, each row once, got a row twice.",
    ),
    ("t1", [[2]], [ONES], DataError, "expected one axis, each row once, got shape (1, 1)."),
    (
        "t1",
        [2],
        [[1, 1]],
        DataError,
        "assign_rows of `t1`, values: expected numbers of shape (1, 3), got int64[1, 2].",
    ),
    (
        "t1",
        [2],
        [["a", "b", "c"]],
        DataError,
        "assign_rows of `t1`, values: expected numbers of shape (1, 3), got <U1[1, 3].",
    ),
    (
        "t1",
        [2],
        [[1, 1, np.nan]],
        DataError,
        "assign_rows of `t1`, values: expected finite numbers, got NaN or infinity.",
    ),
]


@pytest.fixture(scope="module")
def trained():
    return make(n_machines=1).build(batch(0)), make(n_machines=1)


@pytest.mark.parametrize(
    ("name", "rows", "values", "error", "text"),
    ASSIGNED,
)
def test_wrong_rows_are_refused_and_change_nothing(name, rows, values, error, text, trained):
    for runner in trained:
        with pytest.raises(error, match=re.escape(text)):
            runner.assign_rows(name, rows, values)
        assert worst(runner.params, PARAMS) == 0


GROWN = [
    ("t9", [[1, 1, 1]], SettingsError, "grow_rows, variable: expected one of columns, t0"),
    (
        "t1",
        np.zeros((0, 3)),
        DataError,
        "grow_rows of `t1`: expected a variable with rows, and a row to add, got values of shape (0, 3) for shape (13, 3).",
    ),
    (
        "t1",
        1.0,
        DataError,
        "grow_rows of `t1`: expected a variable with rows, and a row to add, got values of shape ()",
    ),
    (
        "t1",
        [[1, 1]],
        DataError,
        "grow_rows of `t1`, values: expected numbers of shape (1, 3), got int64[1, 2].",
    ),
    ("t1", [[1, np.inf, 1]], DataError, "grow_rows of `t1`, values: expected finite numbers"),
]


@pytest.mark.parametrize(("name", "values", "error", "text"), GROWN)
def test_wrong_growth_is_refused_and_changes_nothing(name, values, error, text, trained):
    for runner in trained:
        with pytest.raises(error, match=re.escape(text)):
            runner.grow_rows(name, values)
        assert worst(runner.params, PARAMS) == 0


def test_rows_along_other_axes_do_not_grow(trained):
    text = "grow_rows of `columns`: expected rows along axis 0, got (1,). Transpose it"
    with pytest.raises(SettingsError, match=re.escape(text)):
        trained[0].grow_rows("columns", np.ones((1, 12)))


def test_an_optimizer_that_mixes_rows_of_a_dense_variable_is_refused():
    tx = optax.adafactor(0.1, min_dim_size_to_factor=2)
    runner = make(n_machines=1, tx=tx, keep_dense=("*",))
    runner.build(batch(0))
    for call in (
        lambda: runner.assign_rows("t1", [0], ONES),
        lambda: runner.grow_rows("t1", [[1, 1, 1]]),
    ):
        with pytest.raises(TableError, match="row"):
            call()
    assert worst(runner.params, PARAMS) == 0


# ---- with a vocabulary -----------------------------------------------------------------------------------------------


def word_loss(params, batch):
    rows = params["words"][batch["rows"]]
    return jnp.mean((rows @ params["w"] - batch["y"]) ** 2)


def first_values(ids):
    """First values that differ between ids."""
    first = np.asarray(ids) % 101 / 50
    values = first[:, None] - np.arange(3)
    return values.astype(np.float32)


def words_of(tree):
    """All leaves of the words, stacked."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if path[-1] == jax.tree_util.DictKey("words"):
            found.append(leaf)
    return np.concatenate(found, axis=1)


def words_and_targets(seed, pool):
    rng = np.random.default_rng(seed)
    ids = rng.choice(pool, 8)
    return ids, rng.normal(size=8).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tables", "dense"])
def test_ids_that_keep_their_rows_are_trained_as_in_a_dense_array(name):
    """The oracle has a row for each id from the start, by a dictionary, and knows no vocabulary."""
    pool = np.random.default_rng(1).integers(
        -(2**63),
        2**63 - 1,
        20,
    )
    place_of = {one: place for place, one in enumerate(pool.tolist())}
    w = np.ones(3, np.float32)
    start = {
        "words": np.zeros((8, 3), np.float32),
        "w": w,
    }
    plain = Plain({"words": first_values(pool), "w": w}, word_loss)
    runner = make(1, start, word_loss, **OPTIONS[name])
    vocabulary = px.Vocabulary(8, 32)
    for seed in range(6):
        # Adam leaves rows alone that have never had a gradient, so an id may have its row from the start.
        ids, y = words_and_targets(seed, pool)
        rows, changes = vocabulary.admit(ids)
        has = len(runner.params["words"])
        if changes.n_rows > has:
            runner.grow_rows(
                "words",
                np.zeros((changes.n_rows - has, 3)),
            )
        runner.assign_rows("words", changes.rows, first_values(changes.ids))
        runner.run({"rows": rows, "y": y})
        places = [place_of[one] for one in ids.tolist()]
        plain.run({"rows": np.array(places), "y": y})
        ids, rows = vocabulary.ids()
        places = np.array([place_of[one] for one in ids.tolist()])
        got = runner.params, runner.opt_state
        wanted = plain.params, plain.state
        for a, b in zip(
            map(words_of, got),
            map(words_of, wanted),
            strict=True,
        ):
            assert worst(a[rows], np.asarray(b)[places]) < CLOSE
    assert vocabulary.counts.evicted == 0 and vocabulary.n_rows == 32


def test_an_id_that_takes_over_a_row_begins_with_values_and_moments_of_its_own():
    start = {
        "words": first_values(np.arange(4)),
        "w": np.ones(3, np.float32),
    }
    runner = make(1, start, word_loss)
    vocabulary = px.Vocabulary(4)
    y = np.ones(3, np.float32)
    for ids in ([5, 6, 7], [6, 7, 7], [8, 7, 6]):
        rows, changes = vocabulary.admit(np.array(ids))
        runner.assign_rows("words", changes.rows, first_values(changes.ids))
        before = runner.params["words"], runner.opt_state.inner_state[0]
        runner.run({"rows": rows, "y": y})
    assert changes.evicted_ids.tolist() == [5]
    assert changes.rows.tolist() == [1]
    words, moments = before
    assert (words[1] == first_values([8])).all()
    for moment in (moments.mu, moments.nu):
        has_moved = moment["words"].any(1)
        assert has_moved.tolist() == [False, False, True, True]


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
@pytest.mark.parametrize(
    "options",
    [{"table_mode": "lazy"}, {}],
    ids=["lazy", "faithful"],
)
def test_workers_that_know_the_next_batch_read_rows_anew(options, tmp_path):
    """An assignment comes after the workers' request for the rows; a recovery repeats the assignment."""
    with make_workers(TWO, tmp_path / "c", **options) as runner:
        runners = here(**options), runner
        for seed in range(5):
            for each in runners:
                each.run(worker_batch(seed), following=worker_batch(seed + 1))
            ids = worker_batch(seed + 1)["ids"][:1]
            for each in runners:
                each.assign_rows("table", ids, ONES * seed + 1)
            if seed == 2:
                kill(runner.hosts[0], signal.SIGKILL)
        same_model(runners)
        assert len(runner.recoveries) == 1
        text = "grow_rows: expected a runner whose lost processes are not replaced, got one with `checkpoint`"
        with pytest.raises(SettingsError, match=re.escape(text)):
            runner.grow_rows("table", np.ones((1, 3)))


@pytest.mark.slow
@pytest.mark.nightly
def test_workers_go_on_with_more_rows():
    with make_workers(TWO) as runner:
        runners = here(), runner
        for each in runners:
            each.run(worker_batch(0))
            each.grow_rows("table", np.ones((4, 3)))
            each.run(worker_batch(1))
        same_model(runners)
