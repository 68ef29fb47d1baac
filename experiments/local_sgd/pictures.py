"""Loss by inner steps and by time on the clock, a line for each training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ampjax.utils.drawing.figure import new_figure, save

STYLES = {"synchronous": "-", "delayed": ":", "asynchronous": "--"}


def curves(
    records: Sequence[Mapping[str, Any]],
    path: Path | None = None,
) -> Figure:
    """Draws the losses: the mean over seeds, with a style of line for each way to train.

    Args:
      records: Of all trainings.
      path: A file to write it to.
    """
    figure = new_figure(9.0, 3.6, layout="constrained")
    by_steps, by_time = figure.subplots(1, 2, sharey=True)
    for name in dict.fromkeys(record["name"] for record in records):
        own = [record for record in records if record["name"] == name]
        losses = np.mean([record["losses"] for record in own], axis=0)
        seconds = np.mean([record["seconds"] for record in own], axis=0)
        style = STYLES[own[0]["way"]]
        by_steps.plot(own[0]["steps"], losses, style, label=name)
        by_time.plot(seconds, losses, style)
    by_steps.set_xlabel("inner steps of all workers")
    by_steps.set_ylabel("loss")
    by_time.set_xlabel("seconds on the clock")
    for axes in (by_steps, by_time):
        axes.grid(alpha=0.3)
    by_steps.legend(fontsize=8)
    if path is not None:
        save(figure, path)
    return figure
