"""The decisions of a run as small records: everything that varies between two runs from one seed, and checksums of the consequences.

The scheduler is a pure state machine, so a schedule is the order of the calls to it: which worker asked and what it got, which dispatch was
said to be done, when instances ended and were admitted, when the data ended. States, slots, updates and averages follow from that; a
checksum of the messages in each dispatch shows that they did: of their instances and state fields, by which every scheduler knows them, not
of slots or lines of tables. So one scheduler can follow what another has decided. Knows no file, no device and no clock.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

import jax
import numpy as np

from ampjax.plan.passes import Pass
from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.trace.instruments import Instrument

CHANGES_ONLY = -1
"""The stage of a dispatch that only changes parameters."""


class PassBegins(NamedTuple):
    """A pass over instances begins: the number of instances, whether the pass trains, and a checksum of the order."""

    instances: int
    train: bool
    order: int

    def __str__(self) -> str:
        purpose = "training" if self.train else "inference"
        return f"a pass of {purpose} over {self.instances} instance(s) in an order with checksum {self.order:08x}"


class Issue(NamedTuple):
    """A worker got a dispatch: stage and direction by number, size, changes that follow, first instance, checksum of all states."""

    worker: int
    stage: int
    direction: int
    messages: int
    rows: int
    changes: int
    instance: int
    states: int

    def __str__(self) -> str:
        changes = f"{self.changes} parameter change(s)"
        if self.stage == CHANGES_ONLY:
            return f"{changes} on worker {self.worker}"
        kernel = f"{DIRECTIONS[self.direction]} of stage {self.stage}: {self.messages} message(s) from instance {self.instance} on"
        return f"{kernel}, {self.rows} row(s), states {self.states:08x}, then {changes}, on worker {self.worker}"


class Done(NamedTuple):
    """A dispatch's messages may travel on: the dispatch's number, from 1, and a checksum of the choices read from payloads (0 for none)."""

    dispatch: int
    choices: int

    def __str__(self) -> str:
        read = f", with readings {self.choices:08x}" if self.choices else ""
        return f"the messages of dispatch {self.dispatch} travelling on{read}"


class Settle(NamedTuple):
    """Instances have ended, and the controller has admitted others (or let its loops pump)."""

    ended: int
    admitted: int

    def __str__(self) -> str:
        return f"{self.ended} instance(s) ending and {self.admitted} admitted"


class DataEnds(NamedTuple):
    """The controller has said that no more training instances come, and updates followed."""

    def __str__(self) -> str:
        return "updates at the end of the data"


class PassEnds(NamedTuple):
    """Everything has ended; a digest of all parameters after a pass that trains."""

    params: bytes

    def __str__(self) -> str:
        return f"the end of the pass, with parameters {self.params.hex()}"


class End(NamedTuple):
    """The last record: the reason of the recording's end (a number in `REASONS`), and the number of decisions before."""

    reason: int
    decisions: int

    def __str__(self) -> str:
        return f"the end of the recording ({REASONS[self.reason]})"


Decision = PassBegins | Issue | Done | Settle | DataEnds | PassEnds | End

REASONS = ("finished", "interrupted", "failed")
FINISHED, INTERRUPTED, FAILED = range(3)

_FORMATS: dict[type, Struct] = {  # each behind its kind's number; little-endian, no gaps
    PassBegins: Struct("<BI?I"),
    Issue: Struct("<BHhBIIIqI"),
    Done: Struct("<BQI"),
    Settle: Struct("<BII"),
    DataEnds: Struct("<B"),
    PassEnds: Struct("<B16s"),
    End: Struct("<BBQ"),
}
_NUMBERS: dict[type, tuple[Struct, int]] = {
    kind: (fmt, i) for i, (kind, fmt) in enumerate(_FORMATS.items())
}
_KINDS = list(_FORMATS.items())
N_END = _FORMATS[End].size


def pack(decision: Decision) -> bytes:
    """A decision as bytes; 30 for a dispatch.

    >>> unpack(pack(Settle(3, 4)) + b"more")
    (Settle(ended=3, admitted=4), 9)

    Returns:
      30 bytes for a dispatch, fewer for others.
    """
    fmt, number = _NUMBERS[type(decision)]
    return fmt.pack(number, *decision)


def unpack(
    data: bytes,
    start: int = 0,
) -> tuple[Decision | None, int]:
    """Reads the decision that begins at a place.

    Args:
      data: Packed decisions.
      start: The place, in bytes.

    Returns:
      The decision, and where the next one begins; None and `start` if the bytes end before the decision does.

    Raises:
      ValueError: If there is no such kind of decision, or a number in it stands for nothing.
    """
    if start >= len(data):
        return None, start
    if data[start] >= len(_KINDS):
        raise ValueError(f"no decision begins with {data[start]}")
    kind, fmt = _KINDS[data[start]]
    if start + fmt.size > len(data):
        return None, start
    decision = kind(*fmt.unpack_from(data, start)[1:])
    if isinstance(decision, Issue) and decision.direction >= len(DIRECTIONS):
        raise ValueError(f"no direction has the number {decision.direction}")
    if isinstance(decision, End) and decision.reason >= len(REASONS):
        raise ValueError(f"no reason to end has the number {decision.reason}")
    return decision, start + fmt.size


Messages = tuple[int, np.ndarray]
"""A dispatch's stage (`CHANGES_ONLY` for none), and its messages `[n, 1 + fields]`: instances and state fields."""


class Journal(Instrument):
    """Turns the events of a loop into decisions.

    Args:
      take: Gets each decision, as it is made: a recorder writes it, a follower compares it.
      messages: Gives a dispatch's stage and messages: the scheduler's `messages_of`.

    Attributes:
      before: The scheduler's dispatches before the first that is seen; None until then.
    """

    def __init__(
        self,
        take: Callable[[Decision], None],
        messages: Callable[[Dispatch], Messages],
    ):
        self._take = take
        self.messages = messages
        self.before: int | None = None

    def begins(self, data_pass: Pass) -> None:
        """A pass begins."""
        self._take(
            PassBegins(
                len(data_pass.ids),
                data_pass.train,
                _checksum(data_pass.ids),
            )
        )

    def decided(self, dispatch: Dispatch) -> None:
        """Notes that a worker got a dispatch of which nothing has run."""
        if self.before is None:
            self.before = dispatch.number - 1
        stage, messages = self.messages(dispatch)
        self._take(
            Issue(
                dispatch.worker,
                stage,
                DIRECTIONS.index(dispatch.direction),
                len(messages),
                dispatch.n_rows,
                len(dispatch.changes),
                int(messages[0, 0]) if len(messages) else 0,
                _checksum(messages),
            )
        )

    def done(self, dispatch: Dispatch, choices: np.ndarray | None) -> None:
        """A dispatch's messages travel on.

        Args:
          dispatch: The dispatch.
          choices: What was read from their payloads; None if nothing was.
        """
        self._take(
            Done(
                self.number(dispatch),
                0 if choices is None else _checksum(choices),
            )
        )

    def settled(
        self,
        ended: Sequence[tuple[int, bool]],
        admitted: int,
    ) -> None:
        """Instances have ended, others have been admitted.

        Args:
          ended: The number of each instance that has ended, and whether it was training.
          admitted: How many have been admitted.
        """
        self._take(Settle(len(ended), admitted))

    def data_ended(self) -> None:
        """The end of the data has led to updates."""
        self._take(DataEnds())

    def ends(self, params: Mapping[str, Any] | None) -> None:
        """A pass has ended; after one that trains, with these parameters."""
        self._take(PassEnds(bytes(16) if params is None else digest(params)))

    def number(self, dispatch: Dispatch) -> int:
        """A dispatch's number in the journal, from 1."""
        assert self.before is not None
        return dispatch.number - self.before


def _checksum(integers: np.ndarray) -> int:
    return zlib.crc32(integers.astype(np.int64, copy=False).tobytes())


def digest(trees: Any) -> bytes:
    """Computes 16 bytes that differ if any array does, in name, dtype, shape or one bit of a value. Waits for devices."""
    checksum = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        array = np.asarray(leaf)
        checksum.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        checksum.update(array.tobytes())
    return checksum.digest()[:16]
