"""The lineage of updates: the instances in each update of a node, and the version of the parameters that each instance saw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ampjax.errors import SettingsError
from ampjax.trace.update_log import LoggedUpdate
from ampjax.utils.drawing.figure import new_figure, save
from ampjax.utils.setting_checks import at_least


def lineage(
    updates: Sequence[LoggedUpdate],
    node: str | None = None,
    path: str | Path | None = None,
    *,
    first: int | None = None,
    most: int = 40,
) -> Figure:
    """Draws a line for each gradient of a node: from the version that its forward pass saw to the version that includes the gradient.

    If a gradient is not stale, its line is one version long; it is one longer for each version in between. Instances are in the order
    in which they saw the node's parameters; the lines of one update end at the same version.

    Args:
      updates: The updates that `ampjax.trace.update_log.read_update_log` gives.
      node: The node; by default the first of those with the stalest gradients.
      path: A file to write the picture to: .png, .svg or .pdf.
      first: The first version that is drawn; by default `most` fit the end of the log.
      most: How many updates are drawn, at most.

    Returns:
      The figure.

    Raises:
      SettingsError: If no update of the node was logged from `first` on, `most` is less than 1, or the file name ends in anything else.
    """
    stalest = _stalest(updates)
    if node is None and stalest:
        name = max(stalest, key=lambda each: stalest[each])
    else:
        name = node
    of_node = [u for u in updates if u.node == name and len(u.seen)]
    if first is None:
        shown = of_node[-most:]
    else:
        shown = [u for u in of_node if u.version >= first][:most]
    at_least("most", most, 1)
    if not shown:
        late = "" if first is None else f" that makes version {first} or a later one"
        got = f"none of `{name}`{late}" if updates else "an empty log"
        fix = "Log a fit with `update_log=file`, and draw one of its nodes."
        raise SettingsError(
            "lineage", f"at least one update of a node among {list(stalest)}", got, fix
        )
    seen = np.concatenate([u.seen for u in shown])
    version = np.repeat(
        [u.version for u in shown],
        [len(u.seen) for u in shown],
    )
    order = np.lexsort((version, seen))
    seen = seen[order]
    version = version[order]
    staleness = version - 1 - seen
    end = int(staleness.max())
    figure = new_figure(
        8.5,
        min(7.0, 2.4 + 0.035 * len(seen)),
        layout="constrained",
    )
    axes = figure.subplots()
    colours = ScalarMappable(
        BoundaryNorm(np.arange(-0.5, end + 1), 256),
        colormaps["viridis_r"],
    )
    _draw_gradients(axes, seen, version, colours.to_rgba(staleness))
    mean = np.average(
        staleness,
        weights=np.concatenate([u.gradient_rows for u in shown])[order],
    )
    what = (
        f"{len(shown)} updates from gradients of {len(seen)} instances, mean staleness {mean:.1f}"
    )
    axes.set_title(f"{name}: {what}", fontsize=10, parse_math=False)
    bar = figure.colorbar(colours, ax=axes, label="staleness [versions]", fraction=0.04)
    bar.locator = MaxNLocator(integer=True, nbins=8)
    bar.update_ticks()
    bar.minorticks_off()
    save(figure, path)
    return figure


def _draw_gradients(
    axes: Axes,
    seen: np.ndarray,
    version: np.ndarray,
    colours: np.ndarray,
) -> None:
    """Draws a line for each gradient, one below the other, and the axes around the lines.

    Args:
      axes: Where to draw.
      seen: `[gradients]`: the version that each one's forward pass saw.
      version: `[gradients]`: the version that includes it.
      colours: `[gradients, 4]`.
    """
    lines = []
    for k, (a, b) in enumerate(zip(seen.tolist(), version.tolist(), strict=True)):
        lines.append([(a, k), (b, k)])
    width = float(np.clip(220 / len(seen), 0.7, 4.0))
    axes.add_collection(LineCollection(lines, colors=colours, linewidths=width))
    axes.scatter(
        version,
        np.arange(len(seen)),
        s=2.5 * width,
        color=colours,
        zorder=3,
    )
    axes.set(
        xlim=(seen.min() - 0.7, version.max() + 0.7),
        ylim=(len(seen) - 0.2, -0.8),
    )
    axes.set(xlabel="version of the parameters", ylabel="gradients, by the version that they saw")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _stalest(updates: Sequence[LoggedUpdate]) -> dict[str, int]:
    """The largest staleness of each node's gradients."""
    stalest = {u.node: 0 for u in updates}
    for u in updates:
        stalest[u.node] = max(
            stalest[u.node],
            int(u.staleness.max(initial=0)),
        )
    return stalest
