"""Tables of n-grams beside a language model: late rows against `optim.delayed`, ways to train against each other, and the command in miniature."""

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tyro

from ampjax.errors import DataError, SettingsError
from ampjax.nn import NgramTable
from ampjax.optim import delayed, rowwise_adagrad
from experiments.engram import driver, letters
from experiments.engram.driver import EngramOptions, by_frequency
from experiments.engram.late_rows import LateTraining, head_rows
from experiments.engram.letter_model import (
    LetterModel,
    dense_optimizer,
    init_table,
    optimizer,
    with_table,
)
from experiments.engram.table_ways import JittedWay, make_way
from experiments.engram.turns import time_in_turns, train_in_turns
from experiments.records import read

RATES = (3e-3, 0.1)
MEMORY = NgramTable(
    n_rows=60,
    features=4,
    n_hidden=32,
    orders=(2, 3),
    n_heads=1,
)
MODEL = LetterModel(
    n_letters=7,
    context=8,
    width=32,
    blocks=1,
    memory=MEMORY,
)
N_ROWS = 120


def start():
    params = MODEL.init(jax.random.key(0))
    return params, init_table(MEMORY, 0)


def batch(step):
    rng = np.random.default_rng(step)
    return MODEL.batch(
        rng.integers(
            0,
            7,
            (4, 9),
            dtype=np.int32,
        )
    )


def late_training(late, delay, is_head=None):
    params, table = start()
    head = np.arange(N_ROWS) % 3 == 0 if is_head is None else is_head
    return LateTraining(
        MODEL,
        params,
        table,
        RATES,
        late,
        delay,
        head,
    )


def assert_close(got, wanted):
    compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    jax.tree.map(compare, got, wanted)


@pytest.mark.parametrize(
    ("late", "delay"),
    [("rows", 0), ("rows", 1), ("rows", 3), ("all", 3)],
)
def test_late_rows_are_those_of_optax_with_a_delay(late, delay):
    """The oracle is plain optax on the whole table, with the library's delay of gradients."""
    training = late_training(late, delay)
    params, table = start()
    plain = optimizer(*RATES)
    if late == "all":
        tx = delayed(plain, delay)
    else:
        each: dict[Any, Any] = {
            "dense": dense_optimizer(RATES[0]),
            "table": delayed(rowwise_adagrad(RATES[1]), delay),
        }

        def kinds(params):
            result = jax.tree.map(lambda _: "dense", params)
            result["ngrams"]["table"] = "table"
            return result

        tx = optax.partition(each, kinds)
    oracle = JittedWay(MODEL, with_table(params, table), tx)
    for step in range(10):
        own = training.run(batch(step))
        assert own == pytest.approx(oracle.run(batch(step)), rel=1e-5)
    wanted = jax.tree.map(np.asarray, oracle.params)
    assert_close(training.table.dense(), wanted["ngrams"].pop("table"))
    assert_close(training.dense, wanted)


def test_head_and_tail_are_parts_of_the_rows():
    everything = late_training("rows", 2)
    everywhere = late_training("head", 2, np.ones(N_ROWS, bool))
    nowhere = late_training("tail", 2, np.ones(N_ROWS, bool))
    at_once = late_training("rows", 0)
    head = late_training("head", 2)
    for step in range(8):
        losses = [
            training.run(batch(step))
            for training in (everything, everywhere, nowhere, at_once, head)
        ]
        assert losses[0] == losses[1]  # to the bit, and so the next
        assert losses[2] == losses[3]
    assert losses[4] not in (losses[0], losses[3])
    for training in (everything, everywhere, head):
        training.finish()
    np.testing.assert_array_equal(
        everything.table.dense(),
        everywhere.table.dense(),
    )
    np.testing.assert_array_equal(
        nowhere.table.dense(),
        at_once.table.dense(),
    )
    assert head.missed.means["tail"] == 0 < head.missed.means["head"]


@pytest.mark.parametrize("delay", [0, 1, 4])
def test_updates_that_a_row_has_missed_are_counted(delay):
    training = late_training("rows", delay)
    for _ in range(10):
        training.run(batch(0))  # the same rows in each step
    training.finish()
    wanted = np.mean([min(step, delay) for step in range(10)])
    assert training.missed.means == {"head": wanted, "tail": wanted}
    assert training.table.version == 10 + delay  # the first pushes are empty


def test_the_head_is_the_smallest_set_with_half_of_the_reads():
    reads = np.random.default_rng(0).zipf(1.3, 200) % 1000
    head = head_rows(reads)
    assert reads[head].min() >= reads[~head].max()
    assert 2 * reads[head].sum() >= reads.sum()
    assert 2 * (reads[head].sum() - reads[head].min()) < reads.sum()


def test_losses_by_how_often_an_n_gram_was_seen():
    rng = np.random.default_rng(1)
    train = rng.integers(0, 3, 4000, dtype=np.int32)
    train[rng.random(4000) < 0.02] = 4
    pieces = rng.integers(
        0,
        5,
        (20, 9),
        dtype=np.int32,
    )
    losses = rng.random((20, 8))
    counts = Counter(
        zip(
            train,
            train[1:],
            train[2:],
            strict=False,
        )
    )
    cells = {"often": [], "seldom": [], "never": []}
    for row in range(20):
        for place in range(2, 8):
            n = counts[tuple(pieces[row, place - 2 : place + 1])]
            name = "often" if n >= 100 else "seldom" if n else "never"
            cells[name].append(losses[row, place])
    got = by_frequency(losses, pieces, train, 3)
    for name, cell in cells.items():
        assert cell
        assert got[f"loss_{name}"] == pytest.approx(np.mean(cell))
        assert got[f"share_{name}"] == pytest.approx(len(cell) / 120)
    assert got["loss"] == pytest.approx(losses[:, 2:].mean())


@pytest.mark.parametrize(
    "kinds",
    [
        ("jitted", "memory"),
        pytest.param(
            ("jitted", "file", "none"),
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_all_ways_to_keep_a_table_train_alike(kinds, tmp_path):
    def make_model(memory):
        return replace(MODEL, memory=memory)

    ways = {}
    for kind in kinds:
        ways[kind] = make_way(kind, make_model, MEMORY, RATES, 0, tmp_path)
    late = late_training("rows", 0)
    for step in range(5):
        losses = {}
        for kind, way in ways.items():
            letters_of_step = batch(step)["letters"]
            losses[kind] = way.run(way.model.batch(letters_of_step))
        losses["late"] = late.run(batch(step))
        if "none" in losses:
            assert abs(losses.pop("none") - losses["jitted"]) > 1e-4
        for loss in losses.values():
            assert loss == pytest.approx(losses["jitted"], rel=1e-5)
    wanted = jax.tree.map(np.asarray, ways["jitted"].params)
    runner = ways[kinds[1]].runner
    assert len(runner.step.tables) == 1
    assert_close(runner.params, wanted)
    assert_close(late.table.dense(), wanted["ngrams"]["table"])
    held_out = batch(9)
    losses = [ways[kind].evaluate(held_out) for kind in kinds[:2]]
    assert losses == pytest.approx(
        [late.losses(held_out).mean()] * 2,
        rel=1e-5,
    )


class CountedWay:
    """A way that notes the letters of its steps."""

    model = replace(MODEL, memory=None)

    def __init__(self):
        self.seen = []

    def run(self, batch):
        self.seen.append(int(batch["letters"][0, 0]))
        return 0.0

    def evaluate(self, batch):
        return float(len(self.seen))


def test_ways_in_turns_get_the_same_batches():
    ways = {"a": CountedWay(), "b": CountedWay()}
    curves = train_in_turns(
        ways,
        1e-4,
        3,
        lambda step: np.full((2, 9), step),
        np.zeros((2, 9)),
    )
    for name, curve in curves.items():
        assert ways[name].seen == [*range(curve.steps[-1])]
        assert curve.losses == curve.steps  # an evaluation after each turn
        assert len(curve.seconds) == 4 and curve.seconds[-1] >= 1e-4
    ways = {"a": CountedWay(), "b": CountedWay()}
    times = time_in_turns(
        ways,
        3,
        lambda step: np.full((2, 9), step),
    )
    assert times["a"].ratio == 1 and times["b"].milliseconds > 0
    assert ways["a"].seen == ways["b"].seen == [0, 1, 2, 3]


def test_no_letter_is_predicted_from_later_ones():
    params, table = start()
    params = with_table(params, table)
    early = np.array(
        [[1, 2, 3, 4, 5, 6, 0, 1, 2]],
        np.int32,
    )
    late = early.copy()
    late[0, 5] = 0
    before, after = (MODEL.losses(params, MODEL.batch(piece)) for piece in (early, late))
    np.testing.assert_allclose(
        before[0, :4],
        after[0, :4],
        atol=1e-6,
    )
    assert float(jnp.abs(before[0, 5:] - after[0, 5:]).max()) > 1e-4


def test_made_up_text(monkeypatch, tmp_path):
    monkeypatch.delenv("AMPJAX_DATA", raising=False)
    text = letters.load(n=5000)
    again = letters.load(n=5000)
    assert text.name == "made up" and len(text.train) == 5000
    np.testing.assert_array_equal(text.train, again.train)
    assert text.train.max() == text.n_letters - 1
    assert text.valid.max() < text.n_letters
    with pytest.raises(DataError, match="no such file"):
        letters.load(tmp_path)
    rng = np.random.default_rng(0)
    pieces = letters.windows(text.train, 3, 10, rng)
    assert pieces.shape == (3, 11)
    spread = letters.spread_windows(text.valid, 3, 10)
    np.testing.assert_array_equal(spread[0], text.valid[:11])
    np.testing.assert_array_equal(spread[2], text.valid[-11:])


SMALL = {
    "rows": (400, 800),
    "features": 4,
    "width": 32,
    "blocks": 1,
    "batch": 4,
    "context": 8,
    "delay": (0, 2),
    "late": ("rows", "tail"),
    "steps": 3,
}


@pytest.fixture
def short_text(monkeypatch):
    monkeypatch.delenv("AMPJAX_DATA", raising=False)
    text = letters.load(n=20_000)
    monkeypatch.setattr(letters, "load", lambda data_dir: text)


def test_the_command(tmp_path, capsys, monkeypatch, short_text):
    options = EngramOptions(
        **SMALL,
        what=("late",),
        json=tmp_path / "a.jsonl",
        out=tmp_path,
    )
    records = driver.main(options)
    assert [(record["late"], record["delay"]) for record in records] == [
        ("rows", 0),
        ("rows", 2),
        ("tail", 2),
    ]
    assert (tmp_path / "engram.png").stat().st_size > 10_000
    assert "rows, 2" in capsys.readouterr().out
    assert read(options.json) == records
    words = records[-1]["replay"].split()
    assert words[:4] == ["python", "-m", "experiments", "engram"]
    alone = tyro.cli(EngramOptions, args=words[4:])
    assert driver.main(replace(alone, out=tmp_path)) == records[-1:]  # to the bit
    monkeypatch.setattr(driver, "_late", lambda *_: [])
    assert driver.main(replace(options, resume=True)) == records


@pytest.mark.nightly
def test_all_parts_of_the_command(tmp_path, capsys, short_text):
    options = EngramOptions(
        **SMALL,
        what=("time", "steps"),
        seconds=0.5,
        moments=2,
        step_width=32,
        step_blocks=1,
        step_batch=4,
        step_context=8,
        json=tmp_path / "a.jsonl",
        out=tmp_path,
    )
    records = driver.main(options)
    assert [record["what"] for record in records] == ["time"] * 4 + ["steps"] * 4
    for record in records[:4]:
        assert len(record["losses"]) == 3
    assert records[4]["ratio"] == 1
    out = capsys.readouterr().out
    assert "runner, 800 rows in a file" in out and "loss at equal time" in out
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".npy"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": (-1,)},
        {"delay": ()},
        {"seed": (1, 1)},
        {"width": 33},
        {"rows": (3, 100)},
        {"context": 5},
        {"table_rate": 0.0},
    ],
)
def test_options_that_cannot_be(wrong):
    with pytest.raises(SettingsError, match=f"--{next(iter(wrong)).replace('_', '-')}"):
        driver.main(EngramOptions(**wrong))
