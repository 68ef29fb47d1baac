"""Forms of loops: `scan`, which JAX differentiates alone, or `steps`, with trip counts known at run time and a backward pass of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_FORM: ContextVar[str | None] = ContextVar("loop_form", default=None)


def form_of_loops() -> str:
    """Chooses the form of loops lowered now: `steps` on CPUs, where steps are faster; `scan` on other devices, where steps would ask the host."""
    chosen = _FORM.get()
    if chosen is not None:
        return chosen
    return "steps" if jax.default_backend() == "cpu" else "scan"


@contextmanager
def loops_as(form: str) -> Iterator[None]:
    """Has loops that are lowered meanwhile take a form.

    Args:
      form: `scan` or `steps`.
    """
    token = _FORM.set(form)
    try:
        yield
    finally:
        _FORM.reset(token)
