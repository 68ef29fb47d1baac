"""How what a model tells beside its result becomes steps, and functions with names."""

from __future__ import annotations

from collections.abc import Sequence

from ampjax.frontend.batches.row_lowering import Body, Value
from ampjax.frontend.combinators.tracing import Call


def node(body: Body, call: Call, operands: Sequence[Value]) -> list[Value]:
    """A function with a name: the name is one of a graph's node, so it changes nothing here."""
    return body.run(call.functions[0], operands)


def told(body: Body, call: Call, operands: Sequence[Value]) -> list[Value]:
    """A metric or an output: the function's result does not depend on it."""
    return []
