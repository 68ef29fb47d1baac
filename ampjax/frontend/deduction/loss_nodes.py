"""The losses of a graph: one for each region in which there are summands of the model's loss, or metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Region
from ampjax.frontend.draft.node_bodies import LossPart, NodeNote
from ampjax.frontend.draft.values import Computed, Constant, LossTerm, OfParams, Value

_Source = tuple[int | None, int]
"""Where a number comes from: an input of the node, or of one of its computations a result."""


def note_losses(low: Lowering, dtype: Any) -> None:
    """Notes the losses.

    Args:
      low: The lowering, with all summands and metrics.
      dtype: The loss's dtype.
    """
    number = jax.ShapeDtypeStruct((), np.dtype(dtype))
    by_region: dict[Region, list[LossTerm]] = {}
    for term in low.terms:
        value = term.value
        region = value.flow.region if isinstance(value, Computed) else term.region
        by_region.setdefault(region, []).append(term)
    for region, terms in by_region.items():
        _note(low, region, terms, number)


def _note(
    low: Lowering,
    region: Region,
    terms: Sequence[LossTerm],
    kind: Any,
) -> None:
    values = []
    for term in terms:
        values.append(_make_plain(low, term.value, region, kind, term.line))
    inputs = _LossInputs(kind)
    summands = []
    for value, term in zip(values, terms, strict=True):
        if term.metric is None:
            source = inputs.source(value)
            summands.append((source, [inputs.source(weight) for weight in term.weights]))
    metrics: dict[str, list[tuple[_Source, _Source]]] = {}
    for value, term in zip(values, terms, strict=True):
        if term.metric is not None:
            count = term.count or Constant(np.float32(1.0))
            pair = (inputs.source(value), inputs.source(count))
            metrics.setdefault(term.metric, []).append(pair)
    n = 1 + 2 * len(metrics)
    note = NodeNote(
        "loss",
        region,
        inputs.values,
        inputs.types,
        _LossFunction(kind.dtype, inputs.parts, summands, metrics),
        [kind] * n,
        [range(n)],
        terms[0].line,
    )
    payload_notes.loss(
        low.draft,
        note,
        [(name, 1 + 2 * i, 2 + 2 * i) for i, name in enumerate(metrics)],
    )


class _LossInputs:
    """The inputs of a loss's node, and the computations that were left to losses.

    Args:
      kind: The type of an input that no node computes.
    """

    def __init__(self, kind: Any):
        self.kind = kind
        self.values: list[Value] = []
        self.types: list[Any] = []
        self.parts: list[tuple[NodeNote, list[int]]] = []

    def source(self, value: Any) -> _Source:
        """Finds the source of a number: an input of the node, or a result of the loss's own computation."""
        if not isinstance(value, LossPart):
            return None, self._number(value, self.kind)
        note = value.note
        for i, (known, _) in enumerate(self.parts):
            if known is note:
                return i, value.result
        own = []
        for each, kind in zip(note.inputs, note.types, strict=True):
            own.append(self._number(each, kind))
        self.parts.append((note, own))
        return len(self.parts) - 1, value.result

    def _number(self, value: Value, kind: Any) -> int:
        for i, known in enumerate(self.values):
            if known is value or _is_same_part(known, value):
                return i
        self.values.append(value)
        self.types.append(value.flow.types[value.part] if isinstance(value, Computed) else kind)
        return len(self.values) - 1


@dataclass(frozen=True, eq=False)
class _LossFunction:
    """The function of a loss's node: the sum of the summands, then the sum and the count of each metric.

    Args:
      dtype: The loss's dtype.
      parts: The computations that were left to losses, with the numbers of their inputs.
      summands: Each summand with its weights.
      metrics: By name, the value and the count at each place that tells the metric.
    """

    dtype: Any
    parts: Sequence[tuple[NodeNote, list[int]]]
    summands: Sequence[tuple[_Source, list[_Source]]]
    metrics: Mapping[str, list[tuple[_Source, _Source]]]

    def __call__(self, _: Any, *inputs: Any) -> list[Any]:
        computed = []
        for note, own in self.parts:
            computed.append(note.function(None, *(inputs[i] for i in own)))

        def get(source: _Source) -> Any:
            part, number = source
            return inputs[number] if part is None else computed[part][number]

        total = jnp.zeros((), self.dtype)
        for value, weights in self.summands:
            summand = get(value)
            for weight in weights:
                summand = summand * get(weight)
            total = total + summand
        results = [total]
        for pairs in self.metrics.values():
            sums = jnp.zeros(2, self.dtype)
            # A metric that is told at several places is the mean over all of them.
            for pair in pairs:
                sums += jnp.stack([jnp.asarray(get(source), self.dtype) for source in pair])
            results.extend(sums)
        return results


def _make_plain(
    low: Lowering,
    value: Value,
    region: Region,
    kind: Any,
    line: str,
) -> Value:
    """A value that a node without parameters can read."""
    if not isinstance(value, OfParams):
        return value
    return low.pack_values([value], [kind], region, "loss", line)[0]


def _is_same_part(one: Value, other: Value) -> bool:
    return (
        isinstance(one, Computed)
        and isinstance(other, Computed)
        and (one.flow, one.part) == (other.flow, other.part)
    )
