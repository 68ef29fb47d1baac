"""A runner that was killed anywhere and resumed ends with the bits of one that was not."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import DataError, SettingsError, TableError
from ampjax.parallel.checkpoints.series import SnapshotWarning
from ampjax.sparse.table import table_files

pytestmark = pytest.mark.slow

RUNS = {
    "hybrid": {},
    "ar": {"run_option": "ar"},
    "ps": {"run_option": "ps"},
    "asynchronous": {"sync": False},
}
N_STEPS = 7
TX = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.1))


class Killed(Exception):
    """What stands for a kill: the runner is not used again."""


@functools.cache
def two():
    return Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:2]))
    )


def loss(params, batch):
    noise = jax.random.uniform(
        batch["key"][0],
        (4,),
    )
    return jnp.mean((params["table"][batch["ids"]] @ (params["w"] + 0.1 * noise) - 1) ** 2)


def batches():
    rng = np.random.default_rng(0)
    result = []
    for _ in range(2 * N_STEPS + 1):
        result.append({"ids": rng.integers(0, 64, 3)})
    return result


def make(folder, name="hybrid", when=None, **options):
    params = {
        "table": np.ones((64, 4), np.float32),
        "w": np.full(4, 0.5, np.float32),
    }
    checkpoint = when or px.Checkpoints(folder, every_steps=2, keep=2)
    config = px.ParallaxConfig(
        checkpoint=checkpoint, check_equivalence="off", **RUNS[name], **options
    )
    return px.get_runner(loss, params, TX, two(), config)


def train(runner, steps=N_STEPS):
    """Trains up to a step, from where the data stood."""
    for parts in px.shard(
        batches(),
        two(),
        skip=runner.steps,
    ):
        if runner.steps == steps:
            break
        keys = runner.keys()
        runner.run(
            px.Parts(tuple(part | {"key": keys[i : i + 1]} for i, part in enumerate(parts.batches)))
        )
    return runner


def require_same(first, second):
    assert first.steps == second.steps
    jax.tree.map(
        np.testing.assert_array_equal,
        (first.params, first.opt_state),
        (second.params, second.opt_state),
    )


def killed_while_it_saves(runner, monkeypatch, n):
    """Kills a runner at its n-th wait for the disk: what was written so far stays."""
    sync = table_files._sync
    left = n

    def watched(file):
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(table_files, "_sync", watched)
        patch.setattr("ampjax.sparse.table.leftovers.sweep", lambda *args: None)
        patch.setattr("shutil.rmtree", lambda *args, **options: None)
        with pytest.raises(Killed):
            train(runner)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@functools.cache
def undisturbed(folder, name):
    return train(make(folder / name, name))


@pytest.mark.nightly
@settings(max_examples=examples(16))
@given(
    st.sampled_from(list(RUNS)),
    st.lists(
        st.integers(0, N_STEPS),
        min_size=1,
        max_size=2,
    ),
)
def test_killed_and_resumed(folder, name, kills):
    again = folder / "again"
    shutil.rmtree(again, ignore_errors=True)
    for steps in kills:
        runner = make(again, name)
        before = runner.resume()
        train(runner, max(before, steps))
    last = make(again, name)
    last.resume()
    require_same(undisturbed(folder, name), train(last))
    assert sorted(path.name for path in again.iterdir()) == ["step-4", "step-6"]


@pytest.mark.nightly
@pytest.mark.parametrize("n", [0, 2, 9])
def test_killed_while_it_saves(folder, tmp_path, monkeypatch, n):
    killed_while_it_saves(make(tmp_path), monkeypatch, n)
    last = make(tmp_path)
    last.resume()
    require_same(undisturbed(folder, "hybrid"), train(last))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-6"]


@pytest.mark.first_case
@pytest.mark.parametrize("part", ["dense", "table-0"])
def test_a_damaged_checkpoint_is_passed_over(folder, tmp_path, part):
    train(make(tmp_path))
    file = max(
        (tmp_path / "step-6" / part).glob("*.bin"),
        key=lambda path: path.stat().st_size,
    )
    file.write_bytes(bytes(255 - byte for byte in file.read_bytes()))
    last = make(tmp_path)
    with pytest.warns(SnapshotWarning, match="was taken instead.*The file was altered"):
        assert last.resume() == 4
    require_same(undisturbed(folder, "hybrid"), train(last))
    for left in tmp_path.glob("step-*/dense/*.bin"):
        left.unlink()
    with pytest.raises(TableError, match="no such file"):
        make(tmp_path).resume()


def test_mistakes(tmp_path):
    assert make(tmp_path / "new").resume() == 0
    train(make(tmp_path), 2)
    with pytest.raises(DataError, match=r"`step-2` of another run.*Call `runner.resume\(\)` first"):
        train(make(tmp_path), 2)
    with pytest.raises(SettingsError, match="a folder of checkpoints in the settings"):
        px.get_runner(
            loss,
            {"table": np.ones((64, 4), np.float32)},
            TX,
            two(),
        ).resume()
    with pytest.raises(SettingsError, match="Skip whole batches"):
        px.shard(
            {"x": np.ones(4)},
            two(),
            skip=1,
        )
    with pytest.raises(SettingsError, match="Leave one out"):
        px.Checkpoints("x", every_steps=1, every_seconds=1.0)


def test_by_the_clock(tmp_path):
    train(
        make(
            tmp_path,
            when=px.Checkpoints(tmp_path, every_seconds=1e-9, keep=1),
        ),
        3,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_steps_whose_elements_are_left_out():
    whole = list(px.shard(batches(), two()))
    sharded = px.shard(batches(), two(), skip=3)
    assert len(sharded) == N_STEPS - 3
    for data in (
        sharded,
        px.shard(
            (b for b in batches()),
            two(),
            skip=3,
        ),
    ):
        assert [p.batches[1]["ids"].tolist() for p in data] == [
            p.batches[1]["ids"].tolist() for p in whole[3:]
        ]
    first = px.shard(
        (b for b in batches()),
        two(),
        index=1,
        count=2,
        skip=3,
    )
    assert next(iter(first))["ids"].tolist() == whole[3].batches[1]["ids"].tolist()
