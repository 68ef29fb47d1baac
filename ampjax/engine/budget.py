"""How much memory a device has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

UNKNOWN = 4 << 30
"""Bytes that a device is taken to have where nobody tells."""


def payload_budget(devices: Sequence[Any]) -> int:
    """Bytes that payloads may take on each of some devices, unless the user says otherwise: half of what the smallest has.

    CPU devices share the host's memory among them.

    Args:
      devices: JAX devices, at least one.
    """
    return min(_bytes_of(device, devices) for device in devices) // 2


def _bytes_of(device: Any, devices: Sequence[Any]) -> int:
    if device.platform == "cpu":
        return _host_bytes() // sum(other.platform == "cpu" for other in devices)
    return int((device.memory_stats() or {}).get("bytes_limit", UNKNOWN))


def _host_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system has them
        return UNKNOWN
