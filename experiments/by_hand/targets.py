"""Epochs to a target: models as functions beside the same models as graphs by hand, which begin with the same parameters."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import optax
import tyro
from rich.console import Console

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances
from ampjax.train.history import reaches
from ampjax.train.initial_params import initial_params
from ampjax.train.settings import Settings
from ampjax.utils.text_tables import compact
from experiments import babi15, permutation, sentiment
from experiments import list_reduction as lists
from experiments.bench.front_end_pairs import alike
from experiments.by_hand import rnn_graph, tree_lstm_graph
from experiments.by_hand.act_graph import act_messages, act_rnn
from experiments.by_hand.ggnn_graph import Network, ggnn_selection
from experiments.by_hand.permutation_graph import ShuffledRows
from experiments.by_hand.permutation_graph import permutation as permutation_graph
from experiments.common import Task, require_seeds
from experiments.data import list_reduction, sst
from experiments.intervals import set_options
from experiments.models import act
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class ByHandOptions:
    """Trains models as functions, and the same models as graphs by hand, to the same target: epochs, and the accuracy then.

    Both have the same data, initial parameters, optimizer and settings.

    Args:
      models: Which models; all by default.
      seed: One seed or several; each is a run of its own.
      max_active_keys: The most instances in flight; 0 is the experiment's own number.
      synthetic: Generated trees in place of the treebank.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each run.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    seed: tuple[int, ...] = (0,)
    max_active_keys: int = 0
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None


@dataclass(frozen=True)
class Forms:
    """A model in both forms, for one seed.

    Args:
      function: The compiled model's task.
      by_hand: The graph by hand, with its data in place of the function's.
      target: The validation accuracy to reach.
      epochs: Epochs at most.
    """

    function: Task
    by_hand: Task
    target: float
    epochs: int


def main(
    options: ByHandOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives a record for each run.

    Raises:
      SettingsError: If a model is unknown, or an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    unknown = sorted(set(options.models) - set(FORMS))
    if unknown:
        raise SettingsError(
            "by-hand", f"models of {', '.join(FORMS)}", f"{unknown}", "Leave them out for all."
        )
    require_seeds(options.seed)
    table = compact("model, target", "form", "epochs", "median", "accuracy then")
    records = []
    for name in options.models or FORMS:
        found: dict[str, list[dict[str, Any]]] = {
            "function": [],
            "by hand": [],
        }
        for seed in options.seed:
            forms = FORMS[name](options, seed)
            for form, task in (("function", forms.function), ("by hand", forms.by_hand)):
                common = {
                    "experiment": "by-hand",
                    "model": name,
                    "form": form,
                    "seed": seed,
                    "target": forms.target,
                }
                record = {
                    **common,
                    **trained(task, initial_params(forms.function.graph, {}, seed), forms),
                }
                append(options.json, [record])
                found[form].append(record)
        for form, rows in found.items():
            epochs = [row["epochs"] for row in rows]
            each = [str(n) if n else "never" for n in epochs]
            median = statistics.median(n or np.inf for n in epochs)
            accuracy = statistics.median(row["accuracy"] for row in rows)
            table.add_row(
                f"{name}, {rows[0]['target']:g}",
                form,
                ", ".join(each),
                f"{median:g}",
                f"{accuracy:.4f}",
            )
            records += rows
    (console or Console(highlight=False)).print(table)
    return records


def trained(
    task: Task,
    params: Mapping[str, Any],
    forms: Forms,
) -> dict[str, Any]:
    """Epochs to the target, None if it was not reached, and the validation accuracy after the last epoch.

    Args:
      task: What is trained.
      params: Initial parameters by node.
      forms: What says the target, and the epochs at most.
    """
    trainer = amp.Trainer(
        task.graph,
        task.tx,
        params=params,
        settings=task.settings,
    )

    def stop(trainer, epoch):
        return reaches(epoch.valid["accuracy"], forms.target, "accuracy")

    history = trainer.fit(
        task.train,
        task.valid,
        epochs=forms.epochs,
        callbacks=[stop],
        progress=False,
    )
    accuracy = history[len(history) - 1].valid["accuracy"]
    reached = reaches(accuracy, forms.target, "accuracy")
    return {
        "epochs": len(history) if reached else None,
        "accuracy": accuracy,
        "seconds": history[len(history) - 1].seconds,
    }


def forms_of(
    task: Task,
    graph: Graph,
    data: Sequence[Instances],
    target: float,
    epochs: int,
) -> Forms:
    """Both forms of a model.

    Args:
      task: That of the function.
      graph: The graph by hand, whose nodes get the options that they have in the task's.
      data: Training and validation instances of the graph by hand.
      target: The validation accuracy to reach.
      epochs: Epochs at most.
    """
    train, valid = data
    return Forms(
        task,
        replace(
            task,
            graph=alike(task.graph, graph),
            train=train,
            valid=valid,
        ),
        target,
        epochs,
    )


def _lists(options: ByHandOptions, seed: int) -> Forms:
    """List reduction in buckets."""
    own = lists.ListReductionOptions(**_in_flight(options), epochs=16)
    task = lists.tasks(own)(seed)
    parts = list_reduction.splits(own.n_train, own.n_valid, seed)
    data = [list_reduction.Buckets(part, own.batch_size, own.hidden) for part in parts]
    return forms_of(
        task,
        rnn_graph.list_reduction_rnn(own.hidden, own.batch_size),
        data,
        0.97,
        own.epochs,
    )


def _trees(options: ByHandOptions, seed: int) -> Forms:
    """The Tree-LSTM on the treebank."""
    own = sentiment.SentimentOptions(
        **_in_flight(options), synthetic=options.synthetic, data_dir=options.data_dir
    )
    task = sentiment.tasks(own)(seed)
    cells = sentiment.chosen_cells(own)
    parts = sst.synthetic() if own.synthetic else sst.load(own.data_dir)
    graph = tree_lstm_graph.tree_lstm(len(parts[0].vocabulary), cells)
    return forms_of(
        task,
        graph,
        [sst.TreeInstances(part) for part in parts],
        own.target,
        own.epochs,
    )


def _questions(options: ByHandOptions, seed: int) -> Forms:
    """BAbI task 15 with a gated graph network."""
    own = babi15.Babi15Options(**_in_flight(options), epochs=30)
    _, *data = babi15.data(own, seed)
    graph = ggnn_selection(Network(1, own.hidden, own.steps))
    return forms_of(
        babi15.tasks(own)(seed),
        graph,
        data,
        own.target,
        own.epochs,
    )


def _shuffles(options: ByHandOptions, seed: int) -> Forms:
    """Operations in an order of each instance's own."""
    own = permutation.PermutationOptions(**_in_flight(options), epochs=30)
    graph = permutation_graph(own.operations, own.hidden)
    data = [ShuffledRows(part) for part in permutation.splits(own, seed)]
    return forms_of(
        permutation.tasks(own)(seed),
        graph,
        data,
        own.target,
        own.epochs,
    )


def _pondering(options: ByHandOptions, seed: int) -> Forms:
    """Adaptive computation time: is the sum of the inputs' first features above zero? One to nine inputs."""
    sizes = act.Ponder(8, 64, 2)
    in_flight = _in_flight(options) or {"max_active_keys": 64}
    compiled = amp.compile(
        act.act_rnn(sizes),
        act.init(jax.random.key(seed), sizes),
        act.spec(sizes),
    )
    rows = {"step": 320, "classify": 32}  # what 32 sequences bring, about
    set_options(compiled.graph, lambda node: {"min_update_interval": rows[node]})
    settings = Settings(**in_flight, max_dispatch_size=512, policy="wavefront", seed=seed)
    parts = []
    for n, stream in zip((5000, 500), np.random.SeedSequence(seed).spawn(2), strict=True):
        parts.append(_sums(n, sizes.n_in, stream))
    train, valid = (compiled.data(part) for part in parts)
    task = Task(
        compiled.graph,
        train,
        valid,
        settings,
        optax.adam(1e-3),
    )
    return forms_of(
        task,
        act_rnn(sizes),
        [act_messages(part, sizes.hidden) for part in parts],
        0.95,
        30,
    )


def _sums(
    n: int,
    features: int,
    stream: np.random.SeedSequence,
) -> list[dict[str, Any]]:
    """Sequences of random inputs, labelled by the sign of what their first features add up to."""
    rng = np.random.default_rng(stream)
    inputs = []
    for length in rng.integers(1, 10, n):
        inputs.append(rng.normal(size=(int(length), features)).astype(np.float32))
    result = []
    for x in inputs:
        result.append({"x": x, "label": np.int32(x[:, 0].sum() > 0)})
    return result


def _in_flight(options: ByHandOptions) -> dict[str, Any]:
    return {"max_active_keys": options.max_active_keys} if options.max_active_keys else {}


FORMS: Mapping[str, Callable[[ByHandOptions, int], Forms]] = {
    "list-reduction": _lists,
    "tree-lstm": _trees,
    "babi15": _questions,
    "permutation": _shuffles,
    "act": _pondering,
}
"""By name, what makes both forms of a model for a seed."""
