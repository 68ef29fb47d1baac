"""What the experiments' command lines have in common: what is trained here, on how many replicas, and how it is timed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from ampjax.cluster.hosts.resources import Resources, find_resources
from ampjax.errors import SettingsError
from experiments.parallax.measure import Timing, Turns
from experiments.parallax.programs import can_be_processes, machines, make_all
from experiments.parallax.workloads import Model, Sizes, workload


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of all experiments that time programs on this machine.

    Args:
      machines: Machines, with all devices in this process, each with a server.
      replicas: Replicas of a machine; each needs a device (on a CPU they are made).
      rounds: Turns of each program that are timed; medians are taken over them.
      steps: Steps of a turn.
      batches: Batches that come again and again.
      sizes: Of models and data.
      server_processes: Whether servers are processes of their own.
      resources: A resource file whose machines have addresses, in place of machines and replicas: servers and replicas are processes. Ways
        that need all replicas in one process, AR and plain `pmap`, are left out; workers pull for themselves, with or without +LA.
      seed: Of parameters and data.
      json: File to which a JSON object is appended for each figure.
    """

    machines: int = 1
    replicas: int = 2
    rounds: int = 7
    steps: int = 4
    batches: int = 4
    sizes: Sizes = field(default_factory=Sizes)
    server_processes: bool = False
    resources: Path | None = None
    seed: int = 0
    json: Path | None = None

    @property
    def workers(self) -> int:
        """Devices that are needed; with a resource file, replicas."""
        if self.resources is None:
            return self.machines * self.replicas
        return len(self._machines().devices)

    def time(
        self, model: Model, ways: Sequence[str], workers: int | None = None
    ) -> dict[str, Timing]:
        """Times a model's programs in turn.

        Args:
          model: The model.
          ways: Names of `programs.WAYS`, or `pmap`.
          workers: Replicas of one machine, or of a file's first machines, in place of the options' machines.

        Returns:
          By way, its times.

        Raises:
          SettingsError: If there are fewer devices than replicas, or an option is outside what it can be.
        """
        if self.resources is not None:
            return self._time_processes(model, ways, workers)
        if workers is None:
            resources = machines(self.machines, self.replicas)
        else:
            resources = machines(1, workers)
        work = workload(
            model,
            len(resources.devices),
            self.sizes,
            self.batches,
            self.seed,
        )
        programs = make_all(work, ways, resources, server_processes=self.server_processes)
        return Turns(programs, work.batches).run(
            self.rounds,
            self.steps,
            work.units,
        )

    def _time_processes(
        self, model: Model, ways: Sequence[str], workers: int | None
    ) -> dict[str, Timing]:
        resources = first_machines(self._machines(), workers)
        work = workload(
            model,
            len(resources.devices),
            self.sizes,
            self.batches,
            self.seed,
        )
        with ExitStack() as stack:
            programs = make_all(
                work,
                [way for way in ways if can_be_processes(way)],
                resources,
            )
            for program in programs.values():
                stack.callback(program.close)
            return Turns(programs, work.batches).run(
                self.rounds,
                self.steps,
                work.units,
            )

    def _machines(self) -> Resources:
        """The file's machines.

        Raises:
          SettingsError: If they have no addresses.
        """
        resources = find_resources(self.resources)
        if not resources.has_processes:
            fix = "Give each machine an `address`, or leave `--resources` out."
            raise SettingsError("--resources", "machines with addresses", "none with one", fix)
        return resources


def first_machines(resources: Resources, workers: int | None) -> Resources:
    """As many of some machines, from the first on, as have a number of replicas together.

    Args:
      resources: The machines.
      workers: The number; None for all.

    Raises:
      SettingsError: If no number of machines has so many.
    """
    if workers is None:
        return resources
    for n in range(1, len(resources.machines) + 1):
        some = Resources(resources.machines[:n])
        if len(some.devices) == workers:
            return some
    counts = list(accumulate(len(machine.devices) for machine in resources.machines))
    raise SettingsError(
        "--counts",
        f"numbers of replicas of the first machines, {counts}",
        f"{workers}",
        "Choose these.",
    )
