"""How large dispatches are: the real scheduler tells, without numerics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ampjax.sched.diagnose.statistics import Statistics
from ampjax.simulation.simulate import simulate
from ampjax.utils.text_tables import compact
from experiments.bench.ours import set_up
from experiments.common import sample


def dispatch_statistics(experiment: str, **arguments: Any) -> Statistics:
    """Counts of a pass over a few times as many training instances as are in flight.

    Args:
      experiment: Its name.
      **arguments: Options of the experiment.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    _, task = set_up(experiment, **arguments)
    settings = task.settings
    few = sample(task.train, 8 * settings.max_active_keys, settings.seed)
    return simulate(task.graph, few, **vars(settings)).stats


def dispatch_table(
    stats: Statistics,
    by_depth: Mapping[str, float] | None = None,
) -> Table:
    """Messages, dispatches and rows of a dispatch, by stage.

    Args:
      stats: The counts.
      by_depth: By stage, the rows that batching by depth would find for it, as a column for comparison.
    """
    extra = ["by depth"] if by_depth is not None else []
    table = compact(
        "stage",
        "messages",
        "dispatches",
        "rows a\ndispatch",
        "most",
        *extra,
        title="dispatch sizes",
    )
    for name, s in stats.stages.items():
        if s.dispatches:
            cells = [f"{s.forward + s.backward:,}", f"{s.dispatches:,}", f"{s.mean_dispatch:.1f}"]
            depth = (by_depth or {}).get(name)
            if by_depth is None:
                last = []
            else:
                last = ["" if depth is None else f"{depth:.1f}"]
            table.add_row(name, *cells, f"{s.largest_dispatch}", *last)
    return table
