"""What every test gets: four CPU devices, the Hypothesis profiles, and room for compiled kernels."""

import os
import signal
from pathlib import Path

# Read by JAX when it is imported, so it has to be set before anything of ours is.
os.environ["JAX_NUM_CPU_DEVICES"] = "4"


import jax
import pytest
from hypothesis import HealthCheck, settings

import ampjax  # noqa: F401 (before any test makes an array: it sets a flag that JAX reads when it starts)

# Deadlines would turn a compilation, or a busy machine, into a failure. The blob is the line that replays a failure.
settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A program that a shell started in the background ignores Ctrl-C; the tests of Ctrl-C, and the programs that they start, must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MAPS = Path("/proc/self/maps")


@pytest.fixture(scope="module", autouse=True)
def room_for_kernels():
    """Forgets compiled kernels before there are too many: each takes about three memory maps, of which Linux allows a process 65,530.

    Beyond that XLA's compiler crashes.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
