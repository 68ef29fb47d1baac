"""The memory of devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

UNKNOWN = 4 << 30
"""Bytes that a device is assumed to have if it does not say."""

CONTAINER = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux says how many bytes a container may use: control groups of version 2, and of version 1."""


def payload_budget(devices: Sequence[Any]) -> int:
    """Computes the bytes for payloads on each of some devices by default: half of the smallest device's memory.

    CPU devices share the host's memory among them.

    Args:
      devices: JAX devices, at least one.

    Returns:
      Bytes.
    """
    return device_bytes(devices) // 2


def device_bytes(devices: Sequence[Any]) -> int:
    """Computes the bytes of the smallest of some devices; CPU devices share the host's memory.

    Args:
      devices: JAX devices, at least one.

    Returns:
      Bytes.
    """
    return min(_bytes_of(device, devices) for device in devices)


def _bytes_of(device: Any, devices: Sequence[Any]) -> int:
    if device.platform == "cpu":
        return _host_bytes() // sum(other.platform == "cpu" for other in devices)
    return int((device.memory_stats() or {}).get("bytes_limit", UNKNOWN))


def _host_bytes() -> int:
    """The memory of the machine, or of the container that the process is in."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system has them
        machine = UNKNOWN
    return min([machine, *(limit for file in CONTAINER if (limit := _number_in(file)))])


def _number_in(file: Path) -> int:
    """Reads the number in a file; 0 without such a file, or for one without a number (`max`)."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0
