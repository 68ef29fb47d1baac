"""What payloads may take on a device."""

from dataclasses import dataclass

import jax
import pytest

import ampjax as amp
from ampjax.devices import memory_budget
from ampjax.devices.memory_budget import payload_budget
from ampjax.errors import SettingsError


@dataclass
class Device:
    platform: str
    limit: int | None = None

    def memory_stats(self):
        return None if self.limit is None else {"bytes_limit": self.limit}


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ([Device("cpu")], 500),
        ([Device("cpu"), Device("cpu")], 250),
        ([Device("gpu", 80), Device("gpu", 60)], 30),
        ([Device("cpu"), Device("gpu", 4000)], 500),
        ([Device("tpu")], memory_budget.UNKNOWN // 2),
    ],
)
def test_the_budget_is_half_of_what_the_smallest_device_has(devices, wanted, monkeypatch):
    monkeypatch.setattr(memory_budget, "_host_bytes", lambda: 1000)
    assert payload_budget(devices) == wanted


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("1048576\n", 1 << 20),
        ("max\n", 1 << 30),
        ("9223372036854771712", 1 << 30),
        (None, 1 << 30),
    ],
)
def test_a_container_may_have_less_than_the_machine(said, wanted, tmp_path, monkeypatch):
    file = tmp_path / "memory.max"
    if said is not None:
        file.write_text(said)
    monkeypatch.setattr(memory_budget, "CONTAINER", (tmp_path / "none", file))
    monkeypatch.setattr(
        memory_budget.os,
        "sysconf",
        {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 1 << 18}.get,
    )
    assert payload_budget([Device("cpu")]) == wanted // 2


def test_this_machine_has_some():
    assert payload_budget(jax.devices()) >= 1 << 20


def test_a_limit_of_none_at_all_is_refused():
    with pytest.raises(SettingsError, match="memory_limit"):
        amp.Settings(memory_limit=0)
