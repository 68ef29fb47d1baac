"""Checks that a model can be trained by processes, and says who starts them: this machine, or Ray."""

from __future__ import annotations

from typing import Any

from ampjax.cluster.hosts.packed_programs import packed
from ampjax.cluster.hosts.ray_launcher import launcher_for
from ampjax.cluster.hosts.resources import Resources
from ampjax.errors import SettingsError
from ampjax.parallel.config.config import ParallaxConfig
from ampjax.parallel.workers.process_group import ProcessGroup


def process_group(resources: Resources, config: ParallaxConfig, loss_fn: Any, tx: Any) -> ProcessGroup:
    """The processes of a runner; none is started yet.

    Args:
      resources: Machines with addresses.
      config: The settings.
      loss_fn: The loss function.
      tx: The optimizer.

    Returns:
      The processes.

    Raises:
      SettingsError: If the settings need replicas in this process, or the loss function or the optimizer can't travel.
    """
    if config.run_option == "ar" or not config.sync:
        got = f"run_option={config.run_option!r}, sync={config.sync}"
        fix = "Leave the addresses out: then replicas are in this process, and all settings can be had."
        raise SettingsError(
            "settings, with machines that have addresses", "`hybrid` or `ps`, and `sync=True`", got, fix
        )
    packed({"loss_fn": loss_fn, "tx": tx}, "the loss function and the optimizer")
    addresses = [resources.machines[machine].address for machine in (*resources.servers, *resources.homes)]
    return ProcessGroup(resources, launcher_for(addresses))
