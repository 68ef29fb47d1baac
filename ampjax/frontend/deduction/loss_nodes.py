"""The losses of a graph: one for each region in which there are summands of the model's loss, or metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.deduction.index_spaces import Region
from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.deduction.node_bodies import ForLoss, NodeNote
from ampjax.frontend.deduction.values import Computed, Constant, LossTerm, OfParams, Value

_NUMBER = jax.ShapeDtypeStruct((), np.dtype(np.float32))


def note_losses(low: Lowering) -> None:
    """Notes the losses.

    Args:
      low: The lowering, with all summands and metrics.
    """
    by_region: dict[Region, list[LossTerm]] = {}
    for term in low.terms:
        value = term.value
        region = value.flow.region if isinstance(value, Computed) else term.region
        by_region.setdefault(region, []).append(term)
    for region, terms in by_region.items():
        _note(low, region, terms)


def _note(low: Lowering, region: Region, terms: Sequence[LossTerm]) -> None:
    reads = _Reads()
    number = reads.number
    values = [_plain(low, term.value, region, term.line) for term in terms]
    summands = [
        (number(value), [number(weight) for weight in term.weights])
        for value, term in zip(values, terms, strict=True)
        if term.metric is None
    ]
    metrics = [
        (term.metric, number(value), number(term.count or Constant(np.float32(1.0))))
        for value, term in zip(values, terms, strict=True)
        if term.metric is not None
    ]
    names = [name for name, *_ in metrics]

    def function(_: Any, *inputs: Any) -> list[Any]:
        given = reads.evaluate(inputs)
        total = jnp.zeros((), jnp.float32)
        for value, weights in summands:
            part = given[value]
            for weight in weights:
                part = part * given[weight]
            total = total + part
        told = [jnp.asarray(given[i], total.dtype) for _, value, count in metrics for i in (value, count)]
        return [total, *told]

    n = 1 + 2 * len(metrics)
    note = NodeNote("loss", region, reads.inputs, reads.types, function, [_NUMBER] * n, [range(n)], terms[0].line)
    low.draft.loss(note, [(name, 1 + 2 * i, 2 + 2 * i) for i, name in enumerate(names)])


class _Reads:
    """What a loss reads, by number: its inputs, and what it computes of them itself.

    Attributes:
      inputs: The inputs.
      types: Their types.
    """

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.types: list[Any] = []
        self._notes: list[tuple[NodeNote, list[int]]] = []
        self._results: list[tuple[int, int]] = []

    def number(self, value: Value, kind: Any = _NUMBER) -> int:
        """The number of a value, which it gets at first use: from 0 for inputs, below 0 for what the loss computes.

        Args:
          value: The value.
          kind: Its type.
        """
        if isinstance(value, ForLoss):
            return self._computed(value)
        for i, (known, other) in enumerate(zip(self.inputs, self.types, strict=True)):
            if (known is value and other.dtype == kind.dtype) or _is_same_part(known, value):
                return i
        self.inputs.append(value)
        self.types.append(value.flow.types[value.part] if isinstance(value, Computed) else kind)
        return len(self.inputs) - 1

    def evaluate(self, inputs: Sequence[Any]) -> dict[int, Any]:
        """All values by number.

        Args:
          inputs: Values of the inputs.
        """
        results = [note.function(None, *(inputs[i] for i in read)) for note, read in self._notes]
        computed = {-1 - n: results[note][i] for n, (note, i) in enumerate(self._results)}
        return dict(enumerate(inputs)) | computed

    def _computed(self, value: ForLoss) -> int:
        notes = [note for note, _ in self._notes]
        if value.note not in notes:
            note = value.note
            read = [self.number(each, kind) for each, kind in zip(note.inputs, note.types, strict=True)]
            self._notes.append((note, read))
            notes.append(note)
        key = (notes.index(value.note), value.number)
        if key not in self._results:
            self._results.append(key)
        return -1 - self._results.index(key)


def _plain(low: Lowering, value: Value, region: Region, line: str) -> Value:
    """A value that a node without parameters can read."""
    if not isinstance(value, OfParams):
        return value
    return low.packed([value], [_NUMBER], region, "loss", line)[0]


def _is_same_part(one: Value, other: Value) -> bool:
    return (
        isinstance(one, Computed) and isinstance(other, Computed) and (one.flow, one.part) == (other.flow, other.part)
    )
