"""What the experiments' command lines have in common: what is trained here, on how many replicas, and how it is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.parallax.measure import Timing, Turns
from experiments.parallax.programs import machines, make_all
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
    seed: int = 0
    json: Path | None = None

    @property
    def workers(self) -> int:
        """Devices that are needed."""
        return self.machines * self.replicas

    def time(self, model: Model, ways: Sequence[str], workers: int | None = None) -> dict[str, Timing]:
        """Times a model's programs in turn.

        Args:
          model: The model.
          ways: Names of `programs.WAYS`, or `pmap`.
          workers: Replicas of one machine, in place of the options' machines.

        Raises:
          SettingsError: If there are fewer devices than replicas, or an option is outside what it can be.
        """
        resources = machines(self.machines, self.replicas) if workers is None else machines(1, workers)
        work = workload(model, len(resources.devices), self.sizes, self.batches, self.seed)
        programs = make_all(work, ways, resources, server_processes=self.server_processes)
        return Turns(programs, work.batches).run(self.rounds, self.steps, work.units)
