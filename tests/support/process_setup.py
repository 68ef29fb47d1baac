"""What a process that runs tests gets: the Hypothesis profiles, and room for kernels, whose memory it gives back. A plugin of pytest."""

import ctypes
import gc
import os
import resource
import sys
import threading
from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

# Importing ampjax sets a flag that JAX reads when it starts, so it comes before any test makes an array.
from ampjax.engine.kernels import shared_kernels

# Deadlines would turn a compilation, or a busy machine, into a failure. The blob is the line that replays a failure.
settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Tests go to and fro between the same graphs, whose trainers end with each of them. Those that have not been used for long are forgotten,
# before `room_for_kernels` would have to forget everything.
shared_kernels.KERNELS.most_idle = 800

# JAX makes many objects that stay: looking for unreachable ones at Python's usual pace takes a twentieth of a run.
gc.set_threshold(50_000, 20, 50)

MAPS = Path("/proc/self/maps")
MEMORY = Path("/proc/self/statm")
GIGABYTE = 1 << 30


def pytest_collection_finish():
    """Leaves what has been imported and found out of garbage collections: looking through all of it took a second each time."""
    gc.freeze()


@pytest.fixture(scope="module")
def few_objects():
    """For modules whose tests collect garbage: leaves what earlier tests have left out of it, which took each of them a second again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def room_for_kernels():
    """Forgets compiled kernels before there are too many: each takes three memory maps, of which Linux allows a process 65,530, and most of a megabyte.

    Beyond that many maps XLA's compiler crashes; 12,000 of them are about three gigabytes.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 12_000:
        jax.clear_caches()


class FreeMemory:
    """Gives free memory back when a test has ended: XLA's compiler frees it in pieces all over the heap, and glibc keeps them, three of four gigabytes."""

    def __init__(self):
        # only glibc has it
        if MEMORY.exists():
            self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        else:
            self.trim = None
        self.room = 2 * GIGABYTE

    def pytest_runtest_teardown(self):
        if self.trim and self.held() > self.room:
            self.trim(0)
            self.room = max(2 * GIGABYTE, self.held() + GIGABYTE)

    def held(self) -> int:
        """The bytes of memory that this process holds."""
        return int(MEMORY.read_text().split()[1]) * resource.getpagesize()


def share_contexts(uses: int = 200) -> None:
    """Lets modules that are lowered one after the other share an MLIR context, of which JAX makes one for each: three of the fifty milliseconds that a small kernel takes to compile.

    A context keeps the names of all its modules, so it is replaced from time to time. JAX's function has no public name: where it is not, nothing is shared.

    Args:
      uses: Modules for each context.
    """
    lowering = sys.modules.get("jax._src.interpreters.mlir")
    make = getattr(lowering, "make_ir_context", None)
    if lowering is None or make is None:
        return
    mine = threading.local()

    def shared():
        if _is_lowering(lowering):
            return make()  # one operation is computed while another one is lowered: its module must not be in the other's
        if getattr(mine, "left", 0) == 0:
            mine.context = make()
            mine.left = uses
        mine.left -= 1
        return mine.context

    lowering.make_ir_context = shared


def _is_lowering(lowering) -> bool:
    """Whether a module is being lowered in this thread."""
    try:
        return lowering.ir.Context.current is not None
    except ValueError:
        return False


def pytest_configure(config):
    share_contexts()
    config.pluginmanager.register(FreeMemory())
