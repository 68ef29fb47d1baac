"""The job that a host gets at its start, its answer, and the check of both: plain data, so that other versions can read all fields."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ampjax.errors import HostError

DRIVER = "driver"
"""What hosts call the process that has started them."""


@dataclass(frozen=True)
class Job:
    """The job of one host.

    Args:
      name: Its name.
      number: Its number.
      names: The names of all hosts, in order.
      driver: The address of the driver's channel to it.
      keys: The run's public and secret key.
      epoch: The run's epoch.
      digest: What the driver's settings are, in short.
      devices: How many devices it must have; 0 for any number, then JAX is not asked.
      window: Messages, bytes and seconds, as `Window` has them.
      patience: Seconds, as `Patience` has them.
      endpoints: By peer on the same machine, its half of what both need to talk past the network, as `LocalEndpoint` has it: file descriptors
        that it was started with.
    """

    name: str
    number: int
    names: tuple[str, ...]
    driver: str
    keys: tuple[str, str]
    epoch: int = 0
    digest: str = ""
    devices: int = 0
    window: tuple[int, int, float] = (64, 1 << 26, 30.0)
    patience: tuple[float, float] = (2.0, 120.0)
    endpoints: Mapping[str, tuple[int, int, bool]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As bytes that any version can read."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> Job:
        """The job that `encode` made bytes of.

        Args:
          text: The bytes.
        """
        read = json.loads(text).items()
        values: dict[str, Any] = {}
        for name, value in read:
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)


@dataclass(frozen=True)
class Hello:
    """The description that a host gives before running anything.

    Args:
      python: Its Python's version, without the last number.
      jax: JAX's version.
      ampjax: Ours.
      digest: What its settings are, in short.
      place: Its machine's name.
      process: Its process's id.
      devices: How many devices it has; 0 if it was not asked.
      addresses: Where it listens, by the name of the host that shall connect.
    """

    python: str
    jax: str
    ampjax: str
    digest: str
    place: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    devices: int = 0
    addresses: Mapping[str, str] = field(default_factory=dict)


def own_versions() -> dict[str, Any]:
    """The versions of this process: `python`, `jax` and `ampjax`."""
    names = "jax", "ampjax"
    versions = {name: _version(name) for name in names}
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        **versions,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "a checkout"


def check(job: Job, hello: Hello) -> None:
    """Compares a host with its driver, which checks before anything of the user's travels further.

    Raises:
      HostError: If it has another version of Python, JAX or ampjax, other settings, or not enough devices.
    """
    where = f"{job.name} on {hello.place}"
    for package, version in own_versions().items():
        if (version_there := getattr(hello, package)) != version:
            fix = "Install the same versions on all machines."
            raise HostError(where, f"{package} {version}, as the driver has", version_there, fix)
    if hello.digest != job.digest:
        fix = "Start all hosts from one program with one file of settings."
        raise HostError(where, f"the driver's settings, {job.digest!r}", repr(hello.digest), fix)
    if job.devices and hello.devices < job.devices:
        fix = "Ask for fewer devices a host, or place fewer hosts on this machine."
        raise HostError(where, f"at least {job.devices} devices", str(hello.devices), fix)
