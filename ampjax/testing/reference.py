"""The oracle: a synchronous interpreter of the static graph, differentiated as one function by JAX.

It owns its own reading of what every node kind means (`ampjax.testing.interpreter`) and knows only `ampjax.ir`. The floats' gradients come
from `jax.grad` of the whole interpretation; control reads states only, so it can be traced (but for `route_by`, which reads a payload's
value).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import MessageError, ParameterError, SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Instances, Messages
from ampjax.ir.nodes import Node
from ampjax.ir.ops.payload_nodes import Sink
from ampjax.optim.joint.params_form import UNREAD
from ampjax.testing.interpreter import InstanceRun, KeyFn, Results, stack_rows
from ampjax.testing.message_states import StateDict
from ampjax.testing.oracles import find_oracle
from ampjax.testing.reference_result import Reference


def reference(
    graph: Graph,
    params: Mapping[str, Any],
    instances: Instances | Sequence[Mapping[str, Any]],
    *,
    gradients: bool = True,
    keys: KeyFn | None = None,
    jit: bool = False,
    oracle: str = "jit",
    ended: Callable[[], object] = lambda: None,
) -> Reference:
    """Interprets a graph on some instances and differentiates the summed loss with `jax.grad`.

    The state's `instance` is the instance's position in `instances`. Instances do not interact, so each is run by itself, and its messages
    are handled in the order in which they were sent.

    Args:
      graph: A closed graph.
      params: A pytree per parameterised node, by name. Those of a compiled model that no node reads are left out.
      instances: A data set, or a sequence of dictionaries as `InstanceList` takes them.
      gradients: False leaves the gradients out.
      keys: PRNG keys for bodies that take one; None gives them `key=None`, as outside training.
      jit: True compiles the whole run as one function. This takes seconds, so it only pays for long runs. It is impossible for graphs with a
        `route_by`, whose control flow depends on payloads.
      oracle: How bodies are evaluated: `jit` compiles each by itself; `eager` evaluates them operation by operation in float64 (see
        `ampjax.testing.oracles`), in which keys draw other numbers than in float32. Results are NumPy arrays of float64 then.
      ended: Called when an instance has been run forward.

    Returns:
      Loss, metrics, gradients, outputs and counts.

    Raises:
      ParameterError: If a node's parameters are missing, or there are some for an unknown node.
      MessageError: If an instance names an unknown pump, two messages of one state meet where one belongs, or a state function fails.
      DeadlockError: If messages are left waiting for others that never come.
      InvariantError: If the way back from a node does not lead to the state that was emitted (a wrong inverse).
      GraphError: If `eager` can't evaluate a body.
      SettingsError: If the oracle is unknown, or `jit` is combined with the oracle `eager`.
    """
    params = {node: tree for node, tree in params.items() if node != UNREAD}
    _check(graph, params, jit, oracle)
    if not isinstance(instances, Instances):
        ragged = []
        for name, node in graph.pumps.items():
            if node.op.type.ragged:
                ragged.append(name)
        instances = InstanceList(instances, ragged)
    pumped = _unpack(
        graph,
        instances.gather(np.arange(len(instances))),
        len(instances),
    )
    evaluator = find_oracle(oracle)
    results = list[Results]()

    def total(params: Mapping[str, Any]) -> tuple[jax.Array, Any]:
        """Computes the summed loss; and the other results with a value, since these are tracers here."""
        results.clear()
        for messages in pumped:
            run = InstanceRun(graph, params, keys, evaluator)
            run.run([(node, evaluator.cast(payload), state) for node, payload, state in messages])
            results.append(run.results)
            ended()
        losses = []
        for result in results:
            for loss in result.losses:
                losses.append(loss)
        values = []
        for result in results:
            values.append(([x for _, _, x in result.outputs], [x for _, *x in result.metrics]))
        return sum(losses, start=jnp.zeros(())), values

    if gradients:
        function = jax.value_and_grad(total, has_aux=True)
    else:
        function = lambda p: (total(p), {})
    with evaluator.scope():
        (loss, values), grads = (jax.jit(function) if jit else function)(
            evaluator.cast(dict(params))
        )
        outputs = _outputs(graph, results, values)
        metrics = _metrics(results, values)
        if oracle == "eager":  # JAX's own arrays of float64 are of use in its 64-bit mode only
            grads = jax.tree.map(np.asarray, grads)
        loss = float(loss)
    has_loss = any(node.kind == "Loss" for node in graph.nodes.values())
    rows = sum((result.rows for result in results), Counter())
    messages = sum((result.messages for result in results), Counter())
    return Reference(
        loss,
        metrics,
        grads,
        outputs,
        {name: rows[name] for name in sorted(graph.parameterised)},
        {name: messages[name] for name in graph.nodes},
        loss / len(pumped) if pumped and has_loss else None,
    )


def init_params(
    graph: Graph,
    seed: int = 0,
) -> dict[str, Any]:
    """Makes the initial parameters of every parameterised node: its `init` of a key folded from the seed and the node's number.

    Args:
      graph: A closed graph.
      seed: The seed of the keys.

    Returns:
      A pytree for each parameterised node, by name.
    """
    root = jax.random.key(seed)
    nodes = enumerate(graph.parameterised.items())
    result = {}
    for i, (name, node) in nodes:
        result[name] = node.op.body.init(jax.random.fold_in(root, i))
    return result


def with_tables(
    graph: Graph,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Adds the parameters of nodes with tables in host memory: all present rows.

    Args:
      graph: A closed graph.
      params: A pytree for each other parameterised node, by name.
    """
    tables = {}
    for name, node in graph.parameterised.items():
        if node.table is not None:
            tables[name] = node.table.dense()
    return dict(params) | tables


def _check(
    graph: Graph,
    params: Mapping[str, Any],
    jit: bool,
    oracle: str,
) -> None:
    wanted = sorted(graph.parameterised)
    names = sorted(params)
    if wanted != names:
        raise ParameterError(
            "reference, params",
            f"parameters of {wanted}",
            f"those of {names}",
            "Give every parameterised node its pytree.",
        )
    if jit and oracle == "eager":
        raise SettingsError(
            "reference", "`jit` or the oracle `eager`", "both", "Leave one of them out."
        )


def _outputs(
    graph: Graph, results: Sequence[Results], values: Any
) -> dict[str, list[tuple[StateDict, np.ndarray]]]:
    """Collects the messages at each sink; copies of a sink count as one."""
    outputs: dict[str, list[tuple[StateDict, np.ndarray]]] = {
        node.role: [] for node in graph.nodes.values() if isinstance(node.op, Sink)
    }
    for result, (payloads, _) in zip(results, values, strict=True):
        for (sink, state, _), payload in zip(result.outputs, payloads, strict=True):
            node = graph.nodes[sink]
            outputs[node.role].append(
                (
                    state,
                    np.asarray(
                        stack_rows(
                            node.inputs[0],
                            payload,
                        )
                    ),
                )
            )
    return outputs


def _metrics(
    results: Sequence[Results],
    values: Any,
) -> dict[str, float]:
    """Divides each metric's sums by its counts, over all losses that have the metric."""
    sums: dict[str, np.ndarray] = {}
    for result, (_, pairs) in zip(results, values, strict=True):
        for (name, *_), pair in zip(result.metrics, pairs, strict=True):
            sums[name] = sums.get(name, np.zeros(2)) + np.array(pair, np.float64)
    return {
        name: float(total / count) if count else float("nan")
        for name, (total, count) in sums.items()
    }


def _unpack(
    graph: Graph, pumped: Mapping[str, Messages], n: int
) -> list[list[tuple[Node, Any, StateDict]]]:
    """Columns of messages as one list per instance of `(pump, payload, state)`."""
    result: list[list[tuple[Node, Any, StateDict]]] = [[] for _ in range(n)]
    for name, messages in pumped.items():
        if name not in graph.pumps:
            raise MessageError(
                "instances",
                f"messages for the pumps {sorted(graph.pumps)}",
                f"pump `{name}`",
                "Use the pumps' names.",
            )
        node = graph.pumps[name]
        m = len(messages.instance)
        wire = node.op.type
        sizes = np.asarray(0 if messages.sizes is None else messages.sizes)
        ends = np.cumsum(sizes)
        fields = {}
        for field, values in messages.fields.items():
            fields[field] = np.broadcast_to(
                np.asarray(values),
                (m,),
            )
        if set(fields) != set(wire.fields):
            raise MessageError(
                f"pump `{name}`",
                f"the state fields {sorted(wire.fields)}",
                f"{sorted(fields)}",
                "Give every message its fields.",
            )
        for i, instance in enumerate(np.asarray(messages.instance).tolist()):
            state = {
                "instance": instance,
                **{field: int(values[i]) for field, values in fields.items()},
            }
            if wire.topology:
                payload = messages.payload[i]
            elif wire.ragged:
                payload = tuple(
                    np.asarray(
                        messages.payload[ends[i] - sizes[i] : ends[i]],
                        wire.dtype,
                    )
                )
            else:
                payload = np.asarray(messages.payload[i], wire.dtype)
            result[instance].append((node, payload, state))
    return result
