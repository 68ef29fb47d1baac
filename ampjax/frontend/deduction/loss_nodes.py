"""The losses of a graph: one for each region in which there are summands of the model's loss, or metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Region
from ampjax.frontend.draft.node_bodies import LossPart, NodeNote
from ampjax.frontend.draft.values import Computed, Constant, LossTerm, OfParams, Value


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
    inputs: list[Value] = []
    types: list[Any] = []
    parts: list[tuple[NodeNote, list[int]]] = []

    def number(value: Value, kind: Any) -> int:
        for i, known in enumerate(inputs):
            if known is value or _is_same_part(known, value):
                return i
        inputs.append(value)
        types.append(value.flow.types[value.part] if isinstance(value, Computed) else kind)
        return len(inputs) - 1

    def source(value: Any) -> _Source:
        """Finds the source of a number: an input of the node, or a result of the loss's own computation."""
        if not isinstance(value, LossPart):
            return None, number(value, kind)
        if all(value.note is not note for note, _ in parts):
            note = value.note
            parts.append(
                (
                    note,
                    [number(x, one) for x, one in zip(note.inputs, note.types, strict=True)],
                )
            )
        return next(i for i, (note, _) in enumerate(parts) if note is value.note), value.result

    values = []
    for term in terms:
        values.append(_make_plain(low, term.value, region, kind, term.line))
    summands = []
    for value, term in zip(values, terms, strict=True):
        if term.metric is None:
            summands.append((source(value), [source(weight) for weight in term.weights]))
    metrics = []
    for value, term in zip(values, terms, strict=True):
        if term.metric is not None:
            metrics.append(
                (
                    term.metric,
                    source(value),
                    source(term.count or Constant(np.float32(1.0))),
                )
            )
    names = list(dict.fromkeys(name for name, *_ in metrics))

    def function(_: Any, *given: Any) -> list[Any]:
        computed = [note.function(None, *(given[i] for i in own)) for note, own in parts]

        def get(place):
            if place[0] is None:
                return given[place[1]]
            return computed[place[0]][place[1]]

        total = jnp.zeros((), kind.dtype)
        for value, weights in summands:
            part = get(value)
            for weight in weights:
                part = part * get(weight)
            total = total + part
        told = {name: jnp.zeros(2, kind.dtype) for name in names}
        for (
            name,
            value,
            count,
        ) in metrics:  # one that is told at several places is the mean over all of them
            told[name] += jnp.stack(
                [jnp.asarray(get(place), kind.dtype) for place in (value, count)]
            )
        return [
            total,
            *(x for pair in told.values() for x in pair),
        ]

    n = 1 + 2 * len(names)
    note = NodeNote(
        "loss",
        region,
        inputs,
        types,
        function,
        [kind] * n,
        [range(n)],
        terms[0].line,
    )
    payload_notes.loss(
        low.draft,
        note,
        [(name, 1 + 2 * i, 2 + 2 * i) for i, name in enumerate(names)],
    )


_Source = tuple[int | None, int]


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
