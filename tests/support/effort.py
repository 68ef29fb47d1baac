"""How much a run does: an ordinary one is quick; `AMPJAX_TESTS=full` tries more cases, and compiles kernels as those of users are compiled.

`AMPJAX_TESTS=users` compiles like that, too, but tries no more cases than a quick run.
"""

import os

from ampjax.numerics.guard import _contains, _xla_libraries

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
    """Adds to `XLA_FLAGS` what makes compiling quick: before JAX's backend starts. XLA ends the process over a flag that it does not know."""
    libraries, flags = [*_xla_libraries()], os.environ.get("XLA_FLAGS", "").split()
    for flag in QUICK_FLAGS:
        name = flag.partition("=")[0]
        if f"--{flag}" not in flags and all(_contains(path, name.encode()) for path in libraries):
            flags.append(f"--{flag}")
    os.environ["XLA_FLAGS"] = " ".join(flags)
