"""The program of a host: says hello, waits until all others are there, and runs the function that its driver has sent.

When its driver is gone, however that ended, so is the host: its standard input ends, and Linux kills it even if it is stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import sys
import threading
import traceback
from dataclasses import asdict
from typing import Any

import cloudpickle

from ampjax.cluster.hosts.host_context import HostContext, PeerFinder
from ampjax.cluster.hosts.job import DRIVER, Hello, Job, own_versions
from ampjax.cluster.wire.channel import Window
from ampjax.cluster.wire.local_endpoints import LocalEndpoint
from ampjax.cluster.wire.message import Message
from ampjax.cluster.wire.zmq_channel import Patience
from ampjax.cluster.wire.zmq_wire import Keys, ZmqWire, own_address
from ampjax.errors import HostDiedError

_PR_SET_PDEATHSIG = 1


def run(job: Job, main: bytes) -> bool:
    """Runs a host in this process.

    Args:
      job: Its job.
      main: What it runs, packed: a function of a `HostContext`.

    Returns:
      Whether its program has ended without an error.
    """
    wire = ZmqWire(
        job.name,
        Keys(*(key.encode() for key in job.keys)),
        own_address(job.driver),
        job.epoch,
        Window(*job.window),
        Patience(*job.patience),
    )
    try:
        return _run(job, main, wire)
    finally:
        wire.close()


def _run(job: Job, main: bytes, wire: ZmqWire) -> bool:
    endpoints = {}
    for name, each in job.endpoints.items():
        endpoints[name] = LocalEndpoint(*each).keep()
    driver = wire.connect(DRIVER, job.driver)
    if DRIVER in endpoints:
        driver.use_local(endpoints.pop(DRIVER))
    find = PeerFinder(wire, job.names, endpoints)
    try:
        hello = Hello(
            **own_versions(),
            digest=job.digest,
            devices=_n_devices(job),
            addresses=find.addresses,
        )
        driver.send(Message("hello", text=json.dumps(asdict(hello))))
        start: Any = driver.receive()
        find.learn({name: tuple(entry) for name, entry in json.loads(start.text).items()})
        context = HostContext(
            job.name,
            job.number,
            job.names,
            driver,
            find,
            wire.host,
        )
        cloudpickle.loads(main)(context)
    except HostDiedError:
        if not driver.has_ended:
            driver.fail(traceback.format_exc())
            return False
    except BaseException:
        driver.fail(traceback.format_exc())
        return False
    finally:
        driver.finish()
    return True


def _n_devices(job: Job) -> int:
    if not job.devices:
        return 0
    import jax

    return jax.local_device_count()


def end_with(parent: int) -> None:
    """Lets Linux kill this process when the thread that started the process has ended, even if the process is stopped or busy."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def main() -> None:
    """Runs the program of a host that was started on this machine; its job and its function come in over standard input."""
    source = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    with open(source, "rb", buffering=0, closefd=False) as stream:
        parent, *sizes = struct.unpack("<QQQ", _read(stream, 24))
        end_with(parent)
        job, program = (_read(stream, size) for size in sizes)
    threading.Thread(target=_wait_for_end, args=(source,), daemon=True).start()
    sys.exit(0 if run(Job.decode(job), program) else 1)


def _read(stream: Any, size: int) -> bytes:
    result = b""
    while len(result) < size:
        if not (more := stream.read(size - len(result))):
            os._exit(1)
        result += more
    return result


def _wait_for_end(source: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(source, 1):
            pass
    os._exit(1)
