"""Runs of one pass: evaluate, predict, accumulate gradients; and compiling ahead of a fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from ampjax.devices.random_keys import on_host
from ampjax.engine.executor_protocol import AnyStore
from ampjax.engine.memory.loss_metrics import loss_sum, metrics_of
from ampjax.errors import GraphError
from ampjax.trace.trace import Trace
from ampjax.train.predictions import Predictions
from ampjax.train.runs.session import Session
from ampjax.train.training_data import AnyInstances
from ampjax.utils.progress import SILENT, Reporter


async def warm_up(
    session: Session, train: AnyInstances, valid: AnyInstances | None, reporter: Reporter
) -> None:
    """Compiles all that a fit will need. No parameter changes.

    Args:
      session: What runs.
      train: Training instances.
      valid: Validation instances, or None.
      reporter: Shows how many kernels are compiled.

    Raises:
      MessageError: If a message, payload or state function of a sampled instance does not fit.
    """
    async with session.passes.turn():
        await session.preparation.prepare(train, valid, reporter)
        await session.preparation.finish(reporter)


async def evaluate(
    session: Session,
    data: AnyInstances,
    reporter: Reporter,
    params: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, float]:
    """Evaluates losses and metrics over all instances.

    Args:
      session: What runs.
      data: The instances.
      reporter: Shows how far it is.
      params: Parameters by node that take the place of the trainer's own.

    Returns:
      By name, the mean loss and the metrics.

    Raises:
      Exception: As `PassRunner.run`.
    """
    async with session.passes.turn():
        with holding(session.executor.store, params):
            await _infer(session, data, "losses", reporter, "evaluate")
        return metrics_of(session.passes.losses.take(False), len(data))


async def predict(
    session: Session,
    data: AnyInstances,
    reporter: Reporter,
    params: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Predictions]:
    """Computes the messages that arrive at each sink.

    Args:
      session: What runs.
      data: The instances.
      reporter: Shows how far it is.
      params: Parameters by node that take the place of the trainer's own.

    Returns:
      By the sink's name, its messages in the order of instances and states.

    Raises:
      GraphError: If the graph has no sink.
      Exception: As `PassRunner.run`.
    """
    sinks = {}
    for node in session.plan.graph.nodes.values():
        if node.kind == "Sink":
            sinks[node.role] = node
    if not sinks and not session.plan.graph.batches_only:
        fix = "End the wire that you want to see with `amp.graphs.sink(name, wire)`; in a model as a function say `amp.output(name, value)`."
        raise GraphError("predict", "a sink in the graph", "none", fix)
    async with session.passes.turn():
        with holding(session.executor.store, params):
            outputs = await _infer(session, data, "sinks", reporter, "predict")
        return session.passes.predictions(outputs, sinks)


@contextmanager
def holding(
    store: AnyStore,
    params: Mapping[str, Any],
) -> Iterator[None]:
    """Has other parameters in place of some nodes' own as long as this is open.

    Args:
      store: The parameters.
      params: The others, by node.
    """
    before = {}
    for node in params:
        before[node] = jax.tree.map(on_host, store.params[node])
    try:
        for node, value in params.items():
            store.set_params(node, value)
        yield
    finally:
        for node, value in before.items():
            store.set_params(node, value)


async def accumulate(
    session: Session,
    data: AnyInstances,
    update: bool = True,
    trace: Trace | None = None,
) -> dict[str, float]:
    """Runs instances forward and backward once, in order.

    Args:
      session: What runs.
      data: Training instances.
      update: False keeps all parameters as they are; gradients are accumulated all the same.
      trace: Filled with where each worker's time goes.

    Returns:
      The metrics, and `loss_sum`: the summed loss of all rows.

    Raises:
      Exception: As `PassRunner.run`.
    """
    async with session.passes.turn():
        await session.preparation.prepare(data, None, SILENT, warm=False)
        training = session.training_pass(
            data,
            np.arange(len(data)),
            may_update=update,
        )
        seeds = replace(training.seeds, accumulated=session.position.accumulated)
        session.position.accumulated += 1
        await session.passes.run(
            replace(training, seeds=seeds),
            "train",
            trace=trace,
        )
        sums = session.passes.losses.take(True)
    return {"loss_sum": loss_sum(sums), **metrics_of(sums, len(data))}


async def _infer(
    session: Session, data: AnyInstances, purpose: str, reporter: Reporter, name: str
) -> Any:
    preparation = session.preparation
    await preparation.prepare(
        data,
        None,
        reporter,
        purpose,
        ahead=session.settings.compile_ahead,
    )
    with preparation.showing_postponed(reporter):
        return await session.passes.run(
            session.inference_pass(data, purpose),
            name,
            reporter,
        )
