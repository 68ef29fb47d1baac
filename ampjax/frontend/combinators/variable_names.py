"""The user's name for a combinator's result: the name of the variable in the assignment."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from itertools import dropwhile
from types import FrameType
from typing import Any

_BETWEEN = ("CACHE", "EXTENDED_ARG", "NOP", "UNPACK_SEQUENCE", "UNPACK_EX", "POP_TOP")


def assigned_name(frame: FrameType) -> str:
    """Finds the first variable to which a running function assigns the result of its present call.

    It is read from the function's bytecode, which there is in notebooks and consoles as well.

    Args:
      frame: The function's frame, while the call runs.

    Returns:
      The name, of several the first that does not begin with `_`; empty if the result is used in an expression.
    """
    instructions = dis.get_instructions(frame.f_code)
    following = dropwhile(lambda each: each.offset <= frame.f_lasti, instructions)
    return next(
        (
            name
            for name in _stored_names(following)
            if name.isidentifier() and not name.startswith("_")
        ),
        "",
    )


def _stored_names(instructions: Iterator[Any]) -> Iterator[str]:
    """Yields the names of variables, as long as instructions do nothing but store values."""
    for each in instructions:
        if each.opname.startswith("STORE_FAST") and "LOAD" not in each.opname:
            yield from each.argval if isinstance(each.argval, tuple) else (each.argval,)
        elif each.opname == "STORE_FAST_LOAD_FAST":
            yield each.argval[0]
            return
        elif each.opname in ("STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"):
            yield each.argval
        elif each.opname not in _BETWEEN:
            return
