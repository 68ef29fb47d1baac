"""How much a run does: an ordinary one is quick; `AMPJAX_TESTS=full` tries more cases, and compiles kernels as those of users are compiled.

`AMPJAX_TESTS=users` compiles like that, too, but tries no more cases than a quick run.
"""

import os
import subprocess
import sys

EFFORT = os.environ.get("AMPJAX_TESTS", "quick")
if EFFORT not in ("quick", "users", "full"):
    raise ValueError(f"AMPJAX_TESTS: expected quick, users or full, got {EFFORT!r}")
QUICK, FULL = EFFORT == "quick", EFFORT == "full"

QUICK_FLAGS = "xla_backend_optimization_level=1", "xla_cpu_use_fusion_emitters=false"
"""They take a third to a half from the time that XLA takes to compile a kernel; most kernels of tests run a few times only. Level 0 would take a sixth less, but there rows are other bits in dispatches of other sizes."""


def examples(n: int) -> int:
    """How many examples Hypothesis tries where a full run tries `n`: a third of them, at least four."""
    return n if FULL else min(n, max(4, n // 3))


def compile_quickly() -> None:
    """Adds to `XLA_FLAGS` what makes compiling quick: before JAX's backend starts. A run's other processes inherit it."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    wanted = [f"--{flag}" for flag in QUICK_FLAGS if f"--{flag}" not in flags]
    if wanted:
        known = [flag for flag in wanted if _is_known(flag)]
        os.environ["XLA_FLAGS"] = " ".join([*flags, *known])


def _is_known(flag: str) -> bool:
    """Whether this XLA has a flag. It ends the process over one that it does not know, so another process tries."""
    environment = os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
