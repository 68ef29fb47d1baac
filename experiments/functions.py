"""Models of many kinds as plain JAX functions (`experiments.models.functions.zoo`), each trained on generated data to a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

import jax
import numpy as np
import optax
from rich.console import Console
from tyro.conf import Positional

import ampjax as amp
from ampjax.train.history import History
from experiments.common import Options, Task, require_positive, run
from experiments.intervals import update_together


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Args:
      data: The module below `experiments.data.generated` that draws its instances.
      target: Validation accuracy to reach.
      n_train: Training instances.
      epochs: Epochs at most.
      learning_rate: Adam's.
      batch: Instances whose gradient rows make an update.
      in_flight: The most instances in flight. Where values are read back, more of them fill the dispatches that wait for a value.
    """

    data: str
    target: float
    n_train: int = 2000
    epochs: int = 20
    learning_rate: float = 3e-3
    batch: int = 32
    in_flight: int = 64


RECIPES: Mapping[str, Recipe] = {
    "listops": Recipe("operation_trees", 0.7, n_train=4000),
    "attention-classifier": Recipe("priorities", 0.95),
    "child-sum-tree-lstm": Recipe("dependency_trees", 0.9),
    "spinn": Recipe("formulas", 0.9, n_train=4000, learning_rate=5e-3, in_flight=128),
    "hierarchical-rnn": Recipe("documents", 0.95),
    "dag-lstm": Recipe("circuits", 0.95),
    "stochastic-depth": Recipe("spirals", 0.95),
    "memory-network": Recipe("pointer_facts", 0.95),
    "programmer-interpreter": Recipe(
        "additions", 0.95, learning_rate=1e-2, batch=16, in_flight=32
    ),  # fresh gradients
}
"""By name, as it is written on the command line."""

Name = Literal[
    "listops",
    "attention-classifier",
    "child-sum-tree-lstm",
    "spinn",
    "hierarchical-rnn",
    "dag-lstm",
    "stochastic-depth",
    "memory-network",
    "programmer-interpreter",
]


@dataclass(frozen=True, kw_only=True)
class FunctionsOptions(Options):
    """Models of many kinds, written as plain JAX functions of one instance, each trained to a target on generated data of its own.

    Where an option is 0, the model's own number is taken.

    Args:
      name: Which model.
      n_train: Training instances.
      n_valid: Validation instances.
      epochs: Epochs at most.
      target: Validation accuracy to reach.
      batch: Instances whose gradient rows make an update.
      learning_rate: Adam's.
      max_active_keys: The most instances in flight.
    """

    name: Positional[Name]
    n_train: int = 0
    n_valid: int = 500
    epochs: int = 0
    target: float = 0.0
    batch: int = 0
    learning_rate: float = 0.0
    max_active_keys: int = 0
    policy: str = "largest"
    min_admission: int = 32
    max_dispatch_size: int = 64


def main(options: FunctionsOptions) -> list[History]:
    """Trains, and says whether the target was reached; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = Console(highlight=False)
    recipe = RECIPES[options.name]
    options = replace(
        options,
        target=options.target or recipe.target,
        epochs=options.epochs or recipe.epochs,
        n_train=options.n_train or recipe.n_train,
        batch=options.batch or recipe.batch,
        learning_rate=options.learning_rate or recipe.learning_rate,
        max_active_keys=options.max_active_keys or recipe.in_flight,
    )
    console.print(
        f"target: accuracy {options.target:g}; always the most common answer: {chance(options):.3f}"
    )
    histories = run(f"functions-{options.name}", options, tasks(options), console)
    for history in histories:
        best = history.best("accuracy") if len(history) else 0.0
        console.print(
            f"target {options.target:g} {'reached' if best >= options.target else 'not reached'}: {best:.4f}"
        )
    return histories


def tasks(options: FunctionsOptions) -> Callable[[int], Task]:
    """A function from a seed to model, data, settings and optimizer.

    Args:
      options: The options, with numbers of their own.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    require_positive(
        "The defaults are good for all.", learning_rate=options.learning_rate, batch=options.batch
    )

    def task(seed: int) -> Task:
        module = _model(options.name)
        train, valid = instances(options, seed)
        model = getattr(module, module.__name__.rpartition(".")[2])
        compiled = amp.compile(
            model,
            module.init(jax.random.key(seed)),
            module.SPEC,
        )
        data = compiled.data(train)
        settings = replace(
            options.settings(seed, 1), compile_ahead=False
        )  # few of all sizes are ever used
        shown = next(iter(compiled.graph.parameterised.values())).role
        settings = update_together(
            compiled.graph,
            data,
            settings,
            options,
            options.batch,
            shown,
        )
        return Task(
            compiled.graph,
            data,
            compiled.data(valid),
            settings,
            optax.adam(options.learning_rate),
        )

    return task


def instances(options: FunctionsOptions, seed: int) -> list[list[Any]]:
    """Training and validation instances, drawn from streams of their own.

    Args:
      options: The options.
      seed: Of the run.
    """
    generate = import_module(f"experiments.data.generated.{RECIPES[options.name].data}").generate
    streams = np.random.SeedSequence(seed).spawn(2)
    result = []
    for n, stream in zip((options.n_train, options.n_valid), streams, strict=True):
        result.append(generate(n, stream))
    return result


def chance(options: FunctionsOptions) -> float:
    """What the validation accuracy is of the most common of all answers.

    Args:
      options: The options.
    """
    _, valid = instances(
        options,
        options.seed[0] if options.seed else 0,
    )
    answers = [np.asarray(instance["label"]) for instance in valid]
    if options.name == "dag-lstm":
        answers = [answer[-1] for answer in answers]  # of the last node
    _, counts = np.unique(
        np.stack(answers),
        axis=0,
        return_counts=True,
    )
    return float(counts.max() / len(answers))


def _model(name: str) -> Any:
    return import_module(f"experiments.models.functions.zoo.{name.replace('-', '_')}")
