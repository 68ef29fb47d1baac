"""The data from which a host is made, sent once, at its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ampjax.cluster.wire.channel import Channel, Window
from ampjax.cluster.wire.message import Message
from ampjax.devices.allreduce import Device
from ampjax.engine.executor import Executor
from ampjax.engine.parameters import NodeTraining
from ampjax.hosts.fleet import MOST
from ampjax.hosts.host import ServingHost
from ampjax.hosts.host_link import WINDOW
from ampjax.hosts.layout import HostLayout
from ampjax.ir.graph import Graph
from ampjax.plan.planner import Plan, make_plan

BETWEEN_HOSTS = Window(messages=4 * WINDOW * MOST, nbytes=1 << 40)
"""Rows under way from one host to another. They are bounded by what the driver has decided, so that nobody has to wait to send: by the batches
that it has sent to the receiver and the one that it fills, each of fewer than `MOST` operations and those of one more call of the scheduler."""


@dataclass(frozen=True, eq=False)
class HostProgram:
    """Makes a host's executor. It travels by pickle from the user's own driver, once; on a wire nothing is pickled.

    Args:
      graph: The graph.
      worker_of: The worker of each payload node.
      spaces: The memory space of each worker.
      fuse: Whether chains of payload nodes run as one kernel.
      host_of_space: The host of each memory space.
      params: All parameters to begin with, as NumPy arrays.
      training: How each node is trained.
      stashed: Nodes whose adjoint uses the forward pass's parameters.
    """

    graph: Graph
    worker_of: Mapping[str, int]
    spaces: tuple[int, ...]
    fuse: bool
    host_of_space: tuple[int, ...]
    params: Mapping[str, Any]
    training: Mapping[str, NodeTraining]
    stashed: tuple[str, ...]

    def plan(self) -> Plan:
        """The plan: the same in every process."""
        return make_plan(self.graph, self.worker_of, self.spaces, self.fuse)

    def serve(
        self,
        number: int,
        driver: Channel,
        peers: Mapping[int, Channel],
        plan: Plan | None = None,
        devices: Sequence[Device] | None = None,
    ) -> None:
        """Runs a host until the driver says that the run is over, beginning with hello: the stages that can update nodes, and the plan.

        Args:
          number: Its number.
          driver: The channel to the driver.
          peers: The channels to the other hosts, by number.
          plan: The plan, where it has been made in this process.
          devices: The devices of its memory spaces, in turn; None for `jax.local_devices()`.
        """
        plan = plan or self.plan()
        layout = HostLayout(plan, self.host_of_space)
        on_host = list(devices) if devices is not None else jax.local_devices()
        devices_of = {}
        for n, space in enumerate(layout.spaces_of(number)):
            devices_of[space] = on_host[n % len(on_host)]
        params = {}
        for node, tree in self.params.items():
            if layout.host_of_node[node] == number:
                params[node] = tree
        executor = Executor(plan, params, self.training, devices_of, self.stashed)
        driver.send(Message("hello", tuple(executor.backward_runs.updating), repr(plan)))
        ServingHost(number, executor, layout, driver, peers).serve()
