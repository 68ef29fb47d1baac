"""Bad input: each kind gives an error in four parts, and leaves parameters and tables as they were."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import AmpError, DataError, ParameterError, SettingsError, TableError
from ampjax.parallel.config.partitioner import Partitioner
from ampjax.sparse.rows.row_kernels import kernels_for

pytestmark = pytest.mark.slow

TX = optax.adagrad(0.1)


def loss(params, batch):
    return jnp.mean((params["table"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)


def parameters():
    return {
        "table": np.ones((20, 3), np.float32),
        "w": np.ones(3, np.float32),
    }


def a_batch(n=4, y=1.0):
    return {
        "ids": np.arange(n) % 20,
        "y": np.full(n, y, np.float32),
    }


def machines():
    first, second = jax.local_devices()[:2]
    return Resources(
        (
            Machine("a", (first,)),
            Machine("b", (second,)),
        )
    )


def make(
    function=loss,
    params=None,
    tx=TX,
    config=None,
    partitioners=(),
):
    params = parameters() if params is None else params
    return px.get_runner(function, params, tx, machines(), config, partitioners)


@functools.cache
def trained(run_option="hybrid"):
    runner = make(config=px.ParallaxConfig(run_option=run_option))
    runner.run(a_batch())
    return runner


BEFORE_THE_FIRST_STEP = {
    "no function": (
        lambda: make(3),
        SettingsError,
        "loss_fn: expected a function of params and batch, got int",
    ),
    "no transform": (
        lambda: make(tx=0.1),
        SettingsError,
        "tx: expected an optax transform, got float",
    ),
    "loss not scalar": (
        lambda: make(lambda p, b: p["table"][b["ids"]].mean(1)).run(a_batch()),
        SettingsError,
        "a float scalar.*float32\\[2\\]",
    ),
    "integer loss": (
        lambda: make(lambda p, b: jnp.argmax(p["w"])).run(a_batch()),
        SettingsError,
        "a float scalar",
    ),
    "no gradient": (
        lambda: make(params=parameters() | {"count": np.arange(3)}),
        ParameterError,
        "parameter `count`: expected floats or complex numbers, which have a gradient, got int64",
    ),
    "a random key": (
        lambda: make(params=parameters() | {"key": jax.random.key(0)}),
        ParameterError,
        "parameter `key`: expected floats or complex numbers, which have a gradient, got key<fry>",
    ),
    "a table of bytes": (
        lambda: make(
            _narrow_loss,
            parameters() | {"table": np.ones((20, 3), jnp.float8_e4m3fn)},
            optax.sgd(0.1),
        ).run(a_batch()),
        TableError,
        "variable `table`, values: expected float32, bfloat16 or float16, got float8_e4m3fn",
    ),
    "no settings": (
        lambda: make(config={"run_option": "ps"}),
        SettingsError,
        "config: expected a ParallaxConfig or None, got dict",
    ),
    "no partitioner": (
        lambda: make(partitioners=[7]),
        SettingsError,
        "partitioners: expected a list of patterns or partitioners, got \\[7\\]",
    ),
    "a partitioner alone": (
        lambda: make(partitioners=Partitioner("table")),
        SettingsError,
        "partitioners: expected a list of patterns or partitioners, got Partitioner",
    ),
    "a pattern alone": (
        lambda: make(partitioners="table"),
        SettingsError,
        "partitioners: expected a list of patterns or partitioners, got 'table'",
    ),
    "no patterns": (
        lambda: px.ParallaxConfig(keep_dense=None),  # type: ignore[arg-type]
        SettingsError,
        "setting `keep_dense`: expected a tuple of patterns, got None",
    ),
    "a number of NumPy": (
        lambda: px.ParallaxConfig(partitions=np.int64(4)),  # type: ignore[arg-type]
        SettingsError,
        "setting `partitions`: expected an integer of at least 1, got .*4.*\\. Convert it with `int`",
    ),
    "no resources": (
        lambda: px.get_runner(loss, parameters(), TX, 3),
        SettingsError,
        "resource_info: expected a file's name, a mapping, Resources or None, got 3",
    ),
    "one pattern for many": (
        lambda: px.ParallaxConfig(keep_dense="table"),  # type: ignore[arg-type]
        SettingsError,
        "setting `keep_dense`: expected a tuple of patterns, got 'table'",
    ),
    "a pattern that fits nothing": (
        lambda: make(config=px.ParallaxConfig(keep_dense=("tabel",))).run(a_batch()),
        SettingsError,
        "setting `keep_dense`, `tabel`: expected a name in one of \\['table', 'w'\\], got no match",
    ),
    "no batch": (
        lambda: make().run(None),
        DataError,
        "batch: expected a pytree of arrays, got None, without any",
    ),
    "no examples": (
        lambda: make().run(a_batch(0)),
        SettingsError,
        "expected a leading size above 0 that 2 replicas divide, got 0",
    ),
    "mapped files in a file": (
        lambda: make(config=px.ParallaxConfig(folder=__file__)).run(a_batch()),
        TableError,
        "variable `table`, folder: expected a folder for mapped files, got the file",
    ),
    "no parameters": (
        lambda: make(params={}),
        ParameterError,
        "params: expected at least one array, got none",
    ),
    "NaN in parameters": (
        lambda: make(
            params=parameters()
            | {
                "w": np.full(
                    3,
                    np.nan,
                    np.float32,
                )
            }
        ),
        ParameterError,
        "parameter `w`: expected finite values",
    ),
    "not row-wise": (
        lambda: make(tx=_across_rows()).run(a_batch()),
        TableError,
        "tx, table `table`: expected an update that works row by row",
    ),
    "a transform that asks for the loss": (
        lambda: make(
            tx=optax.chain(
                TX,
                optax.contrib.reduce_on_plateau(),
            )
        ).run(a_batch()),
        SettingsError,
        "tx: expected an update from gradients, state and parameters, got `.*keyword-only argument: 'value'`",
    ),
    "replicas don't divide": (
        lambda: make().run(a_batch(3)),
        SettingsError,
        "batch, leaf `ids`: expected a leading size above 0 that 2 replicas divide, got 3",
    ),
    "wrong number of parts": (
        lambda: make().run(px.Parts((a_batch(2),) * 3)),
        SettingsError,
        "batch: expected 2 parts, one for each replica, got 3",
    ),
    "batch of text": (
        lambda: make().run(a_batch() | {"name": np.array(["x"] * 4)}),
        DataError,
        "batch, leaf `name`: expected numbers, got <U1",
    ),
    "unknown partitioner": (
        lambda: make(partitioners=["embedding"]).run(a_batch()),
        SettingsError,
        "partitioner `embedding`: expected a name in one of \\['table', 'w'\\]",
    ),
    "too many partitions": (
        lambda: make(partitioners=[Partitioner("table", min_partitions=21)]).run(a_batch()),
        SettingsError,
        "at most 20, the rows of `table`, got 21",
    ),
    "explained too early": (
        lambda: make().explain(),
        SettingsError,
        "runner: expected a batch first, got none yet",
    ),
    "saved too early": (
        lambda: make().save("nowhere"),
        SettingsError,
        "runner: expected a batch first",
    ),
}


def _narrow_loss(params, batch):
    return jnp.mean(params["table"][batch["ids"]].astype(jnp.float32)) + jnp.sum(params["w"])


def _across_rows():
    def update(updates, state, params=None):
        del params
        return jax.tree.map(
            lambda leaf: jnp.cumsum(leaf, axis=0),
            updates,
        ), state

    return optax.chain(
        optax.GradientTransformation(lambda params: optax.EmptyState(), update),
        optax.sgd(0.1),
    )


@pytest.mark.parametrize("kind", BEFORE_THE_FIRST_STEP)
def test_mistakes_before_the_first_step(kind):
    call, error, text = BEFORE_THE_FIRST_STEP[kind]
    with pytest.raises(error, match=text):
        call()


IN_TRAINING = {
    "NaN in a dense gradient": (
        lambda runner, _: runner.run(a_batch(y=np.nan)),
        ParameterError,
        "step 2, gradients: expected finite numbers, got a loss of \\[?nan",
    ),
    "infinite gradient": (
        lambda runner, _: runner.run(a_batch(y=3e38)),
        AmpError,
        "expected finite numbers",
    ),
    "a fetch that is no name": (
        lambda runner, _: runner.run(a_batch(), fetch=3),
        SettingsError,
        "fetch: expected some of",
    ),
    "a file in place of a checkpoint": (
        lambda runner, _: runner.restore(__file__),
        TableError,
        "a saved table, got no such file",
    ),
    "unknown fetch": (
        lambda runner, _: runner.run(a_batch(), fetch="grads"),
        SettingsError,
        "fetch: expected some of",
    ),
    "other structure": (
        lambda runner, _: runner.run(a_batch() | {"z": np.zeros(4)}),
        DataError,
        "batch: expected the structure",
    ),
    "other dtype": (
        lambda runner, _: runner.run(a_batch() | {"y": np.zeros(4, np.int32)}),
        DataError,
        "batch, leaf .*y.*: expected the dtype and rank of float32",
    ),
    "odd sizes": (
        lambda runner, _: runner.run(a_batch() | {"y": np.zeros(6, np.float32)}),
        SettingsError,
        "batch, leaf `y`: expected the leading size of `ids`, 4, got 6",
    ),
    "other parameters": (
        lambda runner, _: runner.reset(
            {
                "table": np.ones((20, 4), np.float32),
                "w": np.ones(3, np.float32),
            }
        ),
        ParameterError,
        "parameter `table`: expected float32\\[20, 3\\], got float32\\[20, 4\\]",
    ),
    "no path to save to": (
        lambda runner, _: runner.save(None),
        SettingsError,
        "checkpoint, folder: expected a path.*got None",
    ),
    "no path to restore from": (
        lambda runner, _: runner.restore(3),
        SettingsError,
        "checkpoint, folder: expected a path.*got 3",
    ),
    "no checkpoint": (
        lambda runner, folder: runner.restore(folder / "none"),
        TableError,
        "a saved table, got no such file",
    ),
    "table file truncated": (
        lambda runner, folder: _restore_cut(runner, folder, "table-0"),
        TableError,
        "cut off or altered",
    ),
    "dense file truncated": (
        lambda runner, folder: _restore_cut(runner, folder, "dense"),
        TableError,
        "cut off or altered",
    ),
    "table file altered": (
        lambda runner, folder: _restore_altered(runner, folder),
        TableError,
        "expected checksum",
    ),
    "manifest altered": (
        lambda runner, folder: _restore_edited(runner, folder),
        TableError,
        "The manifest was altered",
    ),
    "another model's checkpoint": (
        lambda runner, folder: _restore_foreign(runner, folder),
        DataError,
        "checkpoint .*, tables: expected",
    ),
}


def _saved(folder):
    trained().save(folder)
    return folder


def _restore_cut(runner, folder, part):
    file = next((_saved(folder / "c") / part).glob("*.bin"))
    file.write_bytes(file.read_bytes()[:-4])
    runner.restore(folder / "c")


def _restore_altered(runner, folder):
    file = next((_saved(folder / "c") / "table-0").glob("*.bin"))
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(data)
    runner.restore(folder / "c")


def _restore_edited(runner, folder):
    file = _saved(folder / "c") / "dense" / "table.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"step": 77}))
    runner.restore(folder / "c")


def _restore_foreign(runner, folder):
    other = px.get_runner(
        lambda p, b: jnp.mean((b["y"] * p["w"].sum()) ** 2),
        {"w": np.ones(3, np.float32)},
        TX,
        machines(),
    )
    other.run(a_batch())
    other.save(folder / "c")
    runner.restore(folder / "c")


@pytest.mark.first_case
@pytest.mark.parametrize("kind", IN_TRAINING)
@pytest.mark.parametrize("run_option", ["hybrid", "ps"])
def test_mistakes_in_training_change_nothing(kind, run_option, tmp_path):
    call, error, text = IN_TRAINING[kind]
    runner = trained(run_option)
    before = (runner.params, runner.opt_state)
    version = runner.step.tables["['table']"][0].version
    with pytest.raises(error, match=text):
        call(runner, tmp_path)
    after = (runner.params, runner.opt_state)
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert (
        runner.steps,
        runner.step.tables["['table']"][0].version,
    ) == (1, version)


def test_a_model_without_tables_is_kept_too():
    runner = px.get_runner(
        lambda p, b: jnp.mean((b["y"] * p["w"].sum()) ** 2),
        {"w": np.ones(3, np.float32)},
        TX,
        machines(),
    )
    runner.run(a_batch())
    before = (runner.params, runner.opt_state)
    with pytest.raises(ParameterError, match="step 2, gradients: expected finite numbers"):
        runner.run(a_batch(y=np.inf))
    jax.tree.map(
        np.testing.assert_array_equal,
        (runner.params, runner.opt_state),
        before,
    )


def test_gradients_cannot_be_fetched_without_a_barrier():
    with pytest.raises(SettingsError, match="fetch: expected synchronous training, got sync=False"):
        make(config=px.ParallaxConfig(sync=False)).run(
            a_batch(),
            fetch="norms",
        )


def test_an_update_of_several_tables_that_fails_changes_none(monkeypatch):
    def two(params, batch):
        return loss(params, batch) + jnp.mean(params["words"][batch["ids"]])

    runner = make(
        two,
        parameters() | {"words": np.ones((20, 3), np.float32)},
    )
    runner.run(a_batch())
    before = (runner.params, runner.opt_state)
    second = runner.step.tables["['words']"][0]

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(kernels_for(second.rule), "update", fail)
    with pytest.raises(MemoryError):
        runner.run(a_batch())
    jax.tree.map(
        np.testing.assert_array_equal,
        (runner.params, runner.opt_state),
        before,
    )
    assert {own[0].version for own in runner.step.tables.values()} == {1}
