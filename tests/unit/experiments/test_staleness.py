"""The leaderboard of remedies: its problems, its tuning, and the command at a tiny size."""

import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tyro

from ampjax.errors import SettingsError
from experiments.data import sst
from experiments.models.tree_lstm import init, tree_lstm
from experiments.records import read
from experiments.staleness import board, gaussians, language, lists, ngrams, quadratic, trees
from experiments.staleness.board import StalenessOptions, table_of
from experiments.staleness.pictures import heat_map
from experiments.staleness.remedies import REMEDIES


@pytest.mark.parametrize("angle", [0.0, 30.0, 45.0])
def test_a_turned_hessian_keeps_its_eigenvalues(angle):
    h = quadratic.hessian(6, angle)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(h),
        np.sort(np.logspace(0, -2, 6)),
        rtol=1e-9,
    )
    is_diagonal = np.allclose(h, np.diag(np.diag(h)))
    assert is_diagonal == (angle == 0)


def test_momentum_does_what_numpy_does():
    delay = 2
    steps = 30
    rate = 0.01
    found = quadratic.grid(
        "momentum",
        delay,
        2,
        angles=[30.0],
        rates=[rate],
        seeds=[3],
        steps=steps,
        noise=0,
    )
    start, _ = jax.random.split(jax.random.key(3))
    w = np.asarray(
        jax.random.normal(start, (2, 1)),
        np.float64,
    )
    h = quadratic.hessian(2, 30.0)
    seen = []
    velocity = np.zeros((2, 1))
    losses = []
    for t in range(steps):
        seen.append(h @ w)
        if t >= delay:
            velocity = 0.9 * velocity + seen[t - delay]
            w = w - 10 * rate * velocity
        losses.append(float(0.5 * np.sum(w * (h @ w))))
    assert found.shape == (1, 1, 1)
    np.testing.assert_allclose(
        found[0, 0, 0],
        np.mean(losses[-3:]),
        rtol=1e-4,
    )


def test_late_adam_on_gaussians_does_what_plain_optax_does(monkeypatch):
    monkeypatch.setattr(gaussians, "N_TRAIN", 100)
    monkeypatch.setattr(gaussians, "N_VALID", 20)
    gaussians._data.cache_clear()
    delay = 2
    steps = 12
    found = gaussians.grid(
        "adam",
        delay,
        rates=[0.01],
        seeds=[3],
        steps=steps,
    )
    data = gaussians._data()
    gaussians._data.cache_clear()
    start, key = jax.random.split(jax.random.key(3))
    params = gaussians.init(start)
    tx = optax.adam(0.01)
    state = tx.init(params)

    def loss(params, chosen):
        units = jax.nn.relu(data.features[chosen] @ params["hidden_w"] + params["hidden_b"])
        scores = jax.nn.log_softmax(units @ params["output_w"] + params["output_b"])
        return -scores[jnp.arange(len(chosen)), data.labels[chosen]].mean()

    waiting = []
    for number in range(steps):
        of_step = jax.random.fold_in(key, number)
        chosen = jax.random.randint(
            of_step,
            (gaussians.BATCH,),
            0,
            100,
        )
        waiting.append(jax.grad(loss)(params, chosen))
        if number >= delay:
            updates, state = tx.update(waiting[number - delay], state)
            params = optax.apply_updates(params, updates)
    held = jnp.arange(100, 120)
    np.testing.assert_allclose(
        found[0, 0],
        loss(params, held),
        rtol=1e-5,
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_a_transformer_sees_no_later_characters():
    params = language.init(jax.random.key(0), 7)
    letters = jnp.arange(language.CONTEXT)[None] % 7
    changed = letters.at[0, 10].set(6)
    before = language.logits(params, letters)
    after = language.logits(params, changed)
    np.testing.assert_allclose(
        before[0, :10],
        after[0, :10],
        atol=1e-5,
    )
    assert abs(before[0, 10:] - after[0, 10:]).max() > 1e-3


def test_the_learning_rate_with_the_best_median_is_taken(tmp_path, monkeypatch):
    found = np.array(
        [
            [0.1, 3.0, 3.0],
            [2.0, np.inf, 1.0],
            [4.0, 4.0, 4.0],
        ]
    )
    monkeypatch.setattr(lists, "grid", lambda *_, rates, **__: found)
    records = board.main(
        StalenessOptions(
            workload=("lists",),
            delay=(0,),
            remedy=("adam",),
            out=tmp_path,
        )
    )
    assert [(record["seed"], record["loss"]) for record in records] == [
        (0, 2.0),
        (1, math.inf),
        (2, 1.0),
    ]
    assert {record["rate"] for record in records} == {board.RATES["lists"][1]}


@pytest.mark.nightly
def test_the_command_writes_a_record_for_each_run(tmp_path, monkeypatch):
    monkeypatch.delenv("AMPJAX_DATA", raising=False)
    path = tmp_path / "found.jsonl"
    options = StalenessOptions(
        workload=("quadratic-2",),
        delay=(0, 3),
        remedy=("adam",),
        seed=(0, 1),
        steps=20,
        json=path,
        out=tmp_path,
    )
    found = board.main(options)
    assert [json.loads(line) for line in path.read_text().splitlines()] == found
    assert len(found) == 2 * 2 * len(options.angle)
    table = table_of(found, 45.0)
    assert 0 < table["adam", 0] < table["adam", 3]
    assert {file.name for file in tmp_path.glob("*.png")} == {
        "quadratic-2.png",
        "quadratic-2-adam.png",
    }


def test_a_table_goes_on_where_it_was_cut_off(tmp_path, monkeypatch):
    options = {
        "workload": ("quadratic-2",),
        "remedy": ("adam", "momentum"),
        "delay": (0, 2),
        "seed": (0,),
        "angle": (0.0, 30.0),
        "steps": 20,
        "out": tmp_path,
    }
    path = tmp_path / "found.jsonl"
    whole = board.main(StalenessOptions(json=path, **options))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:6]) + lines[6][:20])  # killed in the last cell
    asked = []
    cell = board._cell

    def watched(*args):
        asked.append(args[2:])
        return cell(*args)

    monkeypatch.setattr(board, "_cell", watched)
    again = board.main(StalenessOptions(json=path, resume=True, **options))
    assert asked == [("momentum", 2)]
    assert again == whole  # to the bit
    assert read(path) == whole


def test_each_record_has_the_command_that_computes_it_again(tmp_path):
    options = StalenessOptions(
        workload=("quadratic-2",),
        remedy=("adam",),
        delay=(0, 2),
        seed=(1, 2),
        angle=(20.0,),
        steps=20,
        out=tmp_path,
    )
    whole = board.main(options)
    words = whole[-1]["replay"].split()
    assert words[:4] == ["python", "-m", "experiments", "staleness"]
    alone = tyro.cli(StalenessOptions, args=words[4:])
    again = board.main(replace(alone, out=tmp_path))
    assert again == [record for record in whole if record["delay"] == 2]


@pytest.mark.nightly
def test_delays_that_are_drawn_are_late_on_average(tmp_path):
    common = {
        "remedy": ("adam", "adam+bound"),
        "delay": (0, 2),
        "seed": (0,),
        "angle": (45.0,),
        "steps": 40,
    }
    found = {}
    for varying in (False, True):
        records = board.main(
            StalenessOptions(workload=("quadratic-2",), varying=varying, out=tmp_path, **common)
        )
        found[varying] = table_of(records, 45.0)
    assert found[False]["adam", 2] == found[False]["adam+bound", 2]  # none is staler than the mean
    assert found[True]["adam", 2] != found[True]["adam+bound", 2]
    assert found[True]["adam", 0] == found[False]["adam", 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"remedy": ("hope",)},
        {"delay": (-1,)},
        {"delay": ()},
        {"seed": (1, 1)},
        {"noise": -0.1},
        {"steps": 3},
    ],
)
def test_options_that_cannot_be(wrong):
    with pytest.raises(SettingsError):
        board.main(StalenessOptions(**wrong))


@pytest.mark.slow
def test_what_has_diverged_has_a_cell_too():
    figure = heat_map(
        np.array([[1.0, np.inf], [0.1, 2e5]]),
        ["a", "b"],
        ["0", "8"],
        "title",
    )
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.00", "∞", "0.100", "2e+05"]


@pytest.mark.parametrize(
    "remedy",
    [pytest.param(name, marks=pytest.mark.nightly) for name in REMEDIES],
)
def test_every_remedy_learns_late_and_not(remedy):
    for delay in (0, 2):
        found = quadratic.grid(
            remedy,
            delay,
            4,
            angles=[20.0],
            rates=[0.001, 0.03],
            seeds=[0],
            steps=60,
            noise=0.1,
        )
        assert found.min() < 1.0


@pytest.fixture
def small_treebank(monkeypatch):
    monkeypatch.delenv("AMPJAX_DATA", raising=False)
    monkeypatch.setattr(trees, "N_TRAIN", 160)
    monkeypatch.setattr(trees, "N_VALID", 40)
    trees._packed.cache_clear()
    yield monkeypatch
    trees._packed.cache_clear()


@pytest.mark.nightly
@pytest.mark.parametrize("remedy", ["adam", "muon", "rotation"])
def test_trees_learn_less_from_late_gradients(remedy, small_treebank):
    losses = []
    for delay in (0, 8):
        found = trees.grid(
            remedy,
            delay,
            None,
            rates=[0.01],
            seeds=[0],
            steps=40,
        )
        losses.append(found.item())
    assert 0 < losses[0] < losses[1]


def test_late_gradients_of_trees_are_those_of_single_trees(small_treebank):
    small_treebank.setattr(trees, "N_TRAIN", 8)
    small_treebank.setattr(trees, "N_VALID", 3)
    small_treebank.setattr(trees, "BATCH", 2)
    delay = 1
    steps = 3
    found = trees.grid(
        "momentum",
        delay,
        None,
        rates=[0.1],
        seeds=[2],
        steps=steps,
    )
    train, valid = sst.synthetic(8, 3)
    model = tree_lstm(trees.CELLS)
    examples = sst.plain(train)
    held = sst.plain(valid)
    n_nodes = len(train.labels)
    start, key = jax.random.split(jax.random.key(2))
    params = init(start, len(train.vocabulary), trees.CELLS)
    tx = optax.sgd(1.0, 0.9)
    state = tx.init(params)
    first = sum(model(params, held[place]) for place in range(3))
    waiting = []
    for number in range(steps):
        of_step = jax.random.fold_in(key, number)
        batch = int(jax.random.randint(of_step, (), 0, 4))
        total = jax.tree.map(jnp.zeros_like, params)
        for place in (2 * batch, 2 * batch + 1):
            of_tree = jax.grad(lambda p, place=place: model(p, examples[place]))(params)
            total = jax.tree.map(jnp.add, total, of_tree)
        waiting.append(jax.tree.map(lambda leaf: leaf * 4 / n_nodes, total))
        if number >= delay:
            updates, state = tx.update(waiting[number - delay], state)
            params = optax.apply_updates(params, updates)
    loss = sum(model(params, held[place]) for place in range(3))
    assert loss < 0.97 * first
    np.testing.assert_allclose(
        found.item(),
        loss / len(valid.labels),
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    "late",
    ["rows", pytest.param("dense", marks=pytest.mark.nightly)],
)
def test_a_table_or_all_else_is_late(late, monkeypatch):
    monkeypatch.setattr(ngrams, "MEMORY", replace(ngrams.MEMORY, n_rows=50))
    letters = np.arange(400, dtype=np.int32) * 7 % 11
    losses = {}
    for delay in (0, 3):
        found = ngrams.grid(
            "sgd",
            delay,
            late,
            letters,
            11,
            rates=[1e-3],
            seeds=[0],
            steps=3,
        )
        losses[delay] = found.item()
    still = ngrams.grid(
        "sgd",
        0,
        late,
        letters,
        11,
        rates=[0.0],
        seeds=[0],
        steps=3,
    )
    # of three steps the first three gradients are late, so no late parameter has moved, and all others as if it were not late
    assert losses[3] == still.item()
    assert losses[0] != losses[3]


def test_rows_of_a_table_have_no_rotation(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ngrams,
        "grid",
        lambda *_, rates, seeds, **__: np.ones((5, 3)),
    )
    monkeypatch.delenv("AMPJAX_DATA", raising=False)
    records = board.main(
        StalenessOptions(
            workload=("ngram-rows",),
            delay=(0,),
            remedy=("adam", "rotation"),
            out=tmp_path,
        )
    )
    assert {record["remedy"] for record in records} == {"adam"}
