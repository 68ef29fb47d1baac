"""Nested plain data as messages, limited to forms that two ends have agreed on. No class is ever looked up by a name that came in."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ampjax.cluster.wire.message import DTYPES, Message
from ampjax.errors import WireError

_PLAIN = frozenset((bool, int, float, str))


class Form(NamedTuple):
    """The form in which objects of one class travel.

    Args:
      kind: The class.
      parts: Gives an object's parts.
      make: Makes the object from its parts.
    """

    kind: type
    parts: Callable[[Any], Sequence[Any]]
    make: Callable[..., Any]


def by_fields(kind: type, *names: str) -> Form:
    """The form of a class whose objects are made from some of their attributes.

    Args:
      kind: The class.
      *names: The attributes, in the order in which the class takes them.
    """
    return Form(
        kind,
        lambda value: [getattr(value, name) for name in names],
        kind,
    )


class TreeForms:
    """Data to messages and back: None, booleans, numbers, text, bytes, paths, dtypes, arrays, lists, tuples, mappings, and agreed classes.

    Args:
      *forms: How objects of these classes travel.

    >>> trees = TreeForms()
    >>> message = trees.pack("pull", {3: (np.arange(2), None)})
    >>> trees.unpack(message)
    {3: (array([0, 1]), None)}
    """

    def __init__(self, *forms: Form):
        self._forms = {form.kind.__name__: form for form in forms}
        self._form_of = {form.kind: form for form in forms}

    def pack(self, kind: str, value: Any) -> Message:
        """Data as a message.

        Returns:
          The message: the data's structure as its text, and all arrays.

        Raises:
          WireError: If there is something else in the data.
        """
        arrays: list[np.ndarray] = []
        return Message(
            kind,
            (),
            json.dumps(self._down(value, arrays)),
            tuple(arrays),
        )

    def _down(
        self,
        value: Any,
        arrays: list[np.ndarray],
    ) -> Any:
        if value is None or type(value) in _PLAIN:
            return value
        if (form := self._form_of.get(type(value))) is not None:
            return [
                "o",
                form.kind.__name__,
                *[self._down(part, arrays) for part in form.parts(value)],
            ]
        match value:
            case list() | tuple():
                return [
                    "l" if isinstance(value, list) else "t",
                    *[self._down(item, arrays) for item in value],
                ]
            case dict():
                return [
                    "d",
                    *[[self._down(k, arrays), self._down(v, arrays)] for k, v in value.items()],
                ]
            case np.dtype():
                return ["y", value.name]
            case bytes():
                return _array("b", np.frombuffer(value, np.uint8), arrays)
            case Path():
                return ["p", str(value)]
            case np.ndarray():
                return _array("a", value, arrays)
            case np.generic():
                return _array("s", np.asarray(value), arrays)
            case _ if hasattr(value, "__array__"):
                return _array("a", np.asarray(value), arrays)
        fix = "Agree on a form for it, or send plain data."
        raise WireError(
            "a message", "plain data and arrays", f"{type(value).__name__} {value!r}", fix
        )

    def unpack(self, message: Message) -> Any:
        """The data that `pack` made a message of.

        Returns:
          The data; arrays in it are the message's.

        Raises:
          WireError: If the message is none of those.
        """
        try:
            return self._up(json.loads(message.text), message.arrays)
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            got = f"{message!r}: {type(error).__name__}: {error}"
            raise WireError(
                "a message", "data in an agreed form", got, "Let both ends run the same version."
            ) from error

    def _up(
        self,
        node: Any,
        arrays: Sequence[np.ndarray],
    ) -> Any:
        if not isinstance(node, list):
            return node
        letter, *rest = node
        match letter:
            case "o":
                return self._forms[rest[0]].make(*[self._up(part, arrays) for part in rest[1:]])
            case "l" | "t":
                items = [self._up(item, arrays) for item in rest]
                return items if letter == "l" else tuple(items)
            case "d":
                return {self._up(key, arrays): self._up(value, arrays) for key, value in rest}
            case "y":
                return DTYPES[rest[0]]
            case "p":
                return Path(rest[0])
            case "a":
                return arrays[rest[0]]
            case "b":
                return arrays[rest[0]].tobytes()
            case "s":
                return arrays[rest[0]][()]
        raise ValueError(f"unknown letter {letter!r}")


def _array(
    letter: str,
    item: np.ndarray,
    arrays: list[np.ndarray],
) -> list[Any]:
    arrays.append(item)
    return [letter, len(arrays) - 1]
