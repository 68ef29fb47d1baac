"""Parallax's table 6: hybrid against parameter servers and AllReduce by sparsity, which follows from the words of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.utils.text_tables import compact
from experiments.parallax import paper
from experiments.parallax.measure import Timing, Turns, short, write_json
from experiments.parallax.pictures import lines
from experiments.parallax.programs import Ours, machines, make_all
from experiments.parallax.sweep import LONGEST, sweep

WAYS = ("hybrid", "AR", "naive PS", "optimised PS", "pmap")


@dataclass(frozen=True, kw_only=True)
class Table6Options:
    """Table 6: the sparsity sweep. Hybrid keeps a table dense from `ParallaxConfig.alpha_threshold` on.

    Args:
      words: Of a sequence, at most 120.
      batch: Sequences of a replica's part; the vocabulary has 120 times as many words.
      units: Features of embedding and LSTM.
      machines: Machines, all in this process, each with a server.
      replicas: Replicas of a machine.
      rounds: Turns of each program.
      steps: Steps of a turn at the longest sequences; at shorter ones as many more as there are fewer words, up to forty times.
      seed: Of parameters and data.
      json: File to which a JSON object is appended for each row.
      out: Folder for the picture.
    """

    words: tuple[int, ...] = tuple(paper.TABLE6)
    batch: int = 32
    units: int = 128
    machines: int = 1
    replicas: int = 2
    rounds: int = 7
    steps: int = 6
    seed: int = 0
    json: Path | None = None
    out: Path = Path("runs/parallax-table6")

    @property
    def workers(self) -> int:
        """Devices that are needed."""
        return self.machines * self.replicas


def main(
    options: Table6Options,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints the table, draws it; gives its rows.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    if not options.words or not all(1 <= words <= LONGEST for words in options.words):
        raise SettingsError(
            "--words", f"numbers from 1 to {LONGEST}", f"{options.words}", "Leave others out."
        )
    console = console or Console(highlight=False)
    table = compact(
        "words", "alpha", "hybrid", "AR", "naive\nPS", "opt.\nPS", "pmap", "over\nbest", "over\nnaive", "paper", "tables",
        title=f"{options.workers} replicas; words per second; hybrid over the best of AR and PS, and over naive PS",
    )  # fmt: skip
    rows = [measure(options, words) for words in options.words]
    for row in rows:
        speeds = [short(row["per_s"][way]) for way in WAYS]
        ratios = (
            f"{row['over_best']:.2f}",
            f"{row['over_ps']:.2f}",
            f"{row['paper_over_ps'] or 0:.2f}",
        )
        where = "servers" if row["tables"] else "dense"
        table.add_row(f"{row['words']}", f"{row['alpha']:.3f}", *speeds, *ratios, where)
    console.print(table)
    series = {}
    for way in WAYS:
        series[way] = [(row["alpha"], row["per_s"][way]) for row in rows]
    lines(
        series,
        "share of tables' rows touched by a worker in a step",
        "words per second",
        options.out / "sweep.png",
        log=True,
    )
    write_json(options.json, "parallax-table6", rows)
    return rows


def measure(options: Table6Options, words: int) -> dict[str, Any]:
    """A row of the table.

    Args:
      options: Of the experiment.
      words: Of a sequence.
    """
    resources = machines(options.machines, options.replicas)
    work = sweep(
        words,
        options.workers,
        options.batch,
        options.units,
        2,
        options.seed,
    )
    programs = make_all(work, WAYS, resources)
    # Turns of a few milliseconds would measure nothing but noise.
    steps = options.steps * min(LONGEST // words, 40)
    timings = Turns(programs, work.batches).run(
        options.rounds,
        steps,
        work.units,
    )
    hybrid = programs["hybrid"]
    assert isinstance(hybrid, Ours) and hybrid.runner.plan is not None
    plan = hybrid.runner.plan
    return {
        "words": words,
        "alpha": max(plan.alpha.values()),
        "tables": len(plan.tables),
    } | _figures(words, timings)


def _figures(
    words: int,
    timings: Mapping[str, Timing],
) -> dict[str, Any]:
    per_s = {way: timing.per_s for way, timing in timings.items()}
    alpha, theirs, servers = paper.TABLE6.get(
        words,
        (None, None, None),
    )
    return {
        "per_s": per_s,
        "spread": {way: timing.spread for way, timing in timings.items()},
        "over_best": per_s["hybrid"]
        / max(per_s[way] for way in ("AR", "naive PS", "optimised PS")),
        "over_ps": per_s["hybrid"] / per_s["naive PS"],
        "paper_alpha": alpha,
        "paper_over_ps": theirs / servers if theirs and servers else None,
    }
