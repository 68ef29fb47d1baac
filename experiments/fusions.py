"""Choices of XLA's fused kernels on CPUs, by name: each is a value of a flag that JAX reads when it starts, so each needs a process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from ampjax.numerics.guard import with_flag

Fusions = Literal["unguarded", "no-reduce", "none", "individual-dot"]
VALUES: Mapping[Fusions, str] = {
    # What is added is on by default, so this is jaxlib's own choice, in words that nobody takes for an absent flag.
    "unguarded": "+individual_dot",
    "no-reduce": "-reduce",
    "none": "",
    "individual-dot": "individual_dot",
}
"""The flag's value by the name of a choice of fusions."""


def flags_of(fusions: Fusions) -> str:
    """`XLA_FLAGS` as they are, with these fusions in place of others."""
    return with_flag(os.environ.get("XLA_FLAGS", ""), VALUES[fusions])
