"""What guards numbers runs with the flags of XLA that users have, in a process of its own: XLA reads its flags once, and those of an ordinary run are quick ones."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.effort import AS_USERS, users_environment

TESTS = Path(__file__).parents[2]
FILES = "unit/numerics/test_check.py", "unit/numerics/test_guard.py"
"""The check and the guard: both are marked `users`. What is slow in them is left to such a run of its own, which `.ci/run` makes."""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(AS_USERS, reason="this run has users' flags itself")
def test_numbers_are_guarded_where_kernels_are_compiled_as_users_compile_them():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "-m",
        "not slow",
        *FILES,
    ]
    done = subprocess.run(
        command, cwd=TESTS, env=users_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
