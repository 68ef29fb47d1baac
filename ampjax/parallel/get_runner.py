"""`get_runner`: makes a runner, after the checks that need no batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import optax

from ampjax.cluster.hosts.resources import Resources, find_resources
from ampjax.errors import SettingsError
from ampjax.numerics.check import warn_of_wrong_numbers
from ampjax.parallel.config.config import ParallaxConfig
from ampjax.parallel.config.partitioner import Partitioner, as_partitioners
from ampjax.parallel.homes.wire import MachineWire
from ampjax.parallel.planning.build_runner import RunnerSetup
from ampjax.parallel.runner import Runner
from ampjax.parallel.steps.step_programs import LossFn
from ampjax.parallel.workers.make_group import process_group
from ampjax.sparse.servers.processes import ServerProcesses

Tree = Any


def get_runner(
    loss_fn: LossFn,
    params: Tree,
    tx: optax.GradientTransformation,
    resource_info: str | Path | Mapping[str, Any] | Resources | None = None,
    config: ParallaxConfig | None = None,
    partitioners: Sequence[str | Partitioner] = (),
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Runner:
    """Makes a single-device program data-parallel (the paper's `get_runner`).

    The first batch, or the checkpoint that the run goes on from, shows which parameters are sparse. Dense ones get a copy on every replica's device, and AllReduce keeps the copies
    equal. Sparse ones go to host-side tables at servers; a step pulls and updates the rows that it touches. Training equals that of the
    single-device program on the joined batch. If the program computes something across the examples of a batch, this may not hold; all
    batches are checked, and there is a warning (`check_equivalence`). `px.Weighted`, `px.all_gather` and `px.mean` work across replicas.

    Args:
      loss_fn: `loss_fn(params, batch) -> loss` or `(loss, aux)`, anything that `jax.jit` takes; `px.Weighted` in the place of a loss. With
        the mean over examples and `mean` in the settings (or sums and `sum`), replicas together compute the single-device step.
      params: A pytree of float arrays; copied at the first batch.
      tx: An optax transform, which must work row by row on sparse variables. Without sparse variables and servers, it gets the loss as
        `value`. Transforms that take `staleness` get the number of updates since the gradients' parameters were pulled, which is 0 if
        `sync` is True. Their state is then inside a `StalenessState`, on tables, too.
      resource_info: A resource file, a mapping with its content, `Resources`, or None for all local devices as one machine. For machines with
        addresses, a server process is started for each server and a worker process for each replica, at the first batch.
      config: The settings.
      partitioners: Which sparse variables share a number of partitions: a pattern for each group, `embedding` or `encoder/*,decoder/*`; or a
        `Partitioner`, with bounds of the number.
      clock: Gives seconds; for the partition search.

    Returns:
      The runner.

    Raises:
      SettingsError: If resources are wrong, `loss_fn`, `tx`, `config` or a partitioner is of another type, or JAX runs in several processes.
      ParameterError: If a parameter has no gradient or is not finite, or two have one path: `/` stands between keys.

    Warns:
      NumericsWarning: Once in a process, if its kernels compute wrong numbers (see `amp.check_numerics`).

    >>> import jax, numpy as np
    >>> def loss(params, batch):
    ...     return jax.numpy.mean((params["table"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)
    >>> params = {"table": np.ones((100, 2), np.float32), "w": np.ones(2, np.float32)}
    >>> runner = get_runner(loss, params, optax.sgd(0.1))
    >>> n = len(jax.local_devices())
    >>> runner.run({"ids": np.arange(n), "y": np.zeros(n, np.float32)}).loss
    4.0
    >>> sorted(runner.params)
    ['table', 'w']
    """
    if not callable(loss_fn):
        raise SettingsError(
            "loss_fn",
            "a function of params and batch",
            type(loss_fn).__name__,
            "Pass the function itself.",
        )
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise SettingsError(
            "tx", "an optax transform", type(tx).__name__, "Pass for example `optax.adam(1e-3)`."
        )
    if not isinstance(config, ParallaxConfig | None):
        raise SettingsError(
            "config",
            "a ParallaxConfig or None",
            type(config).__name__,
            'Write `ParallaxConfig(run_option="ps")`.',
        )
    groups = as_partitioners(partitioners)
    if jax.process_count() > 1:
        raise SettingsError(
            "get_runner",
            "one process, which has all devices",
            f"{jax.process_count()} processes (`jax.process_count()`)",
            "Each process would train a model of its own. Start one, without `jax.distributed.initialize`; for several machines, "
            "give those in the resource file an `address`: the runner starts processes there.",
        )
    warn_of_wrong_numbers("get_runner", jax.local_devices(backend="cpu"))
    resources = find_resources(resource_info)
    config = config or ParallaxConfig()
    group = None
    if config.server_processes:
        processes = ServerProcesses(len(resources.servers))
    else:
        processes = None
    if resources.has_processes:
        if config.table_sharing is not None:
            raise SettingsError(
                "setting `table_sharing`",
                "machines without an `address`, whose replicas are in this process",
                "machines whose servers and replicas are processes of this runner",
                "Start the runners that share tables yourself, or leave `table_sharing` out.",
            )
        group = process_group(resources, config, loss_fn, tx)
        processes = ServerProcesses(len(resources.servers), group.begin_server, waits=False)
    setup = RunnerSetup(
        loss_fn,
        tx,
        resources,
        config,
        MachineWire(len(resources.machines)),
        processes,
        group,
    )
    return Runner(setup, params, groups, clock)
