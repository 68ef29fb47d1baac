"""The questions that a driver asks a host apart from batches: parameters, sums of losses, compilations, sizes.

A question has a name and values by name, as JSON, and arrays; so has its answer.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from ampjax.cluster.wire.message import Message
from ampjax.devices.random_keys import data_of, wrapped_like
from ampjax.engine.executor import Executor
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.kernels.launch import Launch
from ampjax.hosts.operations import Names, operations
from ampjax.ir.host_tables import SentTable
from ampjax.plan.stages import HOST
from ampjax.sched.decisions.packs import PackMemory

Arrays = Sequence[np.ndarray]
Answer = tuple[Any, Arrays]
"""What JSON can hold, and arrays."""

TREES = "params", "opt_state", "accumulators"
"""What is kept of each node."""


def question(
    number: int,
    name: str,
    arrays: Arrays = (),
    **values: Any,
) -> Message:
    """Puts a question.

    Args:
      number: Its number; the answer has the same.
      name: What is asked: one of `_ANSWERS`, or what a host answers itself.
      arrays: Arrays that go with it.
      **values: Values that JSON can hold.
    """
    return Message(
        "ask",
        (number,),
        json.dumps({"name": name, **values}),
        tuple(arrays),
    )


def answer(
    executor: Executor,
    names: Names,
    asked: Message,
    own: Mapping[str, Callable[..., Answer]],
) -> Message:
    """Answers a question.

    Args:
      executor: The host's.
      names: What numbers in operations stand for.
      asked: The question.
      own: What the host answers itself, by name: it takes the question's values.

    Returns:
      The answer; of kind `refused`, with a traceback, if it could not be answered.
    """
    try:
        values = json.loads(asked.text)
        name = values.pop("name")
        if name in own:
            said, arrays = own[name](**values)
        else:
            said, arrays = _ANSWERS[name](executor, names, asked.arrays, **values)
        return Message(
            "answer",
            asked.numbers,
            json.dumps(said),
            tuple(arrays),
        )
    except Exception as error:  # the driver raises it
        return Message(
            "refused",
            asked.numbers,
            "".join(traceback.format_exception(error)),
        )


def leaves_of(
    trees: Mapping[str, Any],
    nodes: Sequence[str],
) -> list[np.ndarray]:
    """The leaves of some nodes' trees, one after the other."""
    result = []
    for node in nodes:
        for leaf in jax.tree.leaves(trees[node]):
            result.append(data_of(leaf))
    return result


def with_leaves(
    like: Mapping[str, Any],
    nodes: Sequence[str],
    leaves: Arrays,
) -> dict[str, Any]:
    """Trees from leaves, one after the other; the inverse of `leaves_of`.

    Args:
      like: For each node a tree, or the shapes of one.
      nodes: The nodes' names.
      leaves: What `leaves_of` gave.
    """
    trees = {}
    at = 0
    for node in nodes:
        node_leaves, structure = jax.tree.flatten(like[node])
        trees[node] = structure.unflatten(
            map(wrapped_like, node_leaves, leaves[at : at + len(node_leaves)])
        )
        at += len(node_leaves)
    return trees


def _trees(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    which: str,
    nodes: list[str],
) -> Answer:
    return None, leaves_of(getattr(executor.store, which), nodes)


def _not_finite(executor: Executor, names: Names, arrays: Arrays) -> Answer:
    return executor.store.not_finite, ()


def _set_params(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    node: str,
) -> Answer:
    executor.store.set_params(
        node,
        with_leaves(executor.store.params, [node], arrays)[node],
    )
    return None, ()


def _take_step(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    nodes: list[str],
) -> Answer:
    store = executor.store
    for node, params in with_leaves(store.params, nodes, arrays).items():
        store.set_params(node, params)
        store.empty(node)
    return None, ()


def _restore(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    nodes: list[str],
) -> Answer:
    store = executor.store
    at = 0
    trees = []
    for which in TREES:
        like = getattr(store, which)
        n = sum(jax.tree.structure(like[node]).num_leaves for node in nodes)
        trees.append(with_leaves(like, nodes, arrays[at : at + n]))
        at += n
    store.restore(*trees)
    return None, ()


def _table(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    node: str,
    known: int,
) -> Answer:
    table = _sent_table(executor, node)
    files = {} if table.version == known else table.as_files()
    return {"version": table.version, "files": list(files)}, list(files.values())


def _waiting(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    node: str,
) -> Answer:
    return None, executor.store.tables[node].join_all()


def _n_waiting(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    node: str,
) -> Answer:
    return executor.store.tables[node].n_new, ()


def _restore_table(
    executor: Executor, names: Names, arrays: Arrays, node: str, **said: Any
) -> Answer:
    ids, rows, *files = arrays
    _sent_table(
        executor,
        node,
    ).take_files(dict(zip(said["files"], files, strict=True)))
    executor.store.tables[node].restore(ids, rows, said["n_new"])
    return None, ()


def _sent_table(executor: Executor, node: str) -> SentTable:
    return cast(SentTable, executor.store.tables[node].table)


def _losses(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    train: bool,
) -> Answer:
    lines = executor.losses.take_lines(train)
    return list(lines), list(lines.values())


def _losses_state(executor: Executor, names: Names, arrays: Arrays) -> Answer:
    return executor.losses.state(), ()


def _resume_losses(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    state: list[list[Any]],
) -> Answer:
    executor.losses.resume(state)
    return None, ()


def _forget(executor: Executor, names: Names, arrays: Arrays) -> Answer:
    executor.store.forget()
    return None, ()


def _wait(executor: Executor, names: Names, arrays: Arrays) -> Answer:
    executor.fences.wait()
    return None, ()


def _warm_fences(executor: Executor, names: Names, arrays: Arrays) -> Answer:
    executor.fences.warm()
    return None, ()


def _device_bytes(executor: Executor, names: Names, arrays: Arrays) -> Answer:
    return executor.device_bytes, ()


def _record_row_bytes(executor: Executor, names: Names, arrays: Arrays) -> Answer:
    return [
        [[key[0], list(key[1]), key[2]], n] for key, n in executor.record_row_bytes().items()
    ], ()


def _expect_edges(
    executor: Executor, names: Names, arrays: Arrays, stages: dict[str, Any]
) -> Answer:
    sizes = {}
    for stage, (mean, spread) in stages.items():
        sizes[int(stage)] = EdgeSizes(tuple(mean), tuple(spread))
    executor.expect_edges(sizes)
    return None, ()


def _can_update(executor: Executor, names: Names, arrays: Arrays) -> Answer:
    return executor.backward_runs.updating, ()


def _warm(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    capacities: list[Any],
    half: str,
) -> Answer:
    (operation,) = operations(arrays, names, PackMemory())
    launch = operation.what
    assert isinstance(launch, Launch)
    devices = executor.arenas.devices
    stage = executor.plan.stages[launch.stage]
    keys = []
    for (space, shape, dtype), n in capacities:
        keys.append(((space, tuple(shape), dtype), n))
    for key, n in (*keys, *zip(stage.arenas, launch.capacities, strict=True)):
        if key[0] == HOST or key[0] in devices:
            executor.arenas.ensure(key, n)
    if half == "take":
        executor.take(launch)
    elif half == "put":
        executor.put(
            launch,
            np.zeros(
                (launch.size or launch.n_rows, *stage.outputs[0].shape),
                stage.outputs[0].dtype,
            ),
        )
    else:
        executor.warm(launch, {})
    return None, ()


def _warm_update(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    node: str,
) -> Answer:
    executor.store.warm_update(node)
    return None, ()


def _warm_average(
    executor: Executor,
    names: Names,
    arrays: Arrays,
    nodes: list[str],
) -> Answer:
    executor.store.warm_average(nodes)
    return None, ()


_ANSWERS: Mapping[str, Callable[..., Answer]] = {
    "trees": _trees,
    "not finite": _not_finite,
    "set params": _set_params,
    "restore": _restore,
    "stepped": _take_step,
    "table": _table,
    "waiting": _waiting,
    "n waiting": _n_waiting,
    "restore table": _restore_table,
    "losses": _losses,
    "losses so far": _losses_state,
    "resume losses": _resume_losses,
    "forget": _forget,
    "wait": _wait,
    "warm fences": _warm_fences,
    "device bytes": _device_bytes,
    "record row bytes": _record_row_bytes,
    "expect edges": _expect_edges,
    "can update": _can_update,
    "warm": _warm,
    "warm update": _warm_update,
    "warm average": _warm_average,
}
"""Who answers what."""
