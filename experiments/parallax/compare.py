"""Tables of throughput by model and way: what the transfer model says of the paper's cluster, and what was timed here.

Each stands beside the paper's figures; ways are compared within a model, as shares of its first way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from ampjax.parallel.planning.cluster_model import ClusterRates
from ampjax.utils.text_tables import compact
from experiments.parallax import paper
from experiments.parallax.measure import Timing, short
from experiments.parallax.predict import fitted, same_order, throughput


@dataclass(frozen=True)
class Figure:
    """One throughput.

    Args:
      where: `cluster` (predicted) or `here` (timed).
      model: The model.
      way: How it was trained.
      per_s: Words or images a second.
      ratio: Over the first way of the model.
      paper: The paper's throughput; None where it has none, or it is not at hand.
      paper_ratio: Likewise its ratio.
      spread: Of times, a share of the median; None for a prediction.
    """

    where: str
    model: str
    way: str
    per_s: float
    ratio: float
    paper: float | None = None
    paper_ratio: float | None = None
    spread: float | None = None

    @property
    def off(self) -> float | None:
        """Our ratio over the paper's."""
        return None if self.paper_ratio is None else self.ratio / self.paper_ratio

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self) | {"off": self.off}


Published = Mapping[str, Mapping[str, float]]


def on_cluster(
    models: Sequence[str],
    ways: Sequence[str],
    published: Published,
    rates: ClusterRates,
) -> list[Figure]:
    """Predictions for the paper's cluster.

    Args:
      models: The models.
      ways: In `loads.WAYS`.
      published: The paper's figures.
      rates: The cluster's.
    """
    result = []
    for model in models:
        for figure in figures(
            "cluster",
            model,
            {w: throughput(model, w, rates) for w in ways},
            published.get(model, {}),
        ):
            result.append(figure)
    return result


def timed(
    model: str,
    timings: Mapping[str, Timing],
    published: Published,
) -> list[Figure]:
    """What was timed here."""
    speeds = {way: timing.per_s for way, timing in timings.items()}
    spreads = {way: timing.spread for way, timing in timings.items()}
    return figures(
        "here",
        model,
        speeds,
        published.get(model, {}),
        spreads,
    )


def figures(
    where: str,
    model: str,
    speeds: Mapping[str, float],
    published: Mapping[str, float],
    spreads: Mapping[str, float] | None = None,
) -> list[Figure]:
    """The figures of one model; the first way is what the others are compared to."""
    first = next(iter(speeds))
    spreads = spreads or {}
    result = []
    for way, per_s in speeds.items():
        theirs = published.get(way)
        ratio = theirs / published[first] if theirs is not None and first in published else None
        result.append(
            Figure(
                where,
                model,
                way,
                per_s,
                per_s / speeds[first],
                theirs,
                ratio,
                spreads.get(way),
            )
        )
    return result


def show(
    console: Console,
    title: str,
    rows: Sequence[Figure],
) -> None:
    """Prints figures.

    Args:
      console: Where to.
      title: Above the table.
      rows: The figures.
    """
    table = compact(
        "model",
        "way",
        "ours\nper s",
        "ratio",
        "paper\nper s",
        "ratio",
        "ours over\npaper's",
        title=title,
    )
    for row in rows:
        if row.paper_ratio is None:
            theirs = ("", "", "")
        else:
            theirs = (
                short(row.paper),
                _times(row.paper_ratio),
                _times(row.off),
            )
        spread = "" if row.spread is None else f" ± {100 * row.spread:.0f} %"
        table.add_row(
            paper.NAMES[row.model],
            row.way,
            short(row.per_s) + spread,
            _times(row.ratio),
            *theirs,
        )
    console.print(table)


def judge(console: Console, rows: Sequence[Figure]) -> None:
    """Prints whether the paper's order came out, and by what factor its ratios were missed at most."""
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model and row.paper is not None]
        if len(own) < 2:
            continue
        order = same_order(
            {row.way: row.per_s for row in own},
            {row.way: row.paper or 0.0 for row in own},
        )
        worst = max(
            max(a.ratio / b.ratio / ((a.paper or 1) / (b.paper or 1)) for b in own) for a in own
        )
        came = "the paper's order" if order else "NOT the paper's order"
        console.print(
            f"{paper.NAMES[model]}: {came}; ratios between ways are within a factor of {worst:.2f}"
        )


def show_rates(console: Console) -> None:
    """Prints the cluster's rates, four of which are fitted."""
    rates = fitted()
    gb = {name: f"{rate / 1e9:.2f}" for name, rate in vars(rates).items()}
    console.print(
        f"Rates in GB/s: AllReduce {gb['reduce']}, AllGatherv {gb['gather']}, a client of dense variables at servers "
        f"{gb['stream']}, row gradients merged by a server {gb['merge']} (fitted to tables 1 and 4), network card {gb['link']} each way (known)."
    )


def cluster(
    console: Console,
    models: Sequence[str],
    ways: Sequence[str],
    published: Published,
) -> list[Figure]:
    """Predicts, prints and judges."""
    rates = fitted()
    rows = on_cluster(models, ways, published, rates)
    show(console, "The paper's 8 x 6 GPUs, by a transfer model of counted bytes", rows)
    judge(console, rows)
    return rows


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
