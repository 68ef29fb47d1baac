"""Predictions from the outputs of batches, as messages at sinks would have been."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ampjax.errors import GraphError
from ampjax.ir.nodes import Node
from ampjax.train.predictions import Predictions

BatchOutputs = list[tuple[np.ndarray, Mapping[str, Any]]]
"""For each batch the numbers of its examples, and by name the rows that these have told."""


def gather_outputs(
    outputs: BatchOutputs,
    sinks: Mapping[str, Node],
) -> dict[str, Predictions]:
    """Puts the outputs of all batches in the order of the examples.

    Args:
      outputs: Those of each batch.
      sinks: The sinks by name, whose types say what an output is.

    Returns:
      By name, the rows in the order of examples and of elements in them; without state fields, as there are no messages.

    Raises:
      GraphError: If an output is a sequence for each element of another one.
    """
    if not sinks:
        return _of_all(outputs)
    result = {}
    for name, sink in sinks.items():
        wire = sink.inputs[0]
        assert wire is not None and wire.type is not None
        if wire.type.ragged and wire.type.fields:
            expected = "arrays, or one sequence of each example"
            fix = "Tell the elements in a `map`, or take `compiled.batched.reports`."
            got = "a sequence for each element of another one"
            raise GraphError(f"predict with mode='batch', output `{name}`", expected, got, fix)
        result[name] = _of_sink(
            outputs,
            name,
            wire.type.ragged,
        )
    return result


def _of_all(outputs: BatchOutputs) -> dict[str, Predictions]:
    """Puts all outputs that a model has told in the order of the examples; a sequence of sequences as a list for each example.

    Raises:
      GraphError: If it has told none.
    """
    result = {}
    for _, outputs_of_batch in outputs[:1]:
        if not outputs_of_batch:
            fix = "Say `amp.output(name, value)` in the model."
            raise GraphError("predict", "an output of the model", "none", fix)
        for name, rows in outputs_of_batch.items():
            result[name] = _of_sink(
                outputs,
                name,
                is_ragged=len(rows.lengths) > 1,
            )
    return result


def _of_sink(outputs: BatchOutputs, name: str, is_ragged: bool) -> Predictions:
    """The rows of one output."""
    numbers = []
    parts: list[np.ndarray] = []
    for examples, reports in outputs:
        numbers += examples.tolist()
        parts += reports[name].tolist()[: len(examples)]
    order = np.argsort(numbers, kind="stable")
    parts = [parts[i] for i in order]
    instance = np.array(numbers)[order]
    if is_ragged:
        return Predictions(parts, instance, {})
    counts = [len(part) for part in parts]
    return Predictions(
        np.concatenate(parts),
        instance.repeat(counts),
        {},
    )
