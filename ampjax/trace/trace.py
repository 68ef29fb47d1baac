"""Traces: the slices of each worker, with times. All pictures of a run are made from its trace. Knows no devices and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.errors import SettingsError
from ampjax.trace import trace_file
from ampjax.trace.trace_records import KINDS, QueueSample, Slice, StalenessSample, TracedHost, Wait


class Trace:
    """A record of workers during runs: slices of time, waits, queues and staleness.

    Of each kind of record the first `max_slices` are kept. The class has more than 15 methods, since adding and reading use the same
    columns: methods `add...` take numbers during a run, and properties make records of them later.

    Args:
      slices: Slices to begin with.
      max_slices: The most slices that are kept, so that a long run does not fill the memory (a slice of 64 messages takes about 1 kB).
      every: On real devices, at most one dispatch in `every` is waited for and timed; the times of the others are worked out from these and
        from when the host issued them (see `engine.timing`). 1 waits for every dispatch before its messages travel on, which is exact, but
        slow. With hosts, each times its own dispatches.

    Attributes:
      hosts: By name, the hosts that ran the workers; empty if all was in one process.
      traffic: By the names of sender and receiver, the bytes that went from one to the other during the runs, headers included. `driver`
        is the process of the trainer.
      runs: Start and end of each run, in nanoseconds.
      stages: Which nodes run together, by the name of their stage.
      histograms: By node, how many gradient rows had each staleness, `[128]`; the last entry counts all larger ones, too.

    Raises:
      SettingsError: If `max_slices` or `every` is less than 1.

    >>> trace = Trace()
    >>> trace.add(0, "linear1", "forward", 0, 600, (3, 4))
    >>> trace.add(1, "linear2", "forward", 600, 1_000, (3, 4))
    >>> trace
    Trace(2 slices on 2 workers over 1 us: 2 forward; busy 0: 60 %, 1: 40 %)
    """

    def __init__(
        self,
        slices: Iterable[Slice] = (),
        max_slices: int = 1_000_000,
        every: int = 64,
    ):
        for name, value in (("max_slices", max_slices), ("every", every)):
            if value < 1:
                raise SettingsError(
                    f"trace, {name}",
                    "at least 1",
                    f"{value}",
                    "Leave the trace out if nothing is to be recorded.",
                )
        self.max_slices = max_slices
        self.every = every
        self._n_dropped = 0
        self.runs: list[tuple[int, int]] = []
        self.hosts: dict[str, TracedHost] = {}
        self.traffic: dict[tuple[str, str], int] = {}
        self.stages: dict[str, tuple[str, ...]] = {}
        self.histograms: dict[str, np.ndarray] = {}
        self._postponed: list[Callable[[Trace], None]] = []
        self._rows: list[tuple[int, str, str, int, int, Any, int, int]] = []
        self._waits: list[tuple[int, str, int, int]] = []
        self._queues: list[tuple[int, int, Any]] = []
        self._updates: list[tuple[str, int, int, float]] = []
        for s in slices:
            self.add(
                s.worker,
                s.node,
                s.kind,
                s.start_ns,
                s.end_ns,
                s.instances,
                rows=s.rows,
                messages=s.messages,
            )

    # Recording is cheap: checks and conversions wait until the trace is read

    def add(
        self,
        worker: int,
        node: str,
        kind: str,
        start_ns: int,
        end_ns: int,
        instances: Iterable[int] = (),
        *,
        rows: int = 0,
        messages: int = 0,
    ) -> None:
        """Records a slice.

        Args:
          worker: The worker's number.
          node: The stage that ran, or the nodes that were updated.
          kind: `forward`, `backward`, `update`, `transfer` or `infer`.
          start_ns: When it began.
          end_ns: When it ended.
          instances: The instances, a sequence or integer array that must not be changed afterwards; may repeat.
          rows: Rows of payload.
          messages: Messages.
        """
        if len(self._rows) < self.max_slices:
            self._rows.append((worker, node, kind, start_ns, end_ns, instances, rows, messages))
        else:
            self.drop()

    def drop(self, n: int = 1) -> None:
        """Counts slices that are not kept.

        Args:
          n: How many.
        """
        self._n_dropped += n

    def add_wait(
        self,
        worker: int,
        reason: str,
        start_ns: int,
        end_ns: int,
    ) -> None:
        """Records a period in which a worker did nothing; see `Wait`.

        Args:
          worker: The worker's number.
          reason: One of `trace_records.REASONS`.
          start_ns: When it began.
          end_ns: When it ended.
        """
        if end_ns > start_ns and len(self._waits) < self.max_slices:
            self._waits.append((worker, reason, start_ns, end_ns))

    def add_queues(
        self,
        worker: int,
        time_ns: int,
        queues: Iterable[tuple[str, str, int]],
    ) -> None:
        """Records the queues of a worker at one moment; see `QueueSample`.

        Args:
          worker: The worker's number.
          time_ns: The moment.
          queues: Stage, direction and number of messages of each queue that is not empty.
        """
        if len(self._queues) < self.max_slices:
            self._queues.append((worker, time_ns, queues))

    def add_staleness(
        self,
        node: str,
        time_ns: int,
        rows: int,
        mean: float,
    ) -> None:
        """Records how stale an update's gradients were; see `StalenessSample`.

        Args:
          node: The node that was updated.
          time_ns: The end of the update.
          rows: Gradient rows in it.
          mean: Their mean staleness, in updates of the node.
        """
        if len(self._updates) < self.max_slices:
            self._updates.append((node, time_ns, rows, mean))

    def postpone(self, add: Callable[[Trace], None]) -> None:
        """Postpones work until the trace is read.

        Args:
          add: Called with the trace when it is read; adds records to it.
        """
        self._postponed.append(add)

    def add_histogram(self, node: str, counts: np.ndarray) -> None:
        """Adds to a node's counts of stale gradients.

        Args:
          node: The node.
          counts: `[128]`: gradient rows of each staleness.
        """
        before = self.histograms.get(node)
        if before is None:
            self.histograms[node] = np.array(counts, np.int64)
        else:
            self.histograms[node] = before + counts

    def add_host(self, host: TracedHost) -> None:
        """Adds a host, in place of one of that name.

        Args:
          host: The host.
        """
        self.hosts[host.name] = host

    def add_traffic(self, sender: str, receiver: str, n_bytes: int) -> None:
        """Adds to the bytes that have gone from one process to another.

        Args:
          sender: The name of one.
          receiver: The name of the other.
          n_bytes: Bytes.
        """
        self.traffic[sender, receiver] = self.traffic.get((sender, receiver), 0) + n_bytes

    # Reading

    def _read(self) -> list[tuple[int, str, str, int, int, Any, int, int]]:
        """The slices' rows, once all postponed work has been done."""
        postponed = self._postponed
        self._postponed = []
        for add in postponed:
            add(self)
        return self._rows

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[Slice]:
        for worker, node, kind, start, end, instances, rows, messages in self._read():
            different = tuple(dict.fromkeys(int(i) for i in instances))
            yield Slice(
                int(worker),
                node,
                kind,
                int(start),
                int(end),
                different,
                int(rows),
                int(messages),
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self._contents() == other._contents()

    __hash__ = None  # type: ignore[assignment]  # it grows

    def _contents(self) -> tuple[Any, ...]:
        counts = {}
        for node, values in self.histograms.items():
            counts[node] = values.tolist()
        lists = self.slices, self.waits, self.queues, self.staleness
        return *lists, self.runs, self.hosts, self.traffic, self.stages, counts, self.n_dropped

    @property
    def slices(self) -> list[Slice]:
        """All slices.

        Raises:
          SettingsError: If one of them was added with a wrong kind or with times the wrong way round.
        """
        return list(self)

    @property
    def waits(self) -> list[Wait]:
        """The times in which workers had nothing to do, in order for each worker; waits for other hosts' rows come after the others."""
        self._read()
        result = []
        for worker, reason, start, end in self._waits:
            result.append(Wait(int(worker), reason, int(start), int(end)))
        return result

    @property
    def queues(self) -> list[QueueSample]:
        """The messages that waited for workers, in order of time."""
        self._read()
        result = []
        for worker, time, queues in self._queues:
            result.append(
                QueueSample(
                    int(worker),
                    int(time),
                    tuple((stage, direction, int(n)) for stage, direction, n in queues),
                )
            )
        return result

    @property
    def staleness(self) -> list[StalenessSample]:
        """The staleness of each update's gradients."""
        self._read()
        result = []
        for node, time, n, mean in self._updates:
            result.append(StalenessSample(node, int(time), int(n), float(mean)))
        return result

    def worker_name(self, worker: int) -> str:
        """The name of a worker in pictures.

        Args:
          worker: Its number.
        """
        hosts = []
        for host in self.hosts.values():
            if worker in host.workers:
                hosts.append(host.name)
        return f"worker {worker} on {hosts[0]}" if hosts else f"worker {worker}"

    @property
    def n_dropped(self) -> int:
        """Slices that were not kept."""
        self._read()
        return self._n_dropped

    @property
    def start_ns(self) -> int:
        """The first start, of a run or a slice."""
        starts = [run[0] for run in self.runs] + [row[3] for row in self._read()]
        return min(starts, default=0)

    @property
    def span_ns(self) -> int:
        """From the first slice's start to the last one's end."""
        return max((row[4] for row in self._read()), default=0) - min(
            (row[3] for row in self._read()), default=0
        )

    def busy_fraction(self) -> dict[int, float]:
        """Computes the part of the span in which each worker had at least one slice; slices at the same time count once.

        Returns:
          By worker, a number from 0 to 1.
        """
        busy: dict[int, int] = {}
        until: dict[int, int] = {}
        for worker, _, _, start, end, *_ in sorted(
            self._read(),
            key=lambda row: row[3],
        ):
            begin = max(start, until.get(worker, start))
            busy[worker] = busy.get(worker, 0) + max(end - begin, 0)
            until[worker] = max(end, begin)
        result = {}
        for worker in sorted(busy):
            result[int(worker)] = busy[worker] / self.span_ns if self.span_ns else 0.0
        return result

    # Files

    def to_jsonl(self, path: str | Path) -> None:
        """Writes a JSON object per record, a line each; folders are made.

        Args:
          path: The file.

        Raises:
          OSError: If it can't be written.
        """
        histograms = {}
        for node, counts in self.histograms.items():
            histograms[node] = counts.tolist()
        contents = trace_file.Contents(
            slices=list(self),
            waits=list(self.waits),
            queues=list(self.queues),
            staleness=list(self.staleness),
            runs=self.runs,
            hosts=self.hosts,
            traffic=self.traffic,
            stages=self.stages,
            histograms=histograms,
            n_dropped=self.n_dropped,
        )
        trace_file.write(path, contents)

    @classmethod
    def from_jsonl(cls, path: str | Path) -> Trace:
        """Reads a file of `to_jsonl`.

        Args:
          path: The file.

        Returns:
          An equal trace.

        Raises:
          DataError: If the file is missing, or a line is not a record.
        """
        read = trace_file.read(path)
        trace = cls(
            read.slices,
            max_slices=max(
                len(read.slices),
                len(read.queues),
                len(read.waits),
                1_000_000,
            ),
        )
        for wait in read.waits:
            trace.add_wait(wait.worker, wait.reason, wait.start_ns, wait.end_ns)
        for sample in read.queues:
            trace.add_queues(sample.worker, sample.time_ns, sample.queues)
        for s in read.staleness:
            trace.add_staleness(s.node, s.time_ns, s.rows, s.mean)
        trace.runs = read.runs
        trace.stages = read.stages
        trace.hosts = read.hosts
        trace.traffic = read.traffic
        trace.drop(read.n_dropped)
        histograms = {}
        for node, counts in read.histograms.items():
            histograms[node] = np.array(counts, np.int64)
        trace.histograms = histograms
        return trace

    def __repr__(self) -> str:
        kinds = Counter(row[2] for row in self._read())
        span, unit = scale_time(self.span_ns)
        busy = self.busy_fraction()
        shown = ", ".join(
            f"{worker}: {100 * part:.0f} %" for worker, part in list(busy.items())[:8]
        ) + ", ..." * (len(busy) > 8)
        counts = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kinds[kind]) or "nothing"
        dropped = f"; {self.n_dropped} more not kept" if self.n_dropped else ""
        return f"Trace({len(self)} slices on {len(busy)} workers over {span:.3g} {unit}: {counts}; busy {shown or 'none'}{dropped})"


def in_lanes(slices: Iterable[Slice]) -> list[tuple[Slice, int]]:
    """Puts slices that overlap in time in lanes side by side.

    Returns:
      The slices by start, each with the number of its lane among its worker's, from 0.
    """
    free_at: dict[int, list[int]] = {}
    chosen: list[tuple[Slice, int]] = []
    for s in sorted(slices, key=lambda s: (s.start_ns, s.end_ns)):
        lanes = free_at.setdefault(s.worker, [])
        lane = next(
            (i for i, end in enumerate(lanes) if end <= s.start_ns),
            len(lanes),
        )
        lanes[lane : lane + 1] = [s.end_ns]
        chosen.append((s, lane))
    return chosen


def scale_time(time_ns: float) -> tuple[float, str]:
    """A time in a suitable unit.

    Args:
      time_ns: Nanoseconds.

    Returns:
      The value and its unit: `ns`, `us`, `ms` or `s`.
    """
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(time_ns) >= factor:
            return time_ns / factor, unit
    return float(time_ns), "ns"


def duration(time_ns: float) -> str:
    """Writes a time for a picture: three digits, in a suitable unit.

    Args:
      time_ns: Nanoseconds.
    """
    value, unit = scale_time(time_ns)
    return f"{float(f'{value:.3g}'):,g} {unit.replace('us', 'µs')}"
