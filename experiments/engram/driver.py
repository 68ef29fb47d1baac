"""`python -m experiments engram`: tables of n-grams beside a small language model, at equal time, with late rows, and step by step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import jax
import numpy as np
from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.nn import NgramTable
from ampjax.nn.ngram_hash import ngram_hashes
from experiments.bench.children import in_a_process
from experiments.common import require_positive, require_seeds
from experiments.engram import letters as texts
from experiments.engram.late_rows import PLACES, LateTraining, head_rows
from experiments.engram.letter_model import LetterModel, init_table
from experiments.engram.letters import Letters
from experiments.engram.pictures import engram_picture
from experiments.engram.result_tables import show_late, show_steps, show_time
from experiments.engram.table_memory import STATUS, peaks_of_training
from experiments.engram.table_ways import Way, make_way
from experiments.engram.turns import time_in_turns, train_in_turns
from experiments.records import append, read

Record = dict[str, Any]
Part = tuple[str, Callable[[], list[Record]]]
"""The command that computes something, and its function."""
VALID_ROWS = 512
OFTEN = 100
"""An n-gram that the training text has so many times is seen often."""


@dataclass(frozen=True, kw_only=True)
class EngramOptions:
    """Trains a small transformer of characters with tables of n-grams (Engram), and without.

    `time`: validation losses at equal time, without a table, with one as a JAX array, and with tables that a runner keeps. `late`: losses when
    gradients of rows are applied some steps late. `steps`: the time of a step of a larger model, and the memory beside the table.

    Args:
      what: Some of the three.
      seed: Several seeds, of parameters and batches.
      rows: Rows of the tables. The smaller one is in memory, also as a JAX array; the larger one in a mapped file. `late` has the smaller one.
      features: Numbers in a row.
      orders: The lengths of n-grams.
      heads: The hashes of each n-gram.
      width: Features of a hidden state.
      blocks: Blocks of the transformer.
      batch: Pieces of text in a batch.
      context: Characters of a piece.
      rate: Adam's learning rate.
      table_rate: The table's, of Adagrad with one number a row.
      seconds: Of `time`, for each way to train.
      moments: Of `time`: evaluations.
      late: Of `late`: what is late. `rows`: all rows of the table; `head`: those that together make half of all reads; `tail`: the others; `all`:
        rows and dense parameters.
      delay: Of `late`: in steps.
      steps: Of `late`: steps of a training.
      step_width: Of `steps`: as `width`, and so the next ones.
      step_blocks: As `blocks`.
      step_batch: As `batch`.
      step_context: As `context`.
      rounds: Of `steps`: steps of each way that are timed.
      json: File to which JSON objects are appended, each with the command that computes it again.
      resume: Whether what the file has by now is taken from it.
      out: Folder for the picture.
      tables: Folder for mapped files; by default one for temporary files.
      data_dir: Folder with data; else AMPJAX_DATA, else sentences are made up.
    """

    what: tuple[Literal["time", "late", "steps"], ...] = ("time", "late", "steps")
    seed: tuple[int, ...] = (0,)
    rows: tuple[int, int] = (1_000_000, 30_000_000)
    features: int = 16
    orders: tuple[int, ...] = (3, 5)
    heads: int = 2
    width: int = 128
    blocks: int = 2
    batch: int = 8
    context: int = 64
    rate: float = 3e-3
    table_rate: float = 0.1
    seconds: float = 60.0
    moments: int = 10
    late: tuple[Literal["rows", "head", "tail", "all"], ...] = PLACES
    delay: tuple[int, ...] = (0, 1, 4, 16, 32)
    steps: int = 300
    step_width: int = 256
    step_blocks: int = 4
    step_batch: int = 64
    step_context: int = 256
    rounds: int = 3
    json: Path | None = None
    resume: bool = False
    out: Path = Path("runs/engram")
    tables: Path | None = None
    data_dir: Path | None = None

    def memory(self, rows: int, width: int) -> NgramTable:
        """A memory for hidden states.

        Args:
          rows: Of the table in all.
          width: Of a hidden state.
        """
        return NgramTable(
            n_rows=rows // (self.heads * len(self.orders)),
            features=self.features,
            n_hidden=width,
            orders=self.orders,
            n_heads=self.heads,
        )


def main(
    options: EngramOptions,
    console: Console | None = None,
) -> list[Record]:
    """Prints a table for each part and draws a picture; gives the records.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a folder with data was named, and the text is not there.
    """
    console = console or Console(highlight=False)
    _check(options)
    text = texts.load(options.data_dir)
    console.print(
        f"{text.name}: {len(text.train):,} characters for training, {text.n_letters} different"
    )
    written = read(options.json) if options.resume else []
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.tables or Path(temporary)
        for replay, compute in _parts(options, text, folder):
            found = [record for record in written if record.get("replay") == replay]
            if not found:
                begin = perf_counter()
                found = []
                for record in compute():
                    found.append({**record, "replay": replay})
                append(options.json, found)
                console.print(f"{perf_counter() - begin:.0f} s: {replay}")
            records += found
    for show in (show_time, show_late, show_steps):
        show(records, console)
    path = options.out / "engram.png"
    engram_picture(records, path)
    console.print(f"seeds {', '.join(map(str, options.seed))}; {path}")
    return records


def _parts(
    options: EngramOptions,
    text: Letters,
    folder: Path,
) -> list[Part]:
    """The parts that the options ask for, each with the command that computes the part again."""
    parts: list[Part] = []
    if "time" in options.what:
        words = ["seconds", "moments", "rows"]
        for seed in options.seed:
            replay = _replay(
                options,
                "time",
                words,
                {"seed": seed},
            )
            compute = partial(
                _at_equal_time,
                options,
                text,
                seed,
                folder,
            )
            parts.append((replay, compute))
    if "late" in options.what:
        for seed in options.seed:
            for late, delay in _cells(options):
                chosen = {"seed": seed, "late": late, "delay": delay}
                replay = _replay(
                    options,
                    "late",
                    ["steps", "rows"],
                    chosen,
                )
                compute = partial(
                    _late,
                    options,
                    text,
                    seed,
                    late,
                    delay,
                )
                parts.append((replay, compute))
    if "steps" in options.what:
        words = [
            "step_width",
            "step_blocks",
            "step_batch",
            "step_context",
            "rounds",
            "rows",
        ]
        replay = _replay(
            options,
            "steps",
            words,
            {"seed": options.seed[0]},
        )
        compute = partial(
            _step_times,
            options,
            text,
            folder,
        )
        parts.append((replay, compute))
    return parts


def _cells(options: EngramOptions) -> list[tuple[str, int]]:
    """The pairs of a place and a delay; without delay there is one, as nothing is late."""
    cells: list[tuple[str, int]] = []
    if 0 in options.delay:
        cells.append(("rows", 0))
    for late in options.late:
        for delay in options.delay:
            if delay:
                cells.append((late, delay))
    return cells


def _replay(
    options: EngramOptions,
    what: str,
    own: Sequence[str],
    chosen: Mapping[str, Any],
) -> str:
    """The command that computes one part again, with all options that its result depends on."""
    words = ["python -m experiments engram", "--what", what]
    common = ["features", "orders", "heads", "rate", "table_rate"]
    if what != "steps":
        common += ["width", "blocks", "batch", "context"]
    values = dict(chosen)
    for name in (*own, *common):
        values[name] = getattr(options, name)
    for name, value in values.items():
        words.append(f"--{name.replace('_', '-')}")
        each = value if isinstance(value, tuple) else (value,)
        for one in each:
            words.append(f"{one:g}" if isinstance(one, float) else str(one))
    return " ".join(words)


def _letters_of(
    text: Letters,
    rows: int,
    context: int,
    seed: int,
) -> Callable[[int], np.ndarray]:
    """By number of a step the letters of its batch."""

    def make(step: int) -> np.ndarray:
        rng = np.random.default_rng([seed, step])
        return texts.windows(text.train, rows, context, rng)

    return make


def _facts(text: Letters, model: LetterModel, seed: int) -> Record:
    """The facts that all records have."""
    key = jax.random.key(0)
    shapes = jax.eval_shape(model.init, key)
    sizes = [leaf.size for leaf in jax.tree.leaves(shapes)]
    return {
        "experiment": "engram",
        "text": text.name,
        "characters": len(text.train),
        "jax": jax.__version__,
        "dense_parameters": sum(sizes),
        "seed": seed,
    }


def _model(
    n_letters: int,
    context: int,
    width: int,
    blocks: int,
    memory: NgramTable | None,
) -> LetterModel:
    return LetterModel(
        n_letters,
        context,
        width,
        blocks,
        memory,
    )


def _kinds(rows: tuple[int, int]) -> list[tuple[str, str, int]]:
    """Ways to train: name, kind and rows."""
    small, large = (f"{n:,} rows" for n in rows)
    return [
        ("no table", "none", rows[0]),
        (f"jitted, {small}", "jitted", rows[0]),
        (f"runner, {small}", "memory", rows[0]),
        (f"runner, {large} in a file", "file", rows[1]),
    ]


def _at_equal_time(
    options: EngramOptions,
    text: Letters,
    seed: int,
    folder: Path,
) -> list[Record]:
    """A record for each way to train, with its curve."""
    make_model = partial(
        _model,
        text.n_letters,
        options.context,
        options.width,
        options.blocks,
    )
    ways: dict[str, Way] = {}
    for name, kind, rows in _kinds(options.rows):
        ways[name] = make_way(
            kind,
            make_model,
            options.memory(rows, options.width),
            (options.rate, options.table_rate),
            seed,
            folder,
        )
    curves = train_in_turns(
        ways,
        options.seconds,
        options.moments,
        _letters_of(text, options.batch, options.context, seed),
        texts.spread_windows(text.valid, VALID_ROWS, options.context),
    )
    records = []
    for name, curve in curves.items():
        facts = _facts(text, ways[name].model, seed)
        records.append(
            {
                **facts,
                "what": "time",
                "way": name,
                **asdict(curve),
            }
        )
    return records


def _late(
    options: EngramOptions,
    text: Letters,
    seed: int,
    late: str,
    delay: int,
) -> list[Record]:
    """One training with late gradients."""
    memory = options.memory(options.rows[0], options.width)
    model = _model(
        text.n_letters,
        options.context,
        options.width,
        options.blocks,
        memory,
    )
    n_rows = memory.n_ids * memory.n_rows
    ids = memory.ids(text.train)
    reads = np.bincount(ids.ravel(), minlength=n_rows)
    is_head = head_rows(reads)
    training = LateTraining(
        model,
        model.init(jax.random.key(seed)),
        init_table(memory, seed),
        (options.rate, options.table_rate),
        late,
        delay,
        is_head,
    )
    make_letters = _letters_of(text, options.batch, options.context, seed)
    losses = []
    for step in range(options.steps):
        batch = model.batch(make_letters(step))
        losses.append(training.run(batch))
    training.finish()
    valid = texts.spread_windows(text.valid, VALID_ROWS, options.context)
    of_valid = training.losses(model.batch(valid))
    missed = training.missed.means
    last = losses[-max(1, options.steps // 10) :]
    record = {
        **_facts(text, model, seed),
        "what": "late",
        "late": late,
        "delay": delay,
        "rows_read": int((reads > 0).sum()),
        "rows_head": int(is_head.sum()),
        "missed_head": missed["head"],
        "missed_tail": missed["tail"],
        "train_loss": float(np.mean(last)),
        **by_frequency(of_valid, valid, text.train, max(options.orders)),
    }
    return [record]


def by_frequency(
    losses: np.ndarray,
    letters: np.ndarray,
    train: np.ndarray,
    order: int,
) -> dict[str, float]:
    """Means over positions, by how often the training text has the n-gram that ends there; positions with shorter ones are left out.

    Args:
      losses: `[rows, context]`.
      letters: `[rows, context + 1]`.
      train: The training text, `[n]`.
      order: n.

    Returns:
      `loss`, `loss_often`, `loss_seldom`, `loss_never`, and the shares of the positions.
    """
    first = order - 1
    in_train = ngram_hashes(train, (order,), 1)[first:, 0]
    known, counts = np.unique(in_train, return_counts=True)
    read = letters[:, :-1]
    hashes = ngram_hashes(read, (order,), 1)[:, first:, 0]
    places = np.searchsorted(known, hashes)
    places = np.minimum(places, len(known) - 1)
    is_known = known[places] == hashes
    seen = np.where(is_known, counts[places], 0)
    kept = losses[:, first:]
    masks = {
        "often": seen >= OFTEN,
        "seldom": (seen > 0) & (seen < OFTEN),
        "never": seen == 0,
    }
    result = {"loss": float(kept.mean())}
    for name, mask in masks.items():
        result[f"share_{name}"] = float(mask.mean())
        if mask.any():
            result[f"loss_{name}"] = float(kept[mask].mean())
        else:
            result[f"loss_{name}"] = 0.0
    return result


def _step_times(
    options: EngramOptions,
    text: Letters,
    folder: Path,
) -> list[Record]:
    """A record for each way: the time of its step with letters at random, so that nearly all rows differ, and its memory."""
    seed = options.seed[0]
    shape = (options.step_batch, options.step_context + 1)
    sizes = {
        "n_letters": text.n_letters,
        "context": options.step_context,
        "width": options.step_width,
        "blocks": options.step_blocks,
    }
    kinds = _kinds(options.rows)
    kinds[2] = (f"runner, {options.rows[1]:,} rows", "memory", options.rows[1])
    peaks: dict[str, Record] = {}
    if STATUS.exists():
        for name, kind, rows in kinds:
            arguments = {
                "kind": kind,
                "sizes": sizes,
                "memory": asdict(options.memory(rows, options.step_width)),
                "rows": options.step_batch,
                "steps": 3,
                "folder": str(folder),
            }
            peaks[name] = in_a_process(peaks_of_training, arguments, {})
    ways: dict[str, Way] = {}
    for name, kind, rows in kinds:
        ways[name] = make_way(
            kind,
            partial(_model, *sizes.values()),
            options.memory(rows, options.step_width),
            (options.rate, options.table_rate),
            seed,
            folder,
        )

    def make_letters(step: int) -> np.ndarray:
        rng = np.random.default_rng([seed, step])
        return rng.integers(
            0,
            text.n_letters,
            shape,
            dtype=np.int32,
        )

    times = time_in_turns(
        ways,
        options.rounds,
        make_letters,
    )
    records = []
    for name, kind, rows in kinds:
        table_bytes = 0 if kind == "none" else rows * options.features * 4
        records.append(
            {
                **_facts(text, ways[name].model, seed),
                "what": "steps",
                "way": name,
                "kind": kind,
                "table_bytes": table_bytes,
                **asdict(times[name]),
                **peaks.get(name, {}),
            }
        )
    return records


def _check(options: EngramOptions) -> None:
    require_seeds(options.seed)
    hint = "Leave it out for the default."
    counts = {}
    for name, value in vars(options).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            counts[name] = value
    require_positive(hint, **counts)
    for name in ("what", "late", "delay", "orders"):
        values = getattr(options, name)
        if not values or len(set(values)) < len(values):
            raise SettingsError(f"--{name}", "different ones, at least one", f"{values}", hint)
    if min(options.delay) < 0:
        fix = "A delay counts steps; 0 is none."
        raise SettingsError("--delay", "at least 0", f"{min(options.delay)}", fix)
    for name in ("width", "step_width"):
        value = getattr(options, name)
        if value % 32:
            flag = f"--{name.replace('_', '-')}"
            raise SettingsError(flag, "a multiple of 32", f"{value}", hint)
    n_ids = options.heads * len(options.orders)
    if min(options.rows) < n_ids:
        got = f"{min(options.rows)}"
        raise SettingsError("--rows", f"at least {n_ids}, one for each hash", got, hint)
    shortest = min(options.context, options.step_context)
    if shortest <= max(options.orders):
        raise SettingsError("--context", "more than the longest n-gram", f"{shortest}", hint)
