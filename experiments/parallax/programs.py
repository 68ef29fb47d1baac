"""The ways to train a model data-parallel that are compared, each a `measure.Program`.

AR means what the papers measured: AllReduce of dense variables, AllGatherv of the touched rows of sparse ones. Beside it stands what
plain `pmap` data parallelism does: an AllReduce of everything, tables too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import optax

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import RemoteDevice
from ampjax.devices.allreduce import issue_collective
from ampjax.devices.per_replica import AXIS, replica_entry, replicate, spread
from ampjax.errors import SettingsError
from ampjax.parallel.runner import Runner
from ampjax.parallel.shard import split_batch
from ampjax.parallel.steps.step_outcome import Metrics
from experiments.parallax.workloads import Workload

_ALONE = {
    "local_aggregation": False,
    "boundary_among_servers": False,
    "boundary_between_workers_and_servers": False,
}

WAYS: Mapping[str, Mapping[str, Any]] = {
    "AR": {"run_option": "ar"},
    "naive PS": {"run_option": "ps", **_ALONE},
    "optimised PS": {"run_option": "ps"},
    "hybrid": {},
    "BASE": {"run_option": "ps", **_ALONE},
    "+HYB": _ALONE,
    "+LA": _ALONE | {"local_aggregation": True},
    "+OPAU": {"boundary_between_workers_and_servers": False},
    "+OPSW": {},
}
"""Settings of `ParallaxConfig` by the papers' names: table 4 of EuroSys 2019, then that of the arXiv version."""


def can_be_processes(way: str) -> bool:
    """Whether a way's replicas can be processes.

    Args:
      way: A name in `WAYS`, or `pmap`.
    """
    return way in WAYS


class Ours:
    """A runner.

    Args:
      runner: The runner.
    """

    def __init__(self, runner: Runner):
        self.runner = runner
        self._last: Metrics | None = None

    def step(self, batch: Any, following: Any = None) -> Metrics:
        """One step; `following` is the batch of the next one, if it is known."""
        self._last = self.runner.run(batch, following=following)
        return self._last

    @property
    def params(self) -> Any:
        """The parameters, host arrays."""
        return self.runner.params

    def reset(self, params: Any) -> None:
        """Starts anew; what has been compiled stays."""
        self.runner.reset(params)

    def close(self) -> None:
        """Ends its processes, if it has any."""
        self.runner.close()

    def wait(self) -> None:
        """Until the last step's loss and parameters are there."""
        if self._last is not None:
            self._last.loss  # noqa: B018 # reading it waits
            self.runner.wait()


class Plain:
    """Data parallelism as one writes it by hand: `pmap`, `psum`, optax; parameters and state are donated.

    Args:
      work: What is trained.
      devices: The replicas' devices.
    """

    def __init__(self, work: Workload, devices: Sequence[Any]):
        tx = optax.with_extra_args_support(work.tx)

        def step(
            params: Any,
            state: Any,
            batch: Any,
        ) -> tuple[Any, Any, jax.Array]:
            loss, grads = jax.value_and_grad(work.loss)(params, batch)
            loss, grads = jax.lax.pmean((loss, grads), AXIS)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

        self._devices = list(devices)
        self.program = jax.pmap(
            step,
            axis_name=AXIS,
            devices=self._devices,
            donate_argnums=(0, 1),
        )
        self._init = work.tx.init
        self.reset(work.params)

    @property
    def params(self) -> Any:
        """The parameters, host arrays."""
        return replica_entry(self._params)

    def reset(self, params: Any) -> None:
        """Starts anew; what has been compiled stays."""
        self._params = replicate(params, self._devices)
        self._state = replicate(self._init(params), self._devices)

    def arguments(self, batch: Any) -> tuple[Any, Any, Any]:
        """What the program takes."""
        return (
            self._params,
            self._state,
            spread(split_batch(batch, len(self._devices)), self._devices),
        )

    def step(self, batch: Any) -> jax.Array:
        """One step; gives the loss, a copy for each replica."""
        results = issue_collective(
            self.program,
            *self.arguments(batch),
            token=lambda results: results[2],
        )
        self._params, self._state, loss = results
        return loss

    def close(self) -> None:
        """Nothing to do: it has no processes."""

    def wait(self) -> None:
        """Until the parameters are there."""
        jax.block_until_ready(self._params)


def processes(n_machines: int, replicas: int) -> px.Resources:
    """Machines with a process for each replica and for a server, all of them here.

    Args:
      n_machines: Machines.
      replicas: Replicas of each.
    """
    names = [f"machine-{m}" for m in range(n_machines)]
    devices = []
    for name in names:
        devices.append(tuple(RemoteDevice(name, number) for number in range(replicas)))
    each = zip(names, devices, strict=True)
    return px.Resources(tuple(px.Machine(name, own, address="localhost") for name, own in each))


def machines(n_machines: int, replicas: int) -> px.Resources:
    """Machines of this process, with replicas and a server each.

    Args:
      n_machines: Machines.
      replicas: Replicas of each.

    Raises:
      SettingsError: If there are fewer devices than replicas.
    """
    devices = jax.local_devices()
    needed = n_machines * replicas
    if not 0 < needed <= len(devices):
        raise SettingsError(
            "--machines, --replicas", f"1 to {len(devices)} replicas together, a device for each", f"{needed}",
            "Set JAX_NUM_CPU_DEVICES to more.",
        )  # fmt: skip
    own = []
    for m in range(n_machines):
        own.append(tuple(devices[m * replicas : (m + 1) * replicas]))
    return px.Resources(tuple(px.Machine(f"machine-{m}", devices) for m, devices in enumerate(own)))


def make(
    work: Workload,
    way: str,
    resources: px.Resources,
    **settings: Any,
) -> Ours | Plain:
    """A program that trains a workload.

    Args:
      work: What is trained.
      way: `pmap`, or a name in `WAYS`.
      resources: The machines.
      settings: More settings of `ParallaxConfig`; those of server processes are for ways that have servers.
    """
    if way == "pmap":
        return Plain(work, resources.devices)
    if WAYS[way].get("run_option") == "ar":
        settings = {name: value for name, value in settings.items() if name != "server_processes"}
    # As in the paper, each replica takes negatives and batch statistics from its own part, by intent.
    config = px.ParallaxConfig(
        check_equivalence="off",
        **{**WAYS[way], **settings},
    )
    return Ours(px.get_runner(work.loss, work.params, work.tx, resources, config))


def make_all(
    work: Workload,
    ways: Sequence[str],
    resources: px.Resources,
    **settings: Any,
) -> dict[str, Ours | Plain]:
    """Several programs that train the same from the same parameters, by name."""
    return {way: make(work, way, resources, **settings) for way in ways}
