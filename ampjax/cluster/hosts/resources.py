"""Machines, their devices and their servers: a resource file, or all local devices as one machine.

Machines with an address get processes of their own. Without, several machines of a file may lie in one process, each with some of its
devices: then the bytes between them are counted as if they were apart. Knows files and devices; nothing of variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import yaml

from ampjax.errors import SettingsError
from ampjax.utils.bounded_reading import read_whole

MOST_BYTES = 1 << 16
"""Of a resource file: about a thousand machines."""
_DEEPEST = 8
_MOST_SERVERS = 1000
"""Of a machine."""

Device = Any  # jax.Device, which type checkers do not take for a type

_EXAMPLE = (
    "Write for example `machines: [{host: a, address: localhost, devices: [0, 1], servers: 1}]`."
)
_FIELDS = ("host", "address", "devices", "servers")


@dataclass(frozen=True)
class RemoteDevice:
    """A device of a machine with processes of its own.

    Args:
      host: The machine.
      number: The device's number there.
    """

    host: str
    number: int


@dataclass(frozen=True)
class Machine:
    """One machine.

    Args:
      host: Its name.
      devices: The devices of its replicas, one replica each.
      servers: The number of servers that run on it; 0 or more.
      address: The machine's address, if its servers and replicas are processes of their own: `localhost`, or the address by which Ray knows
        it. Its devices are then `RemoteDevice`s. Empty if servers and replicas are in this process.
    """

    host: str
    devices: tuple[Device, ...]
    servers: int = 1
    address: str = ""


@dataclass(frozen=True)
class Resources:
    """All machines. Replicas and servers are numbered machine by machine.

    Args:
      machines: At least one machine; together at least one server.

    Raises:
      SettingsError: If there is no machine, no device or no server, or a host or a device occurs twice.
    """

    machines: tuple[Machine, ...]

    def __post_init__(self) -> None:
        if not self.machines:
            raise SettingsError("resources", "at least one machine", "none", _EXAMPLE)
        _once("host", [machine.host for machine in self.machines])
        _once("device", list(self.devices))
        for machine in self.machines:
            if not machine.devices:
                raise SettingsError(
                    f"machine `{machine.host}`", "at least one device", "none", _EXAMPLE
                )
            if bool(machine.address) != self.has_processes:
                where = f"machine `{machine.host}`, `address`"
                expected = "an address for all machines, or for none"
                got = f"{'one' if machine.address else 'none'}, other than the first"
                fix = "Without addresses, all machines are parts of this process."
                raise SettingsError(where, expected, got, fix)
        if not self.servers:
            raise SettingsError(
                "resources", "at least one server", "none", "Give a machine `servers: 1`."
            )

    @property
    def has_processes(self) -> bool:
        """Whether servers and replicas are processes of their own."""
        return bool(self.machines) and bool(self.machines[0].address)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The replicas' devices."""
        result = []
        for machine in self.machines:
            for device in machine.devices:
                result.append(device)
        return tuple(result)

    @property
    def homes(self) -> tuple[int, ...]:
        """Each replica's machine."""
        result = []
        for i, machine in enumerate(self.machines):
            for _ in machine.devices:
                result.append(i)
        return tuple(result)

    @property
    def servers(self) -> tuple[int, ...]:
        """Each server's machine."""
        result = []
        for i, machine in enumerate(self.machines):
            for _ in range(machine.servers):
                result.append(i)
        return tuple(result)

    def servers_of(self, machine: int) -> tuple[int, ...]:
        """The numbers of a machine's servers, in order.

        Args:
          machine: The machine's number.
        """
        return tuple(server for server, home in enumerate(self.servers) if home == machine)

    def clients(
        self,
        together: bool,
    ) -> list[tuple[int, list[int]]]:
        """The clients of the servers.

        Args:
          together: Whether the replicas of a machine are one client (local aggregation), or each is one.

        Returns:
          For each client its machine and its replicas.
        """
        if not together:
            return [(home, [replica]) for replica, home in enumerate(self.homes)]
        result = []
        for machine in range(len(self.machines)):
            result.append((machine, self.replicas_of(machine)))
        return result

    def replicas_of(self, machine: int) -> list[int]:
        """The numbers of a machine's replicas.

        Args:
          machine: The machine's number.

        Returns:
          The numbers, in order.
        """
        return [replica for replica, home in enumerate(self.homes) if home == machine]


def find_resources(info: str | Path | Mapping[str, Any] | Resources | None = None) -> Resources:
    """The machines that a resource file names, or this process as one machine with one server.

    The file is YAML (of which JSON is a part): `machines`, a list of mappings with `devices` (numbers of the machine's devices; without
    addresses, of this process's local ones), and optionally `host` (a name), `servers` (1 by default) and `address`.

    Args:
      info: A file, what one holds, resources, or None for all local devices.

    Returns:
      The machines.

    Raises:
      SettingsError: If the file can't be read, is no such YAML, or names devices that are not there.
    """
    if isinstance(info, Resources):
        return info
    if info is None:
        return Resources((Machine("localhost", tuple(jax.local_devices())),))
    if not isinstance(info, str | Path | Mapping):
        raise SettingsError(
            "resource_info", "a file's name, a mapping, Resources or None", f"{info!r}", _EXAMPLE
        )
    where = "resource_info" if isinstance(info, Mapping) else f"resource file `{info}`"
    listed = _list_machines(
        where,
        info if isinstance(info, Mapping) else _read(where, Path(info)),
    )
    return Resources(tuple(_machine(where, number, entry) for number, entry in enumerate(listed)))


def _read(where: str, path: Path) -> Any:
    try:
        text = read_whole(path, MOST_BYTES).decode()
        _check_form(text)
        return yaml.safe_load(text)
    except OSError as error:
        raise SettingsError(
            where,
            "a file that can be read",
            f"{error.strerror}",
            "Pass the path of a resource file, and check that this user may read it.",
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(where, "YAML", f"{' '.join(str(error).split())}", _EXAMPLE) from error


def _list_machines(where: str, content: Any) -> list[Any]:
    if not isinstance(content, Mapping) or set(content) != {"machines"}:
        got = (
            f"the keys {sorted(map(str, content))}"
            if isinstance(content, Mapping)
            else type(content).__name__
        )
        raise SettingsError(where, "a mapping with the one key `machines`", got, _EXAMPLE)
    if not isinstance(content["machines"], list):
        raise SettingsError(
            f"{where}, `machines`", "a list", type(content["machines"]).__name__, _EXAMPLE
        )
    return content["machines"]


def _check_form(text: str) -> None:
    """Raises a `ValueError` for a short text whose building takes endless time or memory: deep brackets, and aliases of aliases."""
    depth = 0
    for event in yaml.parse(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > _DEEPEST or isinstance(event, yaml.AliasEvent):
            raise ValueError(
                "an alias"
                if depth <= _DEEPEST
                else f"more than {_DEEPEST} brackets within each other"
            )


def _machine(where: str, number: int, entry: Any) -> Machine:
    where = f"{where}, machine {number}"
    if not isinstance(entry, Mapping) or "devices" not in entry or not set(entry) <= set(_FIELDS):
        raise SettingsError(
            where, f"`devices`, and of {list(_FIELDS)} nothing else", f"{entry!r}", _EXAMPLE
        )
    servers = entry.get("servers", 1)
    if (
        isinstance(servers, bool)
        or not isinstance(servers, int)
        or not 0 <= servers <= _MOST_SERVERS
    ):
        raise SettingsError(
            f"{where}, `servers`", f"a number from 0 to {_MOST_SERVERS}", f"{servers!r}", _EXAMPLE
        )
    if not isinstance(entry["devices"], list):
        raise SettingsError(
            f"{where}, `devices`", "a list of numbers", f"{entry['devices']!r}", _EXAMPLE
        )
    host = str(entry.get("host", f"machine-{number}"))
    address = entry.get("address", "")
    if not isinstance(address, str) or ("address" in entry and not address.strip()):
        raise SettingsError(f"{where}, `address`", "a name or an address", f"{address!r}", _EXAMPLE)
    if address:
        devices = tuple(_remote_device(where, host, index) for index in entry["devices"])
    else:
        devices = tuple(_device(where, index) for index in entry["devices"])
    return Machine(host, devices, servers, address.strip())


def _remote_device(where: str, host: str, index: Any) -> RemoteDevice:
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        fix = "Number the machine's devices from 0."
        raise SettingsError(f"{where}, `devices`", "numbers of at least 0", f"{index!r}", fix)
    return RemoteDevice(host, index)


def _device(where: str, index: Any) -> Device:
    local = jax.local_devices()
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(local):
        raise SettingsError(
            f"{where}, `devices`",
            f"numbers from 0 to {len(local) - 1}, this process's devices",
            f"{index!r}",
            "Name devices that are here; JAX_NUM_CPU_DEVICES makes more of them on a CPU.",
        )
    return local[index]


def _once(kind: str, names: list[Any]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(
                "resources", f"each {kind} once", f"`{name}` twice", f"Name each {kind} once."
            )
