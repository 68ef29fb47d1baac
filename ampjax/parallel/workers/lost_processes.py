"""Finds the process of a group that was lost first, when several fail one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ampjax.cluster.hosts.spawn_hosts import Host, SpawnedHosts
from ampjax.errors import HostDiedError, HostError, HostUnreachableError

RESTORE = "What it held is lost: restore the last checkpoint, which starts all processes anew, or let `ParallaxConfig(checkpoint=...)` do both."

_CAUSES = HostDiedError, HostUnreachableError
_CAUSE_S = 1.0
"""How long the cause of a worker's error is looked for: another process that has ended, or gives no sign of life."""


def cause_of(
    error: HostError,
    hosts: SpawnedHosts,
    places: Sequence[str],
) -> HostError:
    """Finds the cause of an error: the process that was lost first, as far as this is known.

    Args:
      error: What one process has said.
      hosts: All processes.
      places: What errors call each of them, and where it is.

    Returns:
      The error of the first one that was lost; the given one if none was.
    """
    start = time.monotonic()
    while True:
        of_host = {i: ends for i, host in enumerate(hosts) if (ends := _ending(host)) is not None}
        # What a killed process takes along fails or aborts; the cause may be noticed a little later than that.
        causes = {
            i: reason
            for i, reason in of_host.items()
            if isinstance(reason, _CAUSES) and "SIGABRT" not in reason.got
        }
        if causes or time.monotonic() > start + _CAUSE_S:
            break
        time.sleep(0.02)
    ends = (
        causes
        or {i: each for i, each in of_host.items() if not isinstance(each, _CAUSES)}
        or of_host
    )
    if not ends:
        return error
    first = next(iter(ends.values()))
    got = "; ".join(dict.fromkeys(each.got for each in ends.values()))
    fix = RESTORE if causes else first.fix
    result = type(first)(
        ", ".join(places[i] for i in ends),
        "a running process",
        got,
        fix,
    )
    for note in getattr(first, "__notes__", ()):
        result.add_note(note)
    return result


def _ending(host: Host) -> HostError | None:
    """Returns the end of a process, as its channel reports it; None if the process runs."""
    try:
        while host.channel.is_ready():
            host.channel.receive(0)
    except HostError as error:
        return error
    return None
