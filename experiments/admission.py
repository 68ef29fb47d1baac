"""`python -m experiments admission`: a bound on staleness by late admission, beside one by discarding late gradients.

Examples whose label goes with their cost: those of one class take long, so their gradients come late. Who discards late gradients trains on the
other class. Who admits no instance while an old one is under way trains on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.utils.drawing.figure import new_figure, save
from ampjax.utils.text_tables import compact
from experiments.common import require_positive
from experiments.records import append

WAYS = {
    "discarded": "drop_staler_than",
    "held back": "max_staleness",
}
"""What becomes of a gradient that would be too late, and the setting that does it."""


@dataclass(frozen=True, kw_only=True)
class AdmissionOptions:
    """Trains one number, the share of a class whose examples take long, with bounds on staleness of two kinds, in virtual time.

    Args:
      bound: Bounds on staleness, in updates.
      long: Steps of an example of class 1; those of class 0 take one.
      share: The true share of class 1.
      max_active_keys: Examples in flight.
      examples: Of a training.
      rate: Learning rate of SGD.
      seed: Several seeds; the table has means.
      json: File to which a JSON object is appended for each training.
      out: Folder for the picture.
    """

    bound: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    long: int = 8
    share: float = 0.5
    max_active_keys: int = 16
    examples: int = 2000
    rate: float = 0.02
    seed: tuple[int, ...] = (0, 1, 2)
    json: Path | None = None
    out: Path = Path("runs/admission")


def make_graph(long: int) -> ag.Graph:
    """A logit, which an example of class 0 carries through one step, and one of class 1 through many; then the loss.

    Args:
      long: Steps of class 1, each on a worker of its own.
    """
    with ag.Graph() as graph:
        begin = ag.pump("begin", (), fields=("label",))
        label = ag.pump("label", (), fields=("label",))
        share = ag.ppt(
            "share",
            lambda logit, one: logit * one,
            params=jnp.float32(0),
            worker=0,
        )
        first = ag.npt("step 0", lambda logit: logit, worker=1)
        begun = first(share(begin))
        slow, fast = ag.cond(begun, lambda state: state.label == 1)
        for number in range(1, long):
            step = ag.npt(f"step {number}", lambda logit: logit, worker=1 + number)
            slow = step(slow)
        loss = ag.loss("loss", optax.sigmoid_binary_cross_entropy, worker=0)
        loss(ag.phi("done", fast, slow), label)
    return graph


@dataclass(frozen=True)
class StepCost:
    """A cost model: a step takes a microsecond, all else no time.

    Args:
      plan: The plan.
    """

    plan: Plan

    def __call__(self, dispatch: Dispatch) -> int:
        """Nanoseconds that a dispatch takes.

        Args:
          dispatch: The dispatch.
        """
        if dispatch.stage < 0:
            return 0
        nodes = self.plan.stages[dispatch.stage].nodes
        return 1000 if any(node.name.startswith("step ") for node in nodes) else 0


def examples(
    n: int,
    share: float,
    seed: int,
) -> list[dict[str, Any]]:
    """Examples that have nothing but a label.

    Args:
      n: How many.
      share: Of class 1; the drawn number is as near to it as can be.
      seed: Of the order.
    """
    labels = np.zeros(n, np.float32)
    labels[: round(n * share)] = 1
    ones = np.ones(1, np.float32)
    result = []
    for label in np.random.default_rng(seed).permutation(labels):
        result.append(
            {
                "begin": ag.messages(ones, label=int(label)),
                "label": ag.messages(label * ones, label=int(label)),
            }
        )
    return result


def train(
    options: AdmissionOptions,
    way: str | None,
    bound: int,
    seed: int,
) -> dict[str, Any]:
    """Trains, and gives a record.

    Args:
      options: Of the experiment.
      way: A name in `WAYS`; None without a bound.
      bound: In updates.
      seed: Of the order of examples.
    """
    settings: dict[str, Any] = {}
    if way is not None:
        settings[WAYS[way]] = bound
    trainer = amp.Trainer(
        make_graph(options.long),
        optax.sgd(options.rate),
        workers=1 + options.long,
        max_active_keys=options.max_active_keys,
        max_dispatch_size=1,
        fuse=False,
        cost=StepCost,
        devices=jax.local_devices()[:1],  # the same order of events, whatever this machine has
        **settings,
    )
    data = examples(options.examples, options.share, seed)
    trainer.accumulate(data)
    node = trainer.statistics.nodes["share"]
    return {
        "experiment": "admission",
        "way": way or "none",
        "bound": bound if way else None,
        "seed": seed,
        "share": float(jax.nn.sigmoid(trainer.params["share"])),
        "true_share": options.share,
        "staleness": node.staleness_mean,
        "most_stale": node.staleness_max,
        "dropped": node.dropped / options.examples,
        "seconds": trainer.session.position.virtual_ns / 1e9,
    }


def main(
    options: AdmissionOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table and draws a picture; gives a record for each training.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    require_positive(
        "Leave it out for the default.",
        long=options.long,
        max_active_keys=options.max_active_keys,
        examples=options.examples,
        rate=options.rate,
        **{f"bound {bound}": bound for bound in options.bound},
    )
    records = []
    for seed in options.seed:
        records.append(train(options, None, 0, seed))
        for way in WAYS:
            for bound in options.bound:
                records.append(train(options, way, bound, seed))
    append(options.json, records)
    table = compact(
        "late gradients",
        "bound",
        "learned\nshare",
        "true",
        "dropped",
        "mean\nstaleness",
        "most",
        "time to\nunbounded",
    )
    free = _means(records, "none", None)
    for way, bound in _cells(records):
        own = _means(records, way, bound)
        table.add_row(
            way,
            "" if bound is None else f"{bound}",
            f"{own['share']:.3f}",
            f"{options.share:.3f}",
            f"{own['dropped']:.0%}",
            f"{own['staleness']:.1f}",
            f"{own['most_stale']:.0f}",
            f"{own['seconds'] / free['seconds']:.2f}",
        )
    console.print(table)
    path = options.out / "admission.png"
    picture(records, path)
    console.print(f"seeds {', '.join(map(str, options.seed))}; {path}")
    return records


def picture(
    records: Sequence[dict[str, Any]],
    path: Path | None = None,
) -> Figure:
    """Draws the learned share by the bound.

    Args:
      records: Of all trainings.
      path: A file to write it to.
    """
    figure = new_figure(5.5, 3.4, layout="constrained")
    axes = figure.subplots()
    for way in WAYS:
        bounds = []
        shares = []
        for of_cell, bound in _cells(records):
            if of_cell == way:
                bounds.append(bound)
                shares.append(_means(records, way, bound)["share"])
        axes.plot(bounds, shares, "o-", label=f"late gradients are {way}")
    axes.axhline(
        records[0]["true_share"],
        color="0.5",
        linestyle=":",
        label="true share",
    )
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1)
    axes.set_xlabel("bound on staleness, in updates")
    axes.set_ylabel("learned share of the slow class")
    axes.legend(fontsize=8)
    if path is not None:
        save(figure, path)
    return figure


def _cells(records: Sequence[dict[str, Any]]) -> list[tuple[str, int | None]]:
    """Ways and bounds, in order."""
    return list(dict.fromkeys((record["way"], record["bound"]) for record in records))


def _means(
    records: Sequence[dict[str, Any]],
    way: str,
    bound: int | None,
) -> dict[str, float]:
    """The means over seeds of a way's numbers."""
    own = []
    for record in records:
        if (record["way"], record["bound"]) == (way, bound):
            own.append(record)
    result = {}
    for name in ("share", "dropped", "staleness", "most_stale", "seconds"):
        result[name] = float(np.mean([record[name] for record in own]))
    return result
