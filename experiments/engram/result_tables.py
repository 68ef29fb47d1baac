"""The results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from ampjax.utils.text_tables import compact

Records = Sequence[Mapping[str, Any]]


def show_time(records: Records, console: Console) -> None:
    """Prints losses at equal time, if there are any.

    Args:
      records: Of all parts.
      console: Where to.
    """
    own = [record for record in records if record["what"] == "time"]
    if not own:
        return
    table = compact("loss at equal time", "s", "steps", "at the half", "at the end")
    for record in own:
        losses = record["losses"]
        table.add_row(
            f"{record['way']}, seed {record['seed']}",
            f"{record['seconds'][-1]:.0f}",
            f"{record['steps'][-1]:,}",
            f"{losses[len(losses) // 2]:.3f}",
            f"{losses[-1]:.3f}",
        )
    console.print(table)


def show_late(records: Records, console: Console) -> None:
    """Prints losses with late gradients, means over seeds, if there are any.

    Args:
      records: Of all parts.
      console: Where to.
    """
    own = [record for record in records if record["what"] == "late"]
    if not own:
        return
    table = compact(
        "late, by steps",
        "loss",
        "seen\noften",
        "seen\nseldom",
        "never\nseen",
        "missed,\nhead",
        "missed,\ntail",
    )
    cells: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for record in own:
        place = (record["late"], record["delay"])
        cells.setdefault(place, []).append(record)
    for (late, delay), cell in cells.items():
        row = []
        for name in ("loss", "loss_often", "loss_seldom", "loss_never"):
            row.append(f"{np.mean([record[name] for record in cell]):.4f}")
        for name in ("missed_head", "missed_tail"):
            row.append(f"{np.mean([record[name] for record in cell]):.2f}")
        table.add_row(f"{late}, {delay}", *row)
    console.print(table)
    first = own[0]
    console.print(
        f"of {first['rows_read']:,} rows that the text reads, {first['rows_head']:,} are the head; positions seen often "
        f"{first['share_often']:.0%}, seldom {first['share_seldom']:.0%}, never {first['share_never']:.1%}"
    )


def show_steps(records: Records, console: Console) -> None:
    """Prints times of steps and memory, if there are any.

    Args:
      records: Of all parts.
      console: Where to.
    """
    own = [record for record in records if record["what"] == "steps"]
    if not own:
        return
    table = compact("step", "ms", "ratio", "quartiles", "GB beside\nthe table", "at the\nstart")
    without = own[0]
    for record in own:
        low, high = record["quartiles"]
        row = [
            f"{record['milliseconds']:.0f}",
            f"{record['ratio']:.3f}",
            f"{low:.3f} to {high:.3f}",
        ]
        in_memory = 0 if record["kind"] == "file" else record["table_bytes"]
        for name in ("peak_training", "peak_begin"):
            if name in record:
                more = record[name] - in_memory - without[name]
                row.append(f"{more / 1e9:.2f}")
            else:
                row.append("—")
        table.add_row(record["way"], *row)
    console.print(table)
    console.print(f"{without['dense_parameters']:,} dense parameters without a table")
