"""The programs of a group's processes: servers, and workers that join each other before anything of the user's is read."""

from __future__ import annotations

import os
import socket
from typing import Any

import cloudpickle
import jax

from ampjax.cluster.hosts.host_context import HostContext
from ampjax.cluster.wire.message import Message
from ampjax.parallel.workers.row_servers import RowServers
from ampjax.parallel.workers.worker import Worker
from ampjax.sparse.servers.serving import serve

START_S = 120
"""How long the first worker may take to be there for the others."""


def main(
    context: HostContext,
    n_servers: int,
    devices: tuple[int, ...],
    is_sync: bool,
    program: bytes,
) -> None:
    """A process of a group: the first ones are servers, the others workers.

    Args:
      context: The process.
      n_servers: How many servers there are.
      devices: For each worker, the number of its device on its machine.
      is_sync: Whether workers step together.
      program: The `WorkerProgram`, packed.
    """
    if context.number < n_servers:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update(
            "jax_cpu_enable_async_dispatch", False
        )  # it waits for each result at once
        serve(context, context.names[n_servers:])
    else:
        _work(context, n_servers, devices, is_sync, program)


def _work(
    context: HostContext,
    n_servers: int,
    devices: tuple[int, ...],
    is_sync: bool,
    program: bytes,
) -> None:
    replica = context.number - n_servers
    n = len(context.names) - n_servers if is_sync else 1  # how many have one program
    _join(context, n_servers, replica, n, devices[replica])
    built = cloudpickle.loads(
        program
    )  # after the others were joined: what is in it may use JAX's devices
    for name, value in built.jax_settings.items():
        jax.config.update(name, value)
    firsts: dict[int, Any] = {}
    for device in jax.devices():
        firsts.setdefault(device.process_index, device)
    servers = RowServers([context.peer(name) for name in context.names[:n_servers]])
    if n == 1 and firsts[0].platform != "cpu":
        firsts = {0: jax.local_devices()[devices[replica]]}
    everywhere = [firsts[i] for i in range(n)]
    Worker(built, replica, everywhere[replica % n], everywhere, servers).serve(context.driver)


def _join(
    context: HostContext,
    n_servers: int,
    replica: int,
    n: int,
    device: int,
) -> None:
    """Makes the programs of all workers one, which average gradients inside (`jax.distributed`)."""
    if n == 1:
        return
    names = context.names[n_servers:]
    if replica == 0:
        address = f"{context.address}:{_free_port(context.address)}"
        for name in names[1:]:
            context.peer(name).send(Message("join", text=address))
    else:
        message = context.peer(names[0]).receive(START_S)
        assert message is not None
        address = message.text
    chosen = None if os.environ.get("JAX_PLATFORMS") == "cpu" else [device]
    jax.distributed.initialize(address, n, replica, local_device_ids=chosen)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
