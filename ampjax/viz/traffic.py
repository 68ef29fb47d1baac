"""Bytes between hosts: a matrix of senders and receivers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from ampjax.errors import SettingsError
from ampjax.trace.trace import Trace
from ampjax.utils.drawing.colours import BLACK, BLUE, WHITE
from ampjax.utils.drawing.figure import new_figure, save

_DARK = 0.55
"""From this part of the largest number on, text is white."""

_MOST_WITH_NUMBERS = 24


def traffic(
    trace: Trace,
    path: str | Path | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draws how many bytes went from each process of a run to each other: senders in rows, receivers in columns.

    `driver` is the trainer's own process: what it sends are decisions and pumped payloads; what it gets are acknowledgements, losses and
    what is read back. The rest are rows and gradients that cross hosts, and replicas' parameters.

    Args:
      trace: The trace of a run on hosts.
      path: A file to write the picture to: .png, .svg or .pdf.
      title: Above the picture.

    Returns:
      The figure.

    Raises:
      SettingsError: If the trace has no hosts, or the file name ends in anything else.
    """
    if not trace.traffic:
        fix = "Trace a trainer that has `hosts=`."
        raise SettingsError(
            "traffic", "a trace of a run on hosts", "one of a run in one process", fix
        )
    names = list(dict.fromkeys(name for ends in trace.traffic for name in ends))
    n = len(names)
    bytes_of = np.array(
        [[trace.traffic.get((one, other), 0) for other in names] for one in names],
        float,
    )
    if n <= _MOST_WITH_NUMBERS:
        side = min(max(0.85, 8 / n), 1.1) * n
    else:
        side = 9.0
    figure = new_figure(side + 1.6, 0.62 * side + 1.2, layout="constrained")
    axes = figure.subplots()
    largest = bytes_of.max() or 1.0
    np.fill_diagonal(bytes_of, np.nan)
    colours = LinearSegmentedColormap.from_list("traffic", [WHITE, BLUE])
    axes.set_facecolor("#E6E6E6")  # where nothing goes: from a process to itself
    axes.imshow(
        bytes_of,
        cmap=colours,
        vmin=0,
        vmax=largest,
        aspect="auto",
    )
    axes.set_xticks(
        range(n),
        names,
        rotation=0 if n <= 8 else 90,
    )
    axes.set_yticks(range(n), names)
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if n <= _MOST_WITH_NUMBERS:
        for (row, column), value in np.ndenumerate(bytes_of):
            if row != column:
                ink = WHITE if value > _DARK * largest else BLACK
                axes.text(
                    column,
                    row,
                    in_bytes(int(value)),
                    ha="center",
                    va="center",
                    size=9,
                    color=ink,
                )
    if title:
        axes.set_title(title, fontsize=11)
    save(figure, path)
    return figure


def in_bytes(n: int) -> str:
    """Writes a number of bytes for a picture or a table: three digits, in a suitable unit.

    Args:
      n: Bytes.

    >>> in_bytes(1_234_567), in_bytes(999), in_bytes(0)
    ('1.23 MB', '999 B', '0 B')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= 0.9995 * factor:
            return f"{n / factor:.3g} {unit}"
    return f"{n} B"
