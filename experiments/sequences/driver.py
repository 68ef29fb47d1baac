"""`python -m experiments sequences`: both ways in turn, seed by seed; an object of JSON Lines for each epoch, and a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import optax
from rich.console import Console
from tyro.conf import Positional

from ampjax.errors import SettingsError
from ampjax.utils.setting_checks import at_least
from ampjax.utils.text_tables import compact
from experiments.common import require_positive, require_seeds
from experiments.records import append
from experiments.sequences.subjects import Name, Sizes, Subject, make_subject
from experiments.sequences.ways import Recipe, embeddings, train_graph, train_runner

Way = Literal["graph", "runner"]


@dataclass(frozen=True, kw_only=True)
class SequencesOptions(Sizes):
    """Parallax's language and translation models on multi30k: as a graph of single sentences, and by `get_runner` on padded batches.

    Both ways have the same first parameters, vocabulary, sentences and optimizer, and update after as many sentences; the order of sentences
    differs. Perplexity and BLEU are those of held-out sentences, computed in one way for both.

    Args:
      name: `lm`: a language model of English. `nmt`: translation from English to German.
      ways: Which ways.
      epochs: Epochs.
      learning_rate: Adam's.
      seed: One seed or several; each is a run of its own.
      mode: Of the graph. `pipeline`: a batch of instances, then an update of all nodes, as in the runner. `async`: nodes update themselves, when
        they have the gradient rows of a batch; a dispatch with more rows gives one update, so there are fewer.
      max_active_keys: The most instances in flight in the graph; by default a batch.
      min_admission: Instances are admitted when there is room for so many at once; by default a batch.
      policy: Which messages a worker takes next.
      max_dispatch_size: Messages in one dispatch at most.
      tables: Whether the graph's embeddings are tables in host memory where `get_runner` would make them so; else they are on the device.
      synthetic: Generated sentences in place of files.
      data_dir: Folder with data files; else the environment variable AMPJAX_DATA, else generated sentences.
      json: File to which a JSON object is appended for each epoch.
    """

    name: Positional[Name]
    ways: tuple[Way, ...] = ("graph", "runner")
    epochs: int = 4
    learning_rate: float = 4e-3
    seed: tuple[int, ...] = (0,)
    mode: Literal["async", "pipeline"] = "pipeline"
    max_active_keys: int | None = None
    min_admission: int | None = None
    policy: str = "wavefront"
    max_dispatch_size: int = 1024
    tables: bool = True
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None

    def settings(self) -> dict[str, Any]:
        """The trainer's settings.

        Raises:
          SettingsError: If a pipeline is to hold more or fewer instances than a batch.
        """
        if self.mode == "pipeline" and self.max_active_keys not in (None, self.batch):
            fix = "Leave it out, or choose `--mode async`."
            raise SettingsError(
                "--max-active-keys", f"a batch, {self.batch}", f"{self.max_active_keys}", fix
            )
        in_flight = self.batch if self.max_active_keys is None else self.max_active_keys
        together = min(self.batch if self.min_admission is None else self.min_admission, in_flight)
        return {
            "mode": self.mode,
            "max_active_keys": in_flight,
            "min_admission": together,
            "policy": self.policy,
            "max_dispatch_size": self.max_dispatch_size,
        }


@dataclass(frozen=True)
class Board:
    """The epochs of all runs.

    Args:
      options: The options.
      console: Gets a line for each epoch.
      records: The epochs so far.
    """

    options: SequencesOptions
    console: Console
    records: list[dict[str, Any]] = field(default_factory=list)

    def tell(
        self,
        subject: Subject,
        way: Way,
        seed: int,
        epoch: int,
        rates: Mapping[str, float],
        params: Any,
    ) -> None:
        """Scores an epoch, and adds its record.

        Args:
          subject: What is trained.
          way: How it is trained.
          seed: Of the run.
          epoch: The epoch's number.
          rates: Of its training.
          params: Parameters of the program of batches.
        """
        told = {
            "way": way,
            "seed": seed,
            "epoch": epoch,
            **subject.score(params),
            **rates,
        }
        self.records.append(
            {"experiment": f"sequences-{self.options.name}", **told, "padding": subject.padding}
        )
        append(self.options.json, self.records[-1:])
        self.console.print(
            ", ".join(f"{key} {_short(value)}" for key, value in told.items()), soft_wrap=True
        )

    def table(self) -> Any:
        """Each epoch's scores: the median over seeds, and the least and the largest."""
        names = ("perplexity", "bleu", "sentences_per_s", "sentences_per_cpu_s")
        scores = [name for name in names if name in self.records[0]]
        table = compact("way", "epoch", *scores)
        for way in self.options.ways:
            for epoch in range(1, self.options.epochs + 1):
                own = []
                for record in self.records:
                    if (record["way"], record["epoch"]) == (way, epoch):
                        own.append(record)
                table.add_row(
                    way,
                    f"{epoch}",
                    *(_over_seeds(own, name) for name in scores),
                )
        return table


def main(
    options: SequencesOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Trains, prints a table; gives the epochs' records.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a data file is missing or wrong.
    """
    require_positive("The default is good for both.", learning_rate=options.learning_rate)
    at_least("epochs", options.epochs, 1)
    require_seeds(options.seed)
    board = Board(options, console or Console(highlight=False))
    for seed in options.seed:
        subject = make_subject(options.name, options, options.data_dir, options.synthetic, seed)
        recipe = Recipe(
            optax.adam(options.learning_rate),
            options.epochs,
            options.batch,
            seed,
        )
        board.console.print(
            f"{options.name}, seed {seed}: {len(subject.train)} sentences; {subject.padding:.0%} of a padded batch's words are padding"
        )
        for way in options.ways:
            tell = partial(board.tell, subject, way, seed)
            if way == "graph":
                layers = embeddings(subject, recipe) if options.tables else {}
                for key, layer in layers.items():
                    board.console.print(f"{key}: {layer}")
                train_graph(subject, recipe, options.settings(), tell, layers)
            else:
                train_runner(subject, recipe, tell)
    board.console.print(board.table())
    return board.records


def _over_seeds(
    records: Sequence[Mapping[str, Any]],
    name: str,
) -> str:
    values = [record[name] for record in records]
    middle = _short(statistics.median(values))
    return (
        middle if len(values) == 1 else f"{middle} ({_short(min(values))} to {_short(max(values))})"
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value}"
