"""What every test gets: four CPU devices, the Hypothesis profiles, how kernels are compiled, room for them, and those of the other test processes."""

import atexit
import compileall
import ctypes
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# Read by JAX when it is imported, so it has to be set before anything of ours is.
os.environ["JAX_NUM_CPU_DEVICES"] = "4"

# Test processes and the hosts that they start share the processor; tests of hosts that hang set less.
os.environ.setdefault("AMPJAX_HOST_SILENCE_S", "30")

# A run's processes share what they compile. The first one makes the folder, its children inherit the variables.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="ampjax-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

# Tests start many processes: where Python writes no bytecode, each of them would compile the package's modules again.
if sys.dont_write_bytecode and "PYTEST_XDIST_WORKER" not in os.environ:
    compileall.compile_dir(Path(__file__).parents[1] / "ampjax", quiet=2)

import jax
import pytest
from hypothesis import HealthCheck, settings

# Importing ampjax sets a flag that JAX reads when it starts, so it comes before any test makes an array.
from support.effort import AS_USERS, WITH_VARIANTS, compile_quickly

from ampjax.engine.kernels import shared_kernels

if not AS_USERS:
    compile_quickly()

# Deadlines would turn a compilation, or a busy machine, into a failure. The blob is the line that replays a failure.
settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A program that a shell started in the background ignores Ctrl-C; the tests of Ctrl-C, and the programs that they start, must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests go to and fro between the same graphs, whose trainers end with each of them. Those that have not been used for long are forgotten,
# before `room_for_kernels` would have to forget everything.
shared_kernels.KERNELS.most_idle = 800

# JAX makes many objects that stay: looking for unreachable ones at Python's usual pace takes a twentieth of a run.
gc.set_threshold(50_000, 20, 50)

MAPS, MEMORY = Path("/proc/self/maps"), Path("/proc/self/statm")
GIGABYTE = 1 << 30

LAWS = Path(__file__).parent / "property"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes():
    """Lets a process compile the scheduler's loops, a quarter of a minute, while test processes start and find their tests: each would do it by itself."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    compiling = subprocess.Popen([sys.executable, "-m", "support.compile_loops"], env=environment)
    atexit.register(compiling.kill)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves what is marked `full` to a full run, and `users` to one that compiles as users do. What is long or full is slow, too; what draws examples is a law."""
    for item in items:
        if item.get_closest_marker("long") or item.get_closest_marker("full"):
            item.add_marker("slow")
        if item.path.is_relative_to(LAWS) or getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("law")
    never = [item.nodeid for item in items if item.get_closest_marker("full") and item.get_closest_marker("users")]
    if never:
        raise pytest.UsageError(f"marked both `full` and `users`, so no run would have them: {', '.join(never)}")
    others = {name for name, mine in (("full", WITH_VARIANTS), ("users", AS_USERS)) if not mine}
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in others)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not any(item.get_closest_marker(name) for name in others)]


def pytest_collection_finish():
    """Leaves what has been imported and found out of garbage collections: looking through all of it took a second each time."""
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
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if MEMORY.exists() else None  # only glibc has it
        self.room = 2 * GIGABYTE

    def pytest_runtest_teardown(self):
        if self.trim and self.held() > self.room:
            self.trim(0)
            self.room = max(2 * GIGABYTE, self.held() + GIGABYTE)

    def held(self) -> int:
        """The bytes of memory that this process holds."""
        return int(MEMORY.read_text().split()[1]) * resource.getpagesize()


def pytest_configure(config):
    config.pluginmanager.register(FreeMemory())
