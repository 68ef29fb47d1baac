"""Other functions in place of JAX's own while a batch's model is traced, where JAX asks for a length and each example has its own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.core import Tracer

from ampjax.frontend.jax_functions import loops_by_length, sequence_forms

_FORMS: Mapping[Any, Mapping[str, Callable[..., Any]]] = {
    jax.lax: {
        "associative_scan": loops_by_length.associative_scan,
        "scan": loops_by_length.scan,
        "fori_loop": loops_by_length.fori_loop,
    },
    jnp: {
        "convolve": sequence_forms.convolve,
        "correlate": sequence_forms.correlate,
        "take": sequence_forms.take,
        "pad": sequence_forms.pad,
        "linspace": sequence_forms.linspace,
        "diagonal": sequence_forms.diagonal,
        "diag": sequence_forms.diag,
        "insert": sequence_forms.insert,
        "delete": sequence_forms.delete,
    },
    Tracer: {"__getitem__": sequence_forms.indexed},
}
"""By module or class and by name, what stands for a function of JAX; it gives `NotImplemented` for what only JAX's own can do."""

_IS_TRACED: ContextVar[bool] = ContextVar("whole_sequences_are_traced", default=False)
_LOCK = threading.Lock()
_ORIGINALS: dict[tuple[Any, str], Any] = {}
_N_TRACES = [0]


@contextmanager
def taking_whole_sequences() -> Iterator[None]:
    """Lets functions of JAX take whole sequences inside, in calls by the module: `jnp.pad`, `jax.lax.scan`."""
    token = _IS_TRACED.set(True)
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _IS_TRACED.reset(token)


def _count(change: int) -> None:
    """Counts models that are being traced; JAX's functions are replaced while there is one."""
    with _LOCK:
        before = _N_TRACES[0]
        _N_TRACES[0] = before + change
        if not before:
            _replace()
        elif not _N_TRACES[0]:
            _restore()


def _replace() -> None:
    for owner, forms in _FORMS.items():
        for name, form in forms.items():
            original = getattr(owner, name)
            _ORIGINALS[owner, name] = original
            setattr(owner, name, _taking(original, form))


def _restore() -> None:
    for (owner, name), original in _ORIGINALS.items():
        setattr(owner, name, original)
    _ORIGINALS.clear()


def _taking(
    original: Callable[..., Any],
    form: Callable[..., Any],
) -> Callable[..., Any]:
    """A function of JAX that calls another one for whole sequences."""

    @functools.wraps(original)
    def take_form(*args: Any, **kwargs: Any) -> Any:
        if not _IS_TRACED.get() or not _has_length([*args, *kwargs.values()]):
            return original(*args, **kwargs)
        result = form(*args, **kwargs)
        return original(*args, **kwargs) if result is NotImplemented else result

    return take_form


def _has_length(arguments: Any) -> bool:
    """Whether a length that is each example's own is among some arguments, or in an array's shape."""
    for leaf in jax.tree.leaves(arguments):
        for size in (leaf, *getattr(leaf, "shape", ())):
            if export.is_symbolic_dim(size):
                return True
    return False
