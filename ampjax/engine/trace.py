"""What ran where and when: the record that Gantt charts and statistics are made from. Knows no devices and no clock."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ampjax.errors import DataError, SettingsError

KINDS = ("forward", "backward", "update", "transfer", "infer")
"""What a worker can be busy with."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a worker's time.

    Args:
      worker: The worker's number.
      node: The node that ran.
      kind: `forward`, `backward`, `update`, `transfer` or `infer`.
      start_ns: When it began, in nanoseconds of the run's clock.
      end_ns: When it ended; not before it began.
      instances: The instances whose messages were in it; empty for an update.

    Raises:
      SettingsError: If the kind is none of these, or it ends before it begins.
    """

    worker: int
    node: str
    kind: str
    start_ns: int
    end_ns: int
    instances: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError(
                f"slice of `{self.node}`, kind", f"one of {', '.join(KINDS)}", f"{self.kind!r}", "Choose one of them."
            )
        if self.end_ns < self.start_ns:
            raise SettingsError(
                f"slice of `{self.node}`",
                "an end that is not before the start",
                f"{self.start_ns} ns to {self.end_ns} ns",
                "Take both times from one clock.",
            )

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


_FIELDS = tuple(field.name for field in fields(Slice))


class Trace:
    """The slices of a run, in the order in which they were added; the first `max_slices` are kept, the rest is counted.

    Args:
      slices: Slices to begin with.
      max_slices: The most that are kept, so that a long run does not fill the memory.

    Raises:
      SettingsError: If `max_slices` is less than 1.

    >>> trace = Trace()
    >>> trace.add(0, "linear1", "forward", 0, 600, (3, 4))
    >>> trace.add(1, "linear2", "forward", 600, 1_000, (3, 4))
    >>> trace
    Trace(2 slices on 2 workers over 1 us: 2 forward; busy 0: 60 %, 1: 40 %)
    """

    def __init__(self, slices: Iterable[Slice] = (), max_slices: int = 1_000_000):
        if max_slices < 1:
            raise SettingsError(
                "trace, max_slices", "at least 1", f"{max_slices}", "Leave the trace out if nothing is to be recorded."
            )
        self.max_slices, self.n_dropped = max_slices, 0
        self._rows: list[tuple[int, str, str, int, int, Any]] = []
        for s in slices:
            self.add(s.worker, s.node, s.kind, s.start_ns, s.end_ns, s.instances)

    def add(self, worker: int, node: str, kind: str, start_ns: int, end_ns: int, instances: Iterable[int] = ()) -> None:
        """Records a slice; cheap, since checks and conversions wait until the trace is read.

        Args:
          worker: The worker's number.
          node: The node that ran.
          kind: `forward`, `backward`, `update`, `transfer` or `infer`.
          start_ns: When it began.
          end_ns: When it ended.
          instances: A sequence or integer array that nobody writes to afterwards.
        """
        if len(self._rows) < self.max_slices:
            self._rows.append((worker, node, kind, start_ns, end_ns, instances))
        else:
            self.n_dropped += 1

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Slice]:
        for worker, node, kind, start, end, instances in self._rows:
            yield Slice(int(worker), node, kind, int(start), int(end), tuple(int(i) for i in instances))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self.slices == other.slices and self.n_dropped == other.n_dropped

    __hash__ = None  # type: ignore[assignment]  # it grows

    @property
    def slices(self) -> list[Slice]:
        """All slices.

        Raises:
          SettingsError: If one of them was added with a wrong kind or with times the wrong way round.
        """
        return list(self)

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        return max((row[4] for row in self._rows), default=0) - min((row[3] for row in self._rows), default=0)

    def busy_fraction(self) -> dict[int, float]:
        """The part of the span in which each worker had at least one slice, by worker; slices at the same time count once."""
        busy: dict[int, int] = {}
        until: dict[int, int] = {}
        for worker, _, _, start, end, _ in sorted(self._rows, key=lambda row: row[3]):
            begin = max(start, until.get(worker, start))
            busy[worker] = busy.get(worker, 0) + max(end - begin, 0)
            until[worker] = max(end, begin)
        return {int(worker): busy[worker] / self.span_ns if self.span_ns else 0.0 for worker in sorted(busy)}

    def to_jsonl(self, path: str | Path) -> None:
        """Writes a JSON object per slice, a line each; folders are made.

        Args:
          path: The file.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({name: getattr(s, name) for name in _FIELDS}) + "\n" for s in self)
            if self.n_dropped:
                file.write(json.dumps({"n_dropped": self.n_dropped}) + "\n")

    @classmethod
    def from_jsonl(cls, path: str | Path) -> Trace:
        """Reads what `to_jsonl` wrote.

        Args:
          path: The file.

        Returns:
          An equal trace.

        Raises:
          DataError: If the file is missing, or a line is not a slice.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"trace `{path}`", "a readable file", f"{error}", "Write one with `Trace.to_jsonl`."
            ) from error
        slices, n_dropped = [], 0
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                row = json.loads(line)
                if "n_dropped" in row:
                    n_dropped = int(row["n_dropped"])
                else:
                    slices.append(Slice(**{**row, "instances": tuple(row["instances"])}))
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(
                    f"trace `{path}`, line {number}",
                    "a slice as JSON",
                    f"{line[:60]!r} ({error})",
                    "Write the file with `Trace.to_jsonl`.",
                ) from error
        trace = cls(slices, max_slices=max(len(slices), 1_000_000))
        trace.n_dropped = n_dropped
        return trace

    def __repr__(self) -> str:
        kinds = Counter(row[2] for row in self._rows)
        span, unit = scaled(self.span_ns)
        busy = self.busy_fraction()
        shown = ", ".join(f"{worker}: {100 * part:.0f} %" for worker, part in list(busy.items())[:8]) + ", ..." * (
            len(busy) > 8
        )
        counts = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind]) or "nothing"
        dropped = f"; {self.n_dropped} more not kept" if self.n_dropped else ""
        return f"Trace({len(self)} slices on {len(busy)} workers over {span:.3g} {unit}: {counts}; busy {shown or 'none'}{dropped})"


def scaled(time_ns: float) -> tuple[float, str]:
    """A time in the unit that suits it.

    Args:
      time_ns: Nanoseconds.

    Returns:
      The value and its unit: `ns`, `us`, `ms` or `s`.
    """
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(time_ns) >= factor:
            return time_ns / factor, unit
    return float(time_ns), "ns"
