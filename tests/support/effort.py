"""The effort of a run: `AMPJAX_TESTS=users` compiles kernels with users' flags, and adds tests about numbers; `nightly` also runs all other tests, with all cases."""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

EFFORT = os.environ.get("AMPJAX_TESTS", "ordinary")
if EFFORT not in ("ordinary", "users", "nightly"):
    raise ValueError(f"AMPJAX_TESTS: expected ordinary, users or nightly, got {EFFORT!r}")
NIGHTLY = EFFORT == "nightly"
AS_USERS = EFFORT in ("users", "nightly")
"""Whether kernels are compiled with users' flags, and what is marked `users` runs."""

QUICK_FLAGS = (
    "xla_backend_optimization_level=0",
    "xla_cpu_use_fusion_emitters=false",
    "xla_cpu_parallel_codegen_split_count=1",
)
"""They take four fifths from the time that XLA takes to compile a kernel; most kernels of tests run a few times only. The last one keeps a kernel's functions in one module of LLVM.

At level 0 the rows of a matrix product are other bits in dispatches of other sizes: what compares such bits is marked `users`."""


def examples(n: int) -> int:
    """The number of examples that Hypothesis tries where a nightly run tries `n`: an eighth, at least 4 and at most 12."""
    if NIGHTLY:
        return n
    return min(n, max(4, n // 8), 12)


def left_to_nightly(values: Iterable[Any], *ordinary: Any) -> list[Any]:
    """Parameters of a test that are left to nightly runs: all but the ordinary ones."""
    marked = []
    for value in values:
        if not any(value is each for each in ordinary):
            marked.append(pytest.param(value, marks=pytest.mark.nightly))
    return marked


def compile_quickly() -> None:
    """Adds to `XLA_FLAGS` what makes compiling quick: before JAX's backend starts. A run's other processes inherit it."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    wanted = [f"--{flag}" for flag in QUICK_FLAGS if f"--{flag}" not in flags]
    if wanted:
        if _are_known(wanted):
            known = wanted
        else:
            known = [flag for flag in wanted if _are_known([flag])]
        os.environ["XLA_FLAGS"] = " ".join([*flags, *known])


def _are_known(flags: list[str]) -> bool:
    """Whether this XLA has all these flags. It ends the process over one that it does not know, so another process tries."""
    environment = os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return (
        subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
    )
