"""The engine's results for some instances, in training and in inference, and their distance from the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import optax

from ampjax.ir.graph import Graph
from ampjax.numerics.differences import Difference, compare, widen_leaf
from ampjax.sched.diagnose.statistics import Statistics
from ampjax.testing.message_states import StateDict
from ampjax.testing.reference_result import Reference
from ampjax.train.predictions import Predictions
from ampjax.train.preparation import showing_compilations
from ampjax.train.settings import Settings
from ampjax.train.trainer import Trainer
from ampjax.train.training_data import Data
from ampjax.utils.progress import SILENT, Reporter


@dataclass(frozen=True)
class EngineRun:
    """The results of training without updates, of `evaluate` and of `predict`.

    Args:
      loss: The summed loss of training.
      training: Mean loss and metrics of training.
      grads: Summed gradients by node.
      rows: Gradient rows by node.
      evaluation: What `evaluate` gave: mean loss and metrics.
      outputs: What `predict` gave, by sink; empty where the graph has none.
      largest: Rows of the largest dispatch.
    """

    loss: float
    training: Mapping[str, float]
    grads: Mapping[str, Any]
    rows: Mapping[str, int]
    evaluation: Mapping[str, float]
    outputs: Mapping[str, Predictions]
    largest: int


def run_engine(
    graph: Graph,
    instances: Data,
    params: Mapping[str, Any],
    settings: Settings,
    reporter: Reporter = SILENT,
) -> EngineRun:
    """Runs instances forward and backward with frozen parameters, evaluates the instances and predicts their outputs.

    Only the kernels that these need are compiled.

    Args:
      graph: A closed graph with a loss.
      instances: The instances.
      params: A pytree for each parameterised node, by name.
      settings: How the graph is run.
      reporter: Shows compilations.

    Raises:
      Exception: As `Trainer.accumulate`.
    """
    trainer = Trainer(
        graph,
        optax.sgd(0.0),
        params=params,
        settings=replace(settings, compile_ahead=False),
    )
    session = trainer.session
    with showing_compilations(
        reporter, session.preparation.most_kernels(session.instances(instances))
    ):
        training = trainer.accumulate(instances, update=False)
        gradients = trainer.gradients
        largest = [_largest(trainer.statistics)]
        evaluation = trainer.evaluate(instances, progress=False)
        largest.append(_largest(trainer.inference_statistics))
        if has_sinks(graph):
            outputs = trainer.predict(instances, progress=False)
        else:
            outputs = {}
    return EngineRun(
        training.pop("loss_sum"),
        training,
        {node: grads for node, (grads, _) in gradients.items()},
        {node: rows for node, (_, rows) in gradients.items()},
        evaluation,
        outputs,
        max(*largest, _largest(trainer.inference_statistics)),
    )


def has_sinks(graph: Graph) -> bool:
    """Tells whether the graph has a sink, so that something can be predicted."""
    return any(node.kind == "Sink" for node in graph.nodes.values())


def differences_of(
    run: EngineRun,
    wanted: Reference,
) -> dict[str, list[Difference]]:
    """Compares the engine's results with the reference's.

    Returns:
      All differences, by what was run: `training`, `evaluate`, `predict`.
    """
    training = [
        ("loss", "", _relative(run.loss, wanted.loss)),
        (
            "gradient",
            "norm",
            _relative(_norm(run.grads), _norm(wanted.grads)),
        ),
        (
            "gradient",
            "rows",
            0.0 if dict(run.rows) == wanted.rows else math.inf,
        ),
        *compare(dict(run.grads), wanted.grads),
        *_metrics("training", run.training, wanted),
    ]
    predictions = []
    for name, got in run.outputs.items():
        predictions.append(("predict", f"`{name}`", outputs_apart(got, wanted.outputs[name])))
    return {
        "training": training,
        "evaluate": _metrics("evaluate", run.evaluation, wanted),
        "predict": predictions,
    }


def outputs_apart(
    got: Predictions,
    want: Sequence[tuple[StateDict, np.ndarray]],
) -> float:
    """Measures the distance of a sink's rows, max |got - want| / max |want|; infinite where messages, states or row counts differ.

    Args:
      got: What the engine predicted, in the order of instances and states.
      want: States and payloads in any order.
    """
    fields = ("instance", *got.fields)
    ordered = sorted(
        want,
        key=lambda message: [message[0][name] for name in fields],
    )
    states = np.stack(
        [got.instance, *got.fields.values()],
        axis=1,
    )
    rows = [widen_leaf(row) for row in got.payload]
    wanted = [widen_leaf(payload) for _, payload in ordered]
    if states.tolist() != [[state[name] for name in fields] for state, _ in ordered]:
        return math.inf
    if [row.shape for row in rows] != [row.shape for row in wanted]:
        return math.inf
    g, w = (np.concatenate([np.zeros(0), *map(np.ravel, each)]) for each in (rows, wanted))
    finite = np.isfinite(w)
    if not np.array_equal(g[~finite], w[~finite], equal_nan=True):
        return math.inf
    scale = (
        float(
            np.max(
                np.abs(w[finite]),
                initial=0.0,
            )
        )
        or 1.0
    )
    apart = float(np.max(np.abs(g[finite] - w[finite]), initial=0.0)) / scale
    return apart if math.isfinite(apart) else math.inf


def _metrics(
    run: str,
    got: Mapping[str, float],
    wanted: Reference,
) -> list[Difference]:
    """Compares the mean loss and each metric: infinite if one side lacks a metric, 0 if both sides counted nothing."""
    if wanted.mean_loss is None:
        wanted_metrics = wanted.metrics
    else:
        wanted_metrics = {"loss": wanted.mean_loss, **wanted.metrics}
    pairs = {}
    for name in {**wanted_metrics, **got}:
        pairs[name] = (
            got.get(name, math.inf),
            wanted_metrics.get(name, math.inf),
        )
    result = []
    for name, pair in pairs.items():
        result.append((run, name, 0.0 if np.isnan(pair).all() else _relative(*pair)))
    return result


def _norm(grads: Mapping[str, Any]) -> float:
    leaves = [widen_leaf(leaf) for leaf in jax.tree.leaves(dict(grads))]
    return float(np.sqrt(sum(float(np.sum(np.square(np.abs(leaf)))) for leaf in leaves)))


def _relative(got: float, wanted: float) -> float:
    """|got - wanted| / |wanted|; infinite where either is not finite."""
    apart = abs(got - wanted) / (abs(wanted) or 1.0)
    return apart if math.isfinite(apart) else math.inf


def _largest(statistics: Statistics) -> int:
    return max(
        (stage.largest_dispatch for stage in statistics.stages.values()),
        default=0,
    )
