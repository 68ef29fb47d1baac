"""Places, starts, watches and ends hosts by Ray. Ray carries no messages of a run: one of its calls takes a millisecond, the wire a tenth of that."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampjax.cluster.hosts.job import Job
from ampjax.cluster.hosts.launcher import Launcher
from ampjax.cluster.hosts.local_launcher import LocalLauncher
from ampjax.cluster.wire.zmq_wire import LOOPBACK
from ampjax.errors import HostError

_WATCH_S = 0.2
"""How often Ray is asked whether a host is there."""

_PLACE_S = 60.0


class RayLauncher:
    """Starts hosts as Ray actors, each in a bundle of its own of a placement group; for `amp.Hosts(launcher=...)`.

    Ray never restarts a host by itself, since a new process would not have the parameters of the old one.

    Args:
      address: The address of the cluster, as `ray.init` takes it; None starts Ray on this machine, unless it already runs in this process.
      resources: The resources that each host needs, by Ray's names; by default `{"CPU": 1}`.
      strategy: Ray's placement strategy: `SPREAD` over machines if possible, `STRICT_SPREAD` over as many machines as hosts, or `PACK`.
      places: For each host, the address of its machine, as Ray knows it; by default Ray chooses.

    Raises:
      HostError: If Ray is not installed or can't be reached, or has no machine at one of the places.
    """

    def __init__(
        self,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        strategy: str = "SPREAD",
        places: Sequence[str] = (),
    ):
        try:
            import ray
        except ImportError as error:
            fix = "Install the extra `cluster` of ampjax, or start hosts on this machine."
            raise HostError("Ray", "its package", f"{error}", fix) from None
        self._ray = ray
        self._strategy = strategy
        self._resources = dict(resources or {"CPU": 1})
        self._is_ours = not ray.is_initialized()
        self._group: Any = None
        if self._is_ours:
            try:
                ray.init(
                    address=address or "local", include_dashboard=False if address is None else None
                )
            except (Exception, SystemExit) as error:  # Ray ends the process where nobody answers
                fix = "Start it there with `ray start --head`, and give the address that it names."
                raise HostError("Ray", f"a cluster at {address!r}", f"{error}", fix) from error
        addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        is_cluster = len(addresses) > 1 or address is not None
        self.host = ray.util.get_node_ip_address() if is_cluster else LOOPBACK
        self._places = [self.host if is_here(place) else place for place in places]
        for place in self._places:
            if place not in addresses | {LOOPBACK}:
                self.close()
                fix = "Start it there with `ray start --address=...`, or correct the address."
                raise HostError(
                    "Ray", f"a machine at `{place}`", f"those at {sorted(addresses)}", fix
                )

    def start(
        self,
        jobs: Sequence[Job],
        main: bytes,
        environment: Mapping[str, str],
    ) -> Sequence[RayProcess]:
        """See `Launcher.start`."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray = self._ray
        bundles = [dict(self._resources) for _ in jobs]
        for bundle, place in zip(bundles, self._places, strict=False):
            if place != LOOPBACK:
                bundle[f"node:{place}"] = 0.001  # Ray's name for a machine
        self._group = placement_group(bundles, strategy=self._strategy)
        if not self._group.wait(_PLACE_S):
            resources = ray.available_resources()
            self.close()
            fix = "Ask for fewer hosts or less for each, or let more machines join."
            wanted = f"room for {len(jobs)} hosts with {self._resources} each"
            raise HostError("Ray", wanted, f"{resources} in {_PLACE_S:g} s", fix)
        actor = ray.remote(RayHost)
        options = {
            "max_restarts": 0,
            "max_task_retries": 0,
            "num_cpus": self._resources.get("CPU", 0),
            "num_gpus": self._resources.get("GPU", 0),
            "resources": {k: v for k, v in self._resources.items() if k not in ("CPU", "GPU")},
            "runtime_env": {"env_vars": dict(environment)},
        }
        result = []
        for i, job in enumerate(jobs):
            place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=i)
            handle = actor.options(scheduling_strategy=place, **options).remote(job.name)
            result.append(
                RayProcess(
                    ray,
                    handle,
                    handle.run.remote(job.encode(), main),
                )
            )
        return result

    def close(self) -> None:
        """See `Launcher.close`. A Ray that was started here ends."""
        from ray.util.placement_group import remove_placement_group

        if self._ray.is_initialized():
            if self._group is not None:
                remove_placement_group(self._group)
                self._group = None
            if self._is_ours:
                self._ray.shutdown()


def launcher_for(addresses: Sequence[str]) -> Callable[[], Launcher]:
    """Makes who starts processes at some addresses.

    Returns:
      A function that makes a launcher: this machine's if all are here, and Ray's for any other.
    """
    if all(is_here(address) for address in addresses):
        return LocalLauncher
    return lambda: RayLauncher("auto", places=addresses)


def is_here(place: str) -> bool:
    """Whether a name or an address is this machine's."""
    return place in ("localhost", LOOPBACK, "::1", socket.gethostname())


class RayHost:
    """The actor in Ray's process. Ray's log has its name before each line.

    Args:
      name: The host's name.
    """

    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def run(self, job: bytes, main: bytes) -> bool:
        """Runs the host until its program ends.

        Returns:
          Whether it ended without an error.
        """
        from ampjax.cluster.hosts import host_program

        return host_program.run(Job.decode(job), main)


class RayProcess:
    """One host, as Ray knows the host.

    Args:
      ray: The package.
      handle: The actor.
      running: What `run` will give.
    """

    def __init__(self, ray: Any, handle: Any, running: Any):
        self._ray = ray
        self._handle = handle
        self._running = running
        self._ending: str | None = None
        self._asked_at = 0.0

    def ending(self) -> str | None:
        """See `Started.ending`."""
        now = time.monotonic()
        if self._ending is None and now > self._asked_at + _WATCH_S:
            self._asked_at = now
            self._ending = self._ask()
        return self._ending

    def _ask(self) -> str | None:
        if not self._ray.is_initialized():
            return "the end of Ray"
        ready, _ = self._ray.wait([self._running], timeout=0)
        if not ready:
            return None
        try:
            return (
                "its program has ended"
                if self._ray.get(self._running)
                else "its program has failed"
            )
        except Exception as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"

    def kill(self) -> None:
        """See `Started.kill`."""
        with contextlib.suppress(Exception):  # Ray has ended before
            self._ray.kill(self._handle, no_restart=True)
        self._ending = self._ending or "killed"

    def log_tail(self) -> Sequence[str]:
        """See `Started.log_tail`. Ray prints the output of hosts."""
        return ()
