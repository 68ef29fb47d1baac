"""What a run gets: its environment, which tests it leaves out, and what each of its processes is set up with."""

import atexit
import compileall
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.effort import AS_USERS, NIGHTLY, compile_quickly

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

# Tests start many processes: where Python writes no bytecode, each of them would compile the modules again.
if sys.dont_write_bytecode and "PYTEST_XDIST_WORKER" not in os.environ:
    for folder in ("ampjax", "experiments"):
        compileall.compile_dir(Path(__file__).parents[1] / folder, quiet=2)

# A program that a shell started in the background ignores Ctrl-C; the tests of Ctrl-C, and the programs that they start, must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Sets up a process that runs tests. One that only hands them out needs neither JAX nor ampjax, so the others can start early."""
    hands_out = (
        config.getoption("dist", "no") != "no"
        and config.getoption("tx", None)
        and not config.option.collectonly
    )
    if hands_out:
        compile_loops()
    if not AS_USERS:
        compile_quickly()
    if not hands_out:
        config.pluginmanager.import_plugin("support.process_setup")


def compile_loops():
    """Lets a process compile the scheduler's loops, a quarter of a minute, while test processes start and find their tests: each would do it by itself."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [
                str(Path(__file__).parent),
                *sys.path,
            ]
        )
    }
    compiling = subprocess.Popen([sys.executable, "-m", "support.compile_loops"], env=environment)
    atexit.register(compiling.kill)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves tests marked `nightly` to a nightly run, and `users` to runs that compile as users do. Long and nightly tests are slow, too."""
    for item in items:
        if item.get_closest_marker("long") or item.get_closest_marker("nightly"):
            item.add_marker("slow")
    if not AS_USERS:
        leave_further_cases(items)
    kept = []
    left_out = []
    for item in items:
        for_users = item.get_closest_marker("users") and not AS_USERS
        for_nights = item.get_closest_marker("nightly") and not NIGHTLY
        if for_users or for_nights:
            left_out.append(item)
        else:
            kept.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def leave_further_cases(items):
    """Marks all but the first case of a test that is marked `first_case` as `nightly`."""
    begun = set()
    for item in items:
        if item.get_closest_marker("first_case") and not item.get_closest_marker("users"):
            test = item.nodeid.partition("[")[0]
            if test in begun:
                item.add_marker("nightly")
                item.add_marker("slow")
            begun.add(test)
