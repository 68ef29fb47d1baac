"""Functions of the user's that travel to hosts, once, at start-up and from the user's own program; errors name the part that can't travel."""

from __future__ import annotations

import functools
import inspect
import io
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, cast

import cloudpickle

from ampjax.errors import SettingsError

_DEPTH = 4
"""How far inside what can't travel is looked for."""

_STAND_INS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[Any] = ChainMap(
        _STAND_INS, cast(Any, cloudpickle.Pickler.dispatch_table)
    )


def travels_as(
    kind: type,
    stand_in: Callable[[Any], Any],
) -> None:
    """Lets a stand-in travel in place of all objects of a class, to hosts only: other pickles and copies stay as before.

    Args:
      kind: The class.
      stand_in: Gives what travels for an object; that can be pickled.
    """
    _STAND_INS[kind] = lambda value: stand_in(value).__reduce__()


def _dumps(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def pack_program(value: Any, what: str) -> bytes:
    """A function, or anything, as bytes for a host.

    Returns:
      What `cloudpickle.loads` reads at a host. It is never read from a socket or a file.

    Raises:
      SettingsError: If something in it can't travel; its name is in the error.
    """
    try:
        return _dumps(value)
    except Exception as error:
        name = _culprit(value, _DEPTH)
        got = (
            f"{name}, {type(error).__name__}: {error}"
            if name
            else f"{type(error).__name__}: {error}"
        )
        fix = "Make it inside the function, on the host, or pass plain data from which it can be made."
        raise SettingsError(
            what, "something that can travel to another process", got, fix
        ) from error


def _culprit(value: Any, depth: int) -> str:
    """The innermost part, by its name, that can't travel; empty for the whole."""
    for name, part in _parts(value) if depth else ():
        if not _travels(part):
            inner = _culprit(part, depth - 1)
            return f"`{name}`, a {type(part).__name__}" + (f", in it {inner}" if inner else "")
    return ""


def _travels(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from [
            ("func", value.func),
            *((f"argument {i}", arg) for i, arg in enumerate(value.args)),
        ]
        yield from value.keywords.items()
    elif inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        yield from [*variables.nonlocals.items(), *variables.globals.items()]
        yield from ((f"default {i}", part) for i, part in enumerate(value.__defaults__ or ()))
    elif inspect.ismethod(value):
        yield "self", value.__self__
    elif isinstance(value, Mapping):
        yield from ((str(name), part) for name, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"item {i}", part) for i, part in enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type | Callable):
        yield from vars(value).items()
