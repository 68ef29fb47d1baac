"""What payloads may take on a device."""

from dataclasses import dataclass

import jax
import pytest

import ampjax as amp
from ampjax.engine import budget
from ampjax.engine.budget import payload_budget
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
        ([Device("tpu")], budget.UNKNOWN // 2),
    ],
)
def test_the_budget_is_half_of_what_the_smallest_device_has(devices, wanted, monkeypatch):
    monkeypatch.setattr(budget, "_host_bytes", lambda: 1000)
    assert payload_budget(devices) == wanted


def test_this_machine_has_some():
    assert payload_budget(jax.devices()) >= 1 << 20


def test_a_limit_of_none_at_all_is_refused():
    with pytest.raises(SettingsError, match="memory_limit"):
        amp.Settings(memory_limit=0)
