"""What a runner writes, what it goes on from, and what it leaves alone."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, ParameterError, TableError
from ampjax.parallel.checkpoints.runner_files import read_whole
from ampjax.sparse.table import table_files

pytestmark = pytest.mark.slow

BATCH = {
    "ids": np.array([0, 1, 2, 2]),
    "y": np.zeros(4, np.float32),
}


def loss(params, batch):
    return jnp.mean((params["table"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)


def machines():
    first, second = jax.local_devices()[:2]
    return Resources(
        (
            Machine("a", (first,)),
            Machine("b", (second,)),
        )
    )


FIRST = {
    "table": np.ones((20, 3), np.float32),
    "w": np.ones(3, np.float32),
}


def make(tx=None, rows=20, **options):
    params = FIRST | {"table": np.ones((rows, 3), np.float32)}
    return px.get_runner(
        loss,
        params,
        tx or optax.adam(0.1),
        machines(),
        px.ParallaxConfig(**options),
    )


@functools.cache
def trained(**options):
    runner = make(**options)
    runner.run(BATCH)
    return runner


def equal(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.first_case
@pytest.mark.parametrize("options", [{}, {"keep_dense": ("table",)}, {"run_option": "ps"}], ids=str)
def test_what_is_restored_before_the_first_batch_is_there_at_once(tmp_path, options):
    saved = trained(**options)
    saved.save(tmp_path / "c")
    runner = make(**options)
    runner.restore(tmp_path / "c")
    assert runner.steps == saved.steps
    equal(
        jax.random.key_data(runner.keys()),
        jax.random.key_data(saved.keys()),
    )
    equal(
        (runner.params, runner.opt_state),
        (saved.params, saved.opt_state),
    )
    runner.build(BATCH)
    equal(
        (runner.params, runner.opt_state),
        (saved.params, saved.opt_state),
    )


@pytest.mark.first_case
@pytest.mark.parametrize(
    "options",
    [{}, {"keep_dense": ("table",)}],
    ids=str,
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_table_with_another_number_of_rows_is_refused(tmp_path, options, begun):
    trained(**options).save(tmp_path / "c")
    runner = make(rows=10, **options)
    if begun:
        runner.run(BATCH)
    before = runner.params, runner.opt_state, runner.steps
    with pytest.raises(DataError, match=r"(?s)table.*20, 3"):
        runner.restore(tmp_path / "c")
    equal((runner.params, runner.opt_state, runner.steps), before)
    runner.run(BATCH)


@pytest.mark.parametrize("before", ["nothing", "a checkpoint"])
def test_what_is_no_checkpoint_is_not_replaced(tmp_path, before):
    folder = tmp_path / "c"
    folder.mkdir()
    if before == "a checkpoint":
        trained().save(folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"an empty one or a checkpoint, got one with notes\.txt"):
        trained().save(folder)
    with pytest.raises(DataError, match="a folder, got a file"):
        trained().save(folder / "notes.txt")
    assert (folder / "notes.txt").read_text() == "mine"


def test_the_working_directory_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (".", "..", "/"):
        with pytest.raises(
            DataError, match="expected a folder that can be replaced, got the working directory"
        ):
            trained().save(folder)


def test_a_checkpoint_is_found_after_a_save_that_was_cut_off_between_two_names(tmp_path):
    trained().save(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / "c.01234567.old")
    runner = make()
    runner.restore(tmp_path / "c")
    equal(runner.params, trained().params)
    trained().save(tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.first_case
@pytest.mark.parametrize(
    "options",
    [
        {"keep_dense": ("table",)},
        {"keep_dense": ("table",), "run_option": "ps"},
        {},
    ],
    ids=str,
)
def test_an_optimizer_may_keep_random_keys(tmp_path, options):
    noisy = optax.masked(
        optax.add_noise(0.01, 0.55, 0),
        {"table": bool(options), "w": True},
    )
    tx = optax.chain(noisy, optax.sgd(0.1))
    runner = make(tx, **options)
    again = make(tx, **options)
    runner.run(BATCH)
    runner.save(tmp_path / "c")
    again.restore(tmp_path / "c")
    state = []
    for s in (again, runner, again.build(BATCH)):
        state.append(jax.random.key_data(s.opt_state[0].inner_state.rng_key))
    np.testing.assert_array_equal(state[1:], state[:1] * 2)
    for both in (runner, again):
        both.run(BATCH)
    equal(runner.params, again.params)


def forge(folder, change):
    """Writes other facts into a manifest, under a checksum that fits them."""
    path = folder / "dense" / table_files.MANIFEST
    body = json.loads(path.read_text()) | change
    del body["sha256"]
    path.write_text(json.dumps(body | {"sha256": table_files._digest(body)}))


@pytest.mark.parametrize(
    "change",
    [
        {"tables": [[]]},
        {"leaves": [["params/w", "float32"]]},
        {"step": "1"},
    ],
    ids=str,
)
def test_a_manifest_that_no_runner_wrote_is_told_before_the_first_batch_too(tmp_path, change):
    trained().save(tmp_path / "c")
    forge(tmp_path / "c", change)
    with pytest.raises(
        TableError,
        match=r"expected (names of tables, axes .*; paths, dtypes and shapes|a int), got",
    ):
        make().restore(tmp_path / "c")


TABLE = "['table']"
NO_AXES = [
    None,
    [],
    {TABLE: 1},
    {TABLE: []},
    {TABLE: ["0"]},
    {TABLE: [True]},
    {TABLE: [-1]},
    {TABLE: [1, 0]},
]
NO_AXES += [
    {TABLE: [0, 0]},
    {TABLE: [[0]]},
    {"['w']": [0]},
]


@pytest.mark.parametrize("axes", NO_AXES, ids=str)
def test_axes_of_rows_that_no_runner_wrote_are_told(tmp_path, axes):
    trained().save(tmp_path / "c")
    forge(tmp_path / "c", {"axes": axes})
    for read in (
        make().restore,
        trained().restore,
        functools.partial(read_whole, params=FIRST, tx=optax.adam(0.1)),
    ):
        with pytest.raises(
            TableError, match=r"expected names of tables, axes of their rows.*, got something else"
        ):
            read(tmp_path / "c")


@pytest.mark.parametrize(
    "axes",
    [[2], [0, 7], [1], [0, 1]],
    ids=str,
)
def test_axes_of_rows_of_another_table_are_told(tmp_path, axes):
    trained().save(tmp_path / "c")
    forge(tmp_path / "c", {"axes": {TABLE: axes}})
    for read in (
        make().restore,
        trained().restore,
        functools.partial(read_whole, params=FIRST, tx=optax.adam(0.1)),
    ):
        with pytest.raises(DataError, match=r"(?s)table|axes of rows"):
            read(tmp_path / "c")


def test_a_checkpoint_from_before_there_were_axes_is_read(tmp_path):
    trained().save(tmp_path / "c")
    path = tmp_path / "c" / "dense" / table_files.MANIFEST
    body = json.loads(path.read_text())
    assert body.pop("axes") == {}
    del body["sha256"]
    path.write_text(json.dumps(body | {"sha256": table_files._digest(body)}))
    runner = make()
    runner.restore(tmp_path / "c")
    equal(runner.params, trained().params)


@pytest.mark.first_case
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"keep_dense": ("table",)}],
    ids=str,
)
@pytest.mark.parametrize(
    ("tx", "expected"),
    [
        (optax.adamw(0.1), "the state ScaleByAdamState, EmptyState, EmptyState"),
        (optax.sgd(0.1), "the state EmptyState, EmptyState"),
    ],
    ids=["adamw", "sgd"],
)
def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path, options, tx, expected, begun):
    trained(**options).save(tmp_path / "c")
    runner = make(tx, **options)
    if begun:
        runner.run(BATCH)
    before = runner.params, runner.opt_state, runner.steps
    with pytest.raises(DataError) as error:
        runner.restore(tmp_path / "c")
    text = f"optimizer: expected {expected}, got ScaleByAdamState, EmptyState. Make the runner with the optimizer of the one"
    assert text in str(error.value)
    assert len(str(error.value)) < 400
    equal((runner.params, runner.opt_state, runner.steps), before)
    runner.run(BATCH)


@pytest.mark.parametrize("begun", [False, True])
def test_a_checkpoint_of_another_optimizer_with_the_same_state_is_refused(tmp_path, begun):
    trained().save(tmp_path / "c")
    runner = make(optax.nadam(0.1))
    if begun:
        runner.run(BATCH)
    before = runner.params, runner.opt_state, runner.steps
    with pytest.raises(DataError, match="optimizer: expected an optimizer that makes updates by"):
        runner.restore(tmp_path / "c")
    equal((runner.params, runner.opt_state, runner.steps), before)


def test_another_rate_of_the_same_optimizer_goes_on_from_a_checkpoint(tmp_path):
    trained().save(tmp_path / "c")
    runner = make(optax.adam(0.2))
    runner.restore(tmp_path / "c")
    equal(runner.params, trained().params)


@pytest.mark.nightly
def test_errors_write_variables_as_explanations_do(tmp_path):
    trained().save(tmp_path / "c")
    with pytest.raises(DataError, match=r"table `table`: expected shape \(10, 3\)"):
        make(rows=10).build(BATCH).restore(tmp_path / "c")
    with pytest.raises(
        TableError, match=r"^tx, table `table`: expected an update that works row by row"
    ):
        make(
            optax.adafactor(0.1, min_dim_size_to_factor=2),
            run_option="ps",
        ).build(BATCH)
    runner = make()
    exploded = BATCH | {"y": np.full(4, 1e38, np.float32)}
    with pytest.raises((ParameterError, TableError)) as error:
        runner.run(exploded)
    assert "['" not in str(error.value)
