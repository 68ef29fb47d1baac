"""Summaries of the records that commands write: few fields, few digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import report
from experiments.records import read
from experiments.results.section import Records

DIGITS = 6


def fields(*names: str) -> Callable[[Path], Records]:
    """A summary of some fields of each record; records without such a field are left out.

    Args:
      *names: The fields.
    """

    def summary(path: Path) -> Records:
        found = []
        for record in read(path):
            own = {name: rounded(record[name]) for name in names if name in record}
            if own:
                found.append(own)
        return found

    return summary


def to_target(path: Path) -> Records:
    """A record for each setting of an experiment: epochs and seconds to the target, a number for each seed.

    Args:
      path: Epochs, as an experiment writes them.
    """
    found = []
    for setting, epochs in report.read([path]).items():
        row = report.summarise(setting, epochs)
        first = next(iter(epochs.values()))[0]
        found.append(
            {
                "experiment": setting[0],
                "mode": setting[1],
                "max_active_keys": setting[2],
                "target": first["target"],
                "metric": row.metric,
                "seeds": list(row.seeds),
                "epochs": rounded(list(row.epochs)),
                "seconds": rounded(list(row.seconds)),
                "best": rounded(list(row.best)),
                "train_per_s": rounded(row.speed[0]),
                "staleness": rounded(row.staleness),
            }
        )
    return found


def rounded(value: Any) -> Any:
    """A value whose numbers have six digits that count; None in place of infinity.

    Args:
      value: As JSON has it.

    >>> rounded({"a": [0.12345678, 12345678.9], "b": float("inf")})
    {'a': [0.123457, 12345700], 'b': None}
    """
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    found = float(f"{value:.{DIGITS}g}")
    return int(found) if found.is_integer() else found
