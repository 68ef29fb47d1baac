"""The types of an instance's sequences, where a compiled model runs on concrete values: the types come from the model's spec."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

Find = Callable[[Any, Any], Any]
"""`find(instance, part)`: a part of an instance as the spec says; None if it is no part of it."""


@dataclass(frozen=True)
class _Compiled:
    """A model that has been compiled.

    Args:
      model: The model, as long as it is there.
      find: Finds parts of its instances.
    """

    model: weakref.ref[Any]
    find: Find


_KNOWN: dict[CodeType, list[_Compiled]] = {}


def remember(model: Callable[..., Any], find: Find) -> None:
    """Remembers the spec of a model."""
    code = getattr(_function_of(model), "__code__", None)
    if code is None:
        return

    def forget(gone: Any) -> None:
        _KNOWN[code] = [each for each in _KNOWN.get(code, ()) if each.model is not gone]
        if not _KNOWN[code]:
            del _KNOWN[code]

    with contextlib.suppress(TypeError):  # an object without weak references is not remembered
        entry = _Compiled(weakref.ref(model, forget), find)
        _KNOWN[code] = [
            *(each for each in _KNOWN.get(code, ()) if each.model() is not model),
            entry,
        ]


def as_specified(part: Any) -> Any:
    """Converts a part of the running compiled model's instance to the spec's types; None for any other value."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for known in reversed(_KNOWN.get(frame.f_code, ())):
            model = known.model()
            if model is None or not _is_running(model, frame):
                continue
            for instance in _arguments(frame):
                if (value := known.find(instance, part)) is not None:
                    return value
        frame = frame.f_back
    return None


def _function_of(model: Any) -> Any:
    """The Python function that runs when a model is called."""
    while isinstance(model, functools.partial):
        model = model.func
    if not hasattr(model, "__code__") and not hasattr(model, "__func__"):
        model = type(model).__call__
    return getattr(model, "__func__", model)


def _is_running(model: Any, frame: FrameType) -> bool:
    """Tells whether a frame runs the code of this model: with the same closure variables, or as a method of this object."""
    function = _function_of(model)
    values = frame.f_locals
    cells = zip(
        function.__code__.co_freevars,
        function.__closure__ or (),
        strict=True,
    )
    if any(values[name] is not cell.cell_contents for name, cell in cells if name in values):
        return False
    if isinstance(model, functools.partial) or hasattr(model, "__code__"):
        return True
    owner = getattr(model, "__self__", model)
    return any(value is owner for value in _arguments(frame))


def _arguments(frame: FrameType) -> Iterator[Any]:
    """Yields a function's arguments that its variables still hold; of `*args` and `**kwargs` each one."""
    code = frame.f_code
    values = frame.f_locals
    n = code.co_argcount + code.co_kwonlyargcount
    for name in code.co_varnames[:n]:
        yield values.get(name)
    has_others = bool(code.co_flags & inspect.CO_VARARGS)
    has_named = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    for name in code.co_varnames[n : n + has_others + has_named]:
        several = values.get(name)
        if isinstance(several, tuple):
            yield from several
        elif isinstance(several, dict):
            yield from several.values()
