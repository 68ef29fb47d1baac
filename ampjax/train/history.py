"""The history of a training run: one record per epoch, on screen, as data, and as JSON Lines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from ampjax.utils.counted import count_of
from ampjax.utils.text_tables import fill_table, html_table


@dataclass(frozen=True)
class Epoch:
    """One epoch of training and its validation.

    Args:
      epoch: Its number, from 1.
      train: Training metrics by name: `loss`, the mean over instances of what is minimised, and the metrics that the losses' bodies return.
      valid: Validation metrics by name; empty if there was no validation.
      train_per_s: Training examples per second.
      valid_per_s: Validation examples per second.
      seconds: Seconds of training and validation since the run began, without the time between epochs (compiling ahead, callbacks).
      staleness_mean: Mean staleness over the epoch's gradient rows that were accumulated.
      staleness_max: Their largest staleness.
      messages: Messages dispatched in training.
      dispatches: Dispatches in training.
      updates: Updates of all nodes.
      compilations: Kernels compiled in this epoch, without warm-up.
      dropped: Gradient rows that were dropped, since they were staler than `drop_staler_than`.
    """

    epoch: int
    train: Mapping[str, float]
    valid: Mapping[str, float]
    train_per_s: float
    valid_per_s: float
    seconds: float
    staleness_mean: float
    staleness_max: int
    messages: int
    dispatches: int
    updates: int
    compilations: int
    dropped: int = 0

    def record(self) -> dict[str, Any]:
        """Gives the epoch as one flat dictionary; metrics are called `train_loss`, `valid_accuracy`, and so on.

        Returns:
          Strings and numbers by name.
        """
        flat = {}
        for k, v in vars(self).items():
            if k not in ("train", "valid"):
                flat[k] = v
        metrics = {}
        for part in ("train", "valid"):
            for name, value in getattr(self, part).items():
                metrics[f"{part}_{name}"] = value
        return {"epoch": flat.pop("epoch"), **metrics, **flat}

    def line(self) -> str:
        """Gives the epoch as a line of text: metrics, throughput, staleness, seconds.

        Returns:
          The line.
        """
        metrics = []
        for part in ("train", "valid"):
            for name, value in getattr(self, part).items():
                metrics.append(f"{part} {name} {value:.4f}")
        rate = f"{self.train_per_s:,.0f}/s"
        staleness = f"staleness {self.staleness_mean:.1f}"
        return "  ".join(
            [f"epoch {self.epoch:3d}", *metrics, rate, staleness, f"{self.seconds:.1f} s"]
        )


@dataclass
class History:
    """The epochs of a run.

    Args:
      epochs: One record per epoch.
      interrupted: True if the run was ended by Ctrl-C.
      diverged: True if the run was ended since parameters were not finite any more.
      settings: The run's settings, for the record.
      resumed: For each time that the run was resumed from a snapshot: the number of the `epoch`, and how many of its `instances` had ended.
    """

    epochs: list[Epoch] = field(default_factory=list)
    interrupted: bool = False
    diverged: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    resumed: list[dict[str, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.epochs)

    def __getitem__(self, i: int) -> Epoch:
        return self.epochs[i]

    def best(
        self,
        metric: str = "accuracy",
        *,
        smallest: bool | None = None,
    ) -> float:
        """Finds the best validation value of a metric.

        Args:
          metric: The metric's name, without `valid_`.
          smallest: Whether smaller values are better; None lets the name tell (see `falls`).

        Returns:
          The value.

        Raises:
          KeyError: If no epoch has the metric.
        """
        values = [e.valid[metric] for e in self.epochs if metric in e.valid]
        if not values:
            known = sorted({k for e in self.epochs for k in e.valid})
            raise KeyError(
                f"no validation metric {metric!r}: "
                + (
                    f"there are {known}"
                    if known
                    else "no epoch was validated; pass validation data to `fit`"
                )
            )
        return best(values, metric, smallest)

    def first_to(
        self,
        target: float,
        metric: str = "accuracy",
        *,
        smallest: bool | None = None,
    ) -> Epoch | None:
        """Finds the first epoch whose validation metric has reached a target: from above where smaller values are better, else from below.

        Args:
          target: The target.
          metric: The metric's name, without `valid_`.
          smallest: Whether smaller values are better; None lets the name tell (see `falls`).

        Returns:
          The epoch's record; None if there is no such epoch.
        """
        for epoch in self.epochs:
            if metric in epoch.valid and reaches(epoch.valid[metric], target, metric, smallest):
                return epoch
        return None

    def records(self) -> list[dict[str, Any]]:
        """Gives one dictionary per epoch, with the settings.

        Returns:
          The dictionaries, in order.
        """
        result = []
        for epoch in self.epochs:
            result.append({**self.settings, **epoch.record()})
        return result

    def to_jsonl(self, path: str | Path) -> None:
        """Appends one JSON object per epoch to a file; folders are made.

        Args:
          path: The file.

        Raises:
          OSError: If it can't be written.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            for record in self.records():
                file.write(json.dumps(record) + "\n")

    def table(self) -> Table:
        """Makes a table of the epochs; of more than four metrics only the training loss and the validation metrics.

        Returns:
          A `rich` table.
        """
        return fill_table(*self._cells())

    def _repr_html_(self) -> str:
        headers, rows = self._cells()
        return html_table(headers, rows, ", ".join(self._remarks()) or None)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """The table's headers and rows."""
        names = list(
            dict.fromkeys(
                f"{part} {name}"
                for e in self.epochs
                for part in ("train", "valid")
                for name in getattr(e, part)
            )
        )
        if len(names) > 4:
            names = [name for name in names if name == "train loss" or name.startswith("valid ")]
        headers = []
        for name in names:
            headers.append(name.replace(" ", "\n").replace("_", "\n"))
        rows = []
        for e in self.epochs:
            cells = [
                _number(getattr(e, part).get(name))
                for part, name in (n.split(" ", 1) for n in names)
            ]
            staleness = f"{e.staleness_mean:.1f}, {e.staleness_max:3d}"
            rows.append(
                [
                    str(e.epoch),
                    *cells,
                    f"{e.train_per_s:,.0f}",
                    staleness,
                    _seconds(e.seconds),
                ]
            )
        return ["epoch", *headers, "train/s", "staleness\nmean, max", "seconds"], rows

    def __repr__(self) -> str:
        if self.epochs:
            last = self.epochs[-1].record()
        else:
            last = {}
        shown = ", ".join(
            f"{k}={_number(v)}"
            for k, v in last.items()
            if k.startswith(("train_", "valid_")) and not k.endswith("per_s")
        )
        remarks = "".join(f", {remark}" for remark in self._remarks())
        return f"History({count_of(len(self.epochs), 'epoch')}{remarks}{'; last: ' + shown if shown else ''})"

    def _remarks(self) -> list[str]:
        """Lists the unusual events."""
        places = [
            f"{place['instances']} instances into epoch {place['epoch']}" for place in self.resumed
        ]
        ends = [word for word in ("interrupted", "diverged") if getattr(self, word)]
        return [*ends, *(f"resumed {place}" for place in places)]


SMALLER_IS_BETTER = frozenset(
    [
        "bce",
        "bpc",
        "bpd",
        "brier",
        "ce",
        "cer",
        "cost",
        "crps",
        "crossentropy",
        "deviance",
        "deviation",
        "distance",
        "divergence",
        "eer",
        "entropy",
        "er",
        "err",
        "error",
        "errors",
        "fid",
        "hamming",
        "hinge",
        "kl",
        "kld",
        "loss",
        "losses",
        "mae",
        "mape",
        "misclassified",
        "miss",
        "mistakes",
        "mse",
        "nelbo",
        "nll",
        "nlpd",
        "nmse",
        "nrmse",
        "penalty",
        "perplexity",
        "ppl",
        "regret",
        "residual",
        "rmse",
        "rmsle",
        "rse",
        "ser",
        "smape",
        "ter",
        "wer",
        "xent",
    ]
)
"""Words in the names of metrics of which smaller values are better."""


def falls(metric: str) -> bool:
    """Tells whether smaller values of a metric are better, by its name: losses, errors, negated likelihoods, and the like.

    Args:
      metric: The metric's name, such as `nll`, `valid_loss`, `word_error_rate` or `RMSE`.

    Returns:
      True if one of the words in it (`valNLL` and `val_nll` have two) is in `SMALLER_IS_BETTER`, if it is a negative likelihood, or if it
      contains `loss` or `error`.
    """
    name = re.sub("(?<=[a-z])(?=[A-Z])", "_", metric).lower()
    words = re.split(r"[^a-z]+", name)
    contained = any(part in name for part in ("loss", "error", "cross_entropy", "bits_per"))
    is_negated = ("neg" in words or "negative" in words) and not {
        "likelihood",
        "loglikelihood",
        "elbo",
    }.isdisjoint(words)
    return contained or is_negated or not SMALLER_IS_BETTER.isdisjoint(words)


def best(
    values: Iterable[float],
    metric: str,
    smallest: bool | None = None,
) -> float:
    """Finds the best of a metric's values; a value that is no number only for want of others.

    Args:
      values: The metric's values, at least one.
      metric: The metric's name.
      smallest: Whether smaller values are better; None lets the name tell.

    Returns:
      The best value.

    Raises:
      ValueError: If there is no value.
    """
    every = list(values)
    numbers = [value for value in every if not math.isnan(value)]
    is_smaller_better = falls(metric) if smallest is None else smallest
    return (min if is_smaller_better else max)(numbers or every)


def reaches(
    value: float,
    target: float,
    metric: str,
    smallest: bool | None = None,
) -> bool:
    """Tells whether a metric's value is as good as a target: not above the target where smaller values are better, else not below.

    Args:
      value: The metric's value.
      target: The target.
      metric: The metric's name.
      smallest: Whether smaller values are better; None lets the name tell.

    Returns:
      True if it is.
    """
    is_smaller_better = falls(metric) if smallest is None else smallest
    return value <= target if is_smaller_better else value >= target


def _seconds(value: float) -> str:
    """Tenths, and of less than a second two digits: virtual time may be short."""
    return f"{value:.1f}" if value >= 1 or not value else f"{value:.2g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
