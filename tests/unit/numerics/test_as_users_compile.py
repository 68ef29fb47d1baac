"""What guards numbers runs with the flags of XLA that users have, in a process of its own: XLA reads its flags once, and those of an ordinary run are quick ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.effort import QUICK, QUICK_FLAGS

TESTS = Path(__file__).parents[2]
FILES = "unit/numerics/test_check.py", "unit/numerics/test_guard.py"
"""The check and the guard: both are marked `full`."""


@pytest.mark.slow
@pytest.mark.skipif(not QUICK, reason="this run has users' flags itself")
def test_numbers_are_guarded_where_kernels_are_compiled_as_users_compile_them():
    users = [flag for flag in os.environ["XLA_FLAGS"].split() if flag.removeprefix("--") not in QUICK_FLAGS]
    environment = {**os.environ, "AMPJAX_TESTS": "users", "XLA_FLAGS": " ".join(users)}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_XDIST")}
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", *FILES]
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
