"""`python -m experiments local-sgd`: asynchronous local SGD, beside the figures of a published toy study (Liu et al., arXiv 2401.09135)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.utils.text_tables import compact
from experiments.common import require_positive
from experiments.data import clusters
from experiments.local_sgd.inner_training import logits_of
from experiments.local_sgd.pictures import curves
from experiments.local_sgd.rules import RULES
from experiments.local_sgd.server import LocalSgd, Outcome, train
from experiments.records import append

EVALUATED = 10_000
"""Examples on which the loss is computed: as in the study, some of those that are trained on."""

CHUNK = 1000


@dataclass(frozen=True)
class Row:
    """A training that is compared.

    Args:
      way: Of `LocalSgd`.
      rule: A name in `RULES`.
      rate: The outer learning rate.
      phases: Visits of each part of the data, on average.
      decay: AdamW's weight decay.
      grace: Seconds for which the server waits for others.
      printed: Loss, accuracy and seconds at the end, as the study prints them; None where it prints none.
    """

    way: str
    rule: str
    rate: float
    phases: int
    decay: float = 1e-3
    grace: float = 0.5
    printed: tuple[float, float, float] | None = None

    @property
    def name(self) -> str:
        """The name in table and picture."""
        return f"{self.way}, {self.rule} {self.rate:g}"


PUBLISHED = (
    Row("synchronous", "sgd", 0.5, 5, printed=(1.298819, 0.40, 333.0)),
    Row("delayed", "sgd", 0.5, 5, grace=1000.0, printed=(1.298819, 0.40, 333.0)),
    Row("asynchronous", "nesterov", 0.07, 100, 1e-2, printed=(1.125141, 0.51, 1998.6)),
)
"""The rows whose figures the study prints, with 65,000 hidden units, 128,000 examples and 20 inner steps."""


@dataclass(frozen=True, kw_only=True)
class LocalSgdOptions:
    """Trains a network on four workers of different speed, each of which makes 20 steps between two meetings, in virtual time.

    The published rows take a minute or two for each seed, but the asynchronous one, which takes half an hour.

    Args:
      what: `published`: the rows that the study prints. `rules`: outer rules and remedies, asynchronous and synchronous.
      rows: Of the published rows: some of `synchronous`, `delayed`, `asynchronous`.
      way: Of `rules`: asynchronous or synchronous training, or both.
      rule: Of `rules`: some of the outer rules; all by default.
      rate: Of `rules`: outer learning rates.
      phases: Of `rules`: visits of each part of the data.
      hidden: Hidden units; the small network of the study has 128.
      examples: Of the data; the small set of the study has 4,096.
      clusters: Gaussians of a class; the small set of the study has one.
      seed: Several seeds; the table has means and standard deviations.
      moments: At how many moments of a training the loss is computed.
      json: File to which a JSON object is appended for each training.
      out: Folder for the picture.
    """

    what: Literal["published", "rules"] = "published"
    rows: tuple[Literal["synchronous", "delayed", "asynchronous"], ...] = (
        "synchronous",
        "delayed",
    )
    way: tuple[Literal["synchronous", "asynchronous"], ...] = (
        "synchronous",
        "asynchronous",
    )
    rule: tuple[str, ...] = tuple(RULES)
    rate: tuple[float, ...] = (0.07, 0.7)
    phases: int = 50
    hidden: int = 65_000
    examples: int = 128_000
    clusters: int = 8
    seed: tuple[int, ...] = (0,)
    moments: int = 5
    json: Path | None = None
    out: Path = Path("runs/local-sgd")


def main(
    options: LocalSgdOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table and draws the curves; gives a record for each training.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    rows = _rows(options)
    records: list[dict[str, Any]] = []
    for seed in options.seed:
        data = clusters.generate(options.examples, options.clusters, seed)
        for row in rows:
            begin = perf_counter()
            settings = LocalSgd(
                hidden=options.hidden,
                phases=row.phases,
                decay=row.decay,
                way=row.way,
                seed=seed,
            )
            outcome = train(
                settings,
                data,
                RULES[row.rule](row.rate),
                row.grace,
                options.moments,
            )
            record = _record(row, settings, outcome, data)
            record["minutes"] = (perf_counter() - begin) / 60
            append(options.json, [record])
            records.append(record)
            console.print(
                f"{row.name}, seed {seed}: loss {record['losses'][-1]:.6f}, accuracy {record['accuracies'][-1]:.2f}, "
                f"{record['seconds'][-1]:.1f} s on the clock, {record['minutes']:.1f} min here"
            )
    console.print(_table(rows, records))
    for row in rows:
        console.print(f"{row.name}: pseudo-gradients by staleness {_ages(row, records)}")
    path = options.out / "local-sgd.png"
    curves(records, path)
    console.print(f"seeds {', '.join(map(str, options.seed))}; {path}")
    return records


def evaluate(
    hidden: int,
    params: np.ndarray,
    data: clusters.Clusters,
) -> tuple[float, float]:
    """Loss and accuracy.

    Args:
      hidden: Hidden units.
      params: A vector.
      data: Examples.
    """
    logits = logits_of(hidden)

    @jax.jit
    def totals(
        flat: jax.Array,
        features: jax.Array,
        labels: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        scores = logits(flat, features)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        return losses.sum(), (scores.argmax(-1) == labels).sum()

    flat = jnp.asarray(params)
    loss = 0.0
    right = 0
    for start in range(0, len(data), CHUNK):
        chunk = slice(start, start + CHUNK)
        of_chunk = totals(
            flat,
            data.features[chunk],
            data.labels[chunk],
        )
        loss += float(of_chunk[0])
        right += int(of_chunk[1])
    return loss / len(data), right / len(data)


def _rows(options: LocalSgdOptions) -> list[Row]:
    """The trainings that are wanted."""
    require_positive(
        "Leave it out for the default.",
        phases=options.phases,
        hidden=options.hidden,
        examples=options.examples,
        clusters=options.clusters,
        moments=options.moments,
    )
    if not options.seed or min(options.seed) < 0:
        raise SettingsError("--seed", "numbers from 0 on", f"{options.seed}", "Give one at least.")
    if options.what == "published":
        return [row for row in PUBLISHED if row.way in options.rows]
    unknown = [name for name in options.rule if name not in RULES]
    if unknown:
        raise SettingsError(
            "--rule", f"some of {list(RULES)}", f"`{unknown[0]}`", "Choose among these."
        )
    rows = []
    for way in options.way:
        for rule in options.rule:
            for rate in options.rate:
                rows.append(Row(way, rule, rate, options.phases))
    return rows


def _record(
    row: Row,
    settings: LocalSgd,
    outcome: Outcome,
    data: clusters.Clusters,
) -> dict[str, Any]:
    """A training's record for the file."""
    rng = np.random.default_rng(settings.seed + 2)
    chosen = rng.choice(
        len(data),
        min(EVALUATED, len(data)),
        replace=False,
    )
    some = clusters.Clusters(
        data.features[chosen],
        data.labels[chosen],
    )
    losses = []
    accuracies = []
    for params in outcome.params:
        loss, accuracy = evaluate(settings.hidden, params, some)
        losses.append(loss)
        accuracies.append(accuracy)
    return {
        "experiment": "local-sgd",
        "name": row.name,
        "way": row.way,
        "rule": row.rule,
        "rate": row.rate,
        "phases": row.phases,
        "decay": row.decay,
        "grace": row.grace,
        "hidden": settings.hidden,
        "examples": len(data),
        "seed": settings.seed,
        "steps": [settings.inner_steps * visits for visits in outcome.visits],
        "seconds": outcome.seconds,
        "losses": losses,
        "accuracies": accuracies,
        "staleness": outcome.staleness,
        "jax": jax.__version__,
    }


def _table(
    rows: Sequence[Row],
    records: Sequence[dict[str, Any]],
) -> Any:
    table = compact(
        "training",
        "steps",
        "seconds",
        "printed",
        "loss",
        "±",
        "printed",
        "accuracy",
        "printed",
        "mean\nstaleness",
    )
    for row in rows:
        own = [record for record in records if record["name"] == row.name]
        losses = [record["losses"][-1] for record in own]
        spread = f"{statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        loss = ""
        accuracy = ""
        seconds = ""
        if row.printed is not None:
            loss = f"{row.printed[0]:.6f}"
            accuracy = f"{row.printed[1]:.2f}"
            seconds = f"{row.printed[2]:.1f}"
        ages = _ages(row, records)
        mean = sum(age * n for age, n in ages.items()) / sum(ages.values())
        table.add_row(
            row.name,
            f"{own[0]['steps'][-1]:,}",
            f"{own[0]['seconds'][-1]:.1f}",
            seconds,
            f"{statistics.mean(losses):.6f}",
            spread,
            loss,
            f"{statistics.mean(record['accuracies'][-1] for record in own):.2f}",
            accuracy,
            f"{mean:.2f}",
        )
    return table


def _ages(
    row: Row,
    records: Sequence[dict[str, Any]],
) -> dict[int, int]:
    """By staleness how many pseudo-gradients a training had, over all seeds."""
    result: dict[int, int] = {}
    for record in records:
        if record["name"] == row.name:
            for age, n in record["staleness"].items():
                result[age] = result.get(age, 0) + n
    return dict(sorted(result.items()))
