"""Prepares the data that users pass: data sets, lists of dictionaries, examples for a controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

from ampjax.drivers.controller import ControllerLoop, LoopInstances
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Instances

Data = Instances | Sequence[Any]
"""What users pass: a data set, or a list of dictionaries; with a user-written controller, a sequence of examples."""

AnyInstances = Instances | LoopInstances
"""What is run: a data set, or examples with the controller that pumps their messages."""


def as_data(
    graph: Graph,
    controller: ControllerLoop | None,
    data: Data,
    name: str = "data",
    labels: bool = True,
) -> AnyInstances:
    """The instances that a trainer runs.

    Args:
      graph: A closed graph.
      controller: A user-written controller, or None.
      data: What the user passed.
      name: What an error calls it.
      labels: Whether what losses need must be there.

    Raises:
      SettingsError: If it is neither a data set nor a sequence, is empty, or lacks what losses need.
    """
    if controller is None:
        return as_instances(graph, data, name, labels)
    return LoopInstances(controller, require_sequence(data, name), ragged_pumps(graph))


def as_instances(
    graph: Graph,
    data: Data,
    name: str = "data",
    labels: bool = True,
) -> Instances:
    """A data set, from one or from a list of dictionaries.

    Args:
      graph: A closed graph.
      data: What the user passed.
      name: What an error calls it.
      labels: Whether what losses need must be there.

    Raises:
      SettingsError: If it is neither, or empty, or instances of a model that are not those of its compiled graph yet, or if it lacks what
        losses need.
    """
    if isinstance(data, Instances):
        require_some(data, name)
        if labels and (missing := getattr(data, "missing_labels", ())):
            got = f"data without {', '.join(f'`{path}`' for path in missing)}"
            raise SettingsError(
                name, "all that losses need", got, "Such data are for `predict` alone."
            )
        return data
    data = require_sequence(data, name)
    if graph.remake is not None and not (
        isinstance(data[0], Mapping) and set(data[0]) <= set(graph.pumps)
    ):
        expected = "what `compiled.data(instances)` gives, as the graph was compiled from a model"
        got = "a list of instances as the model takes them"
        raise SettingsError(name, expected, got, "Pass them through `compiled.data`.")
    return InstanceList(data, ragged_pumps(graph))


def ragged_pumps(graph: Graph) -> list[str]:
    """Lists the names of a graph's ragged pumps.

    Args:
      graph: A closed graph.
    """
    result = []
    for name, node in graph.pumps.items():
        if node.op.type.ragged:
            result.append(name)
    return result


def require_sequence(data: Any, name: str = "data") -> Sequence[Any]:
    """Checks that data have a length and can be indexed, and are not empty.

    Args:
      data: What the user passed.
      name: What an error calls it.

    Returns:
      The data.

    Raises:
      SettingsError: If not.
    """
    if isinstance(data, Mapping) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise SettingsError(
            name,
            "a data set, or a sequence of examples",
            f"{type(data).__name__}",
            'Make a list of them: of columns, for example, `[{"x": x, "y": y} for x, y in zip(xs, ys)]`.',
        )
    require_some(data, name)
    return data


def require_some(data: Sized, name: str = "data") -> None:
    """Checks that data are not empty.

    Args:
      data: The data.
      name: What an error calls them.

    Raises:
      SettingsError: If they are.
    """
    if not len(data):
        raise SettingsError(
            name, "at least one instance", "none", "Pass a data set that is not empty."
        )


def n_examples(data: Any) -> int:
    """Counts the training examples in a data set: its `n_examples` where an instance holds several, else its length.

    Args:
      data: The data set.
    """
    return int(getattr(data, "n_examples", len(data)))
