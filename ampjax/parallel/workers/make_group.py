"""Checks that a model can be trained by processes, and chooses their launcher: this machine, or Ray."""

from __future__ import annotations

from typing import Any

from ampjax.cluster.hosts.packed_programs import pack_program
from ampjax.cluster.hosts.ray_launcher import launcher_for
from ampjax.cluster.hosts.resources import Resources
from ampjax.errors import SettingsError
from ampjax.parallel.config.config import ParallaxConfig
from ampjax.parallel.workers.process_group import ProcessGroup


def process_group(
    resources: Resources, config: ParallaxConfig, loss_fn: Any, tx: Any
) -> ProcessGroup:
    """The processes of a runner; none is started yet.

    Returns:
      The processes.

    Raises:
      SettingsError: If a machine has no server where each needs one, or the loss function or the optimizer can't travel.
    """
    for number, machine in enumerate(resources.machines):
        if config.run_option == "ar" and not resources.servers_of(number):
            where = f"machine `{machine.host}`, `servers`"
            expected = "at least 1 where run_option is `ar`"
            raise SettingsError(
                where, expected, "0", "A server on each machine keeps its copy of the tables."
            )
    pack_program({"loss_fn": loss_fn, "tx": tx}, "the loss function and the optimizer")
    addresses = []
    for machine in (*resources.servers, *resources.homes):
        addresses.append(resources.machines[machine].address)
    return ProcessGroup(resources, launcher_for(addresses), config.sync)
