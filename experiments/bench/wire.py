"""What messages between two hosts cost: rows there and back, and bulk one way, past the network and over it, encrypted as always or in plain text."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ampjax.cluster.hosts.host_context import HostContext
from ampjax.cluster.hosts.spawn_hosts import spawn
from ampjax.cluster.wire.channel import Channel
from ampjax.cluster.wire.message import Message
from ampjax.cluster.wire.zmq_wire import Keys, ZmqWire, new_keys
from ampjax.errors import SettingsError
from ampjax.utils.text_tables import compact
from experiments.records import append

KINDS = "one machine", "CURVE", "plain"
"""As hosts of one machine talk, as those of several do, and these without encryption."""


@dataclass(frozen=True, kw_only=True)
class WireBench:
    """Microseconds for some rows there and back, and MB/s for large arrays one way, between two host processes of this machine.

    Args:
      rows: Rows in a message that goes there and back.
      width: Floats in a row.
      round_trips: How many of these are measured.
      megabytes: Size of an array that goes one way.
      arrays: How many of these are sent in a pass.
      passes: Passes of each kind, in turn.
      json: File to which a JSON object is appended for each kind.
    """

    rows: int = 64
    width: int = 300
    round_trips: int = 1000
    megabytes: int = 4
    arrays: int = 50
    passes: int = 5
    json: Path | None = None


def main(
    options: WireBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is below 1.
    """
    sizes = (
        options.rows,
        options.width,
        options.round_trips,
        options.megabytes,
        options.arrays,
        options.passes,
    )
    if min(sizes) < 1:
        raise SettingsError(
            "bench wire, options", "numbers of at least 1", f"{options}", "Change the option."
        )
    with spawn(2, program(*sizes)) as hosts:
        found = [hosts[0].channel.receive() for _ in KINDS]
    table = compact("", "there and back µs", "worst of 100 µs", "one way MB/s")
    rows = []
    for kind, message in zip(KINDS, found, strict=True):
        assert message is not None
        median, worst, rate = message.arrays[0].tolist()
        rows.append(
            {
                "bench": "wire",
                "kind": kind,
                "median_us": median,
                "p99_us": worst,
                "mb_per_s": rate,
            }
        )
        table.add_row(kind, f"{median:.0f}", f"{worst:.0f}", f"{rate:.0f}")
    append(options.json, rows)
    (console or Console(highlight=False)).print(table)
    return rows


def program(
    rows: int,
    width: int,
    round_trips: int,
    megabytes: int,
    arrays: int,
    passes: int,
) -> Callable[[HostContext], None]:
    """What both hosts run: the first asks and measures, the second answers."""

    def ask(channel: Channel) -> tuple[list[float], float]:
        small = Message(
            "rows",
            arrays=(np.ones((rows, width), np.float32),),
        )
        bulk = Message(
            "bulk",
            arrays=(np.ones(megabytes << 18, np.float32),),
        )
        times = []
        for _ in range(round_trips):
            start = time.perf_counter()
            channel.send(small)
            channel.receive()
            times.append(1e6 * (time.perf_counter() - start))
        start = time.perf_counter()
        for _ in range(arrays):
            channel.send(bulk)
        channel.send(Message("rows"))
        channel.receive()
        return times, arrays * bulk.nbytes / (time.perf_counter() - start) / 1e6

    def answer(channel: Channel) -> None:
        for _ in range(round_trips + arrays + 1):
            message = channel.receive()
            if message is not None and message.kind == "rows":
                channel.send(message)

    def run(context: HostContext) -> None:
        near = context.peer(context.names[1 - context.number])
        if context.number == 0:
            keys = new_keys()
            wires = ZmqWire("a", keys), ZmqWire("a", None)
            far = [wire.listen("b") for wire in wires]
            text = [key.decode() for key in keys]
            near.send(
                Message(
                    "addresses",
                    text=json.dumps([text, *(channel.address for channel in far)]),
                )
            )
            results: list[list[tuple[list[float], float]]] = [[] for _ in KINDS]
            for _ in range(passes):
                for result, channel in zip(results, (near, *far), strict=True):
                    result.append(ask(channel))
            for result in results:
                times = sorted(time_us for part, _ in result for time_us in part)
                rates = statistics.median(rate for _, rate in result)
                summary = statistics.median(times), times[int(0.99 * len(times))], rates
                context.driver.send(Message("found", arrays=(np.array(summary),)))
        else:
            message = near.receive()
            assert message is not None
            text, *addresses = json.loads(message.text)
            wires = ZmqWire("b", Keys(*(key.encode() for key in text))), ZmqWire("b", None)
            far = []
            for wire, address in zip(wires, addresses, strict=True):
                far.append(wire.connect("a", address))
            for _ in range(passes):
                for channel in (near, *far):
                    answer(channel)
        context.driver.receive()

    return run
