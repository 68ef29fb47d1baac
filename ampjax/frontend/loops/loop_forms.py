"""Which form loops have: `scan`, which JAX differentiates by itself, or `steps`, whose trip counts are known at run time, with a backward pass of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_FORM: ContextVar[str | None] = ContextVar("loop_form", default=None)


def form_of_loops() -> str:
    """The form of loops that are lowered now: `steps` on CPUs, where it is the faster one, `scan` on other devices, which it would have ask the host."""
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
