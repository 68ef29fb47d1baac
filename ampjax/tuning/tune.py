"""Finds the settings with which a graph trains to a target soonest on this machine."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optax

from ampjax.drivers.cost import Cost
from ampjax.engine.memory.loss_metrics import metrics_of_graph
from ampjax.errors import SettingsError, TuningWarning
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances, Subset
from ampjax.plan.planner import Plan
from ampjax.train.assemble import require_transform
from ampjax.train.settings import Settings
from ampjax.train.training_data import Data, as_instances, n_examples
from ampjax.tuning.budget import Budget
from ampjax.tuning.built_graphs import BuiltGraphs
from ampjax.tuning.predictor import Predictor, cores_here
from ampjax.tuning.search import Search
from ampjax.tuning.search_space import GraphOrBuilder, Space, candidates, check_space, full_space
from ampjax.tuning.trial import Goal
from ampjax.tuning.tuned import Tuned
from ampjax.utils.progress import Reporter
from ampjax.utils.setting_checks import at_least

HELD_OUT = 1000
"""Instances that are held out for validation at most, where the user gives none: a tenth of all, if that is fewer."""


def tune(
    graph: GraphOrBuilder,
    data: Data,
    tx: optax.GradientTransformation | None = None,
    *,
    target: float | None = None,
    metric: str = "loss",
    smallest: bool | None = None,
    budget_s: float = 60.0,
    valid: Data | None = None,
    space: Space | None = None,
    cost: Callable[[Plan], Cost] | None = None,
    cores: float | None = None,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Tuned:
    """Finds the settings with which a graph trains to a target soonest, within a budget of seconds.

    First it measures this machine (`amp.profile`) and simulates all choices (`amp.simulate`): their throughput, staleness and updates. The
    choices that no other one beats in all three are the front. Then some choices of the front are tried: short training runs from the same
    parameters, in turn. After each round those end that are in the worse half by their learning curves, and other choices enter that look promising
    after the trials so far. A choice is judged by its seconds of training alone; compiling only uses up the budget, and all choices of a plan share their
    kernels.

    Args:
      graph: A closed graph; or a function that builds one. The function gets the names in `space` that are not settings as arguments: with
        `space={"copies": (1, 2)}` it is called as `graph(copies=2)`.
      data: Training instances.
      tx: The optax transform of every parameterised node that has none of its own; by default `optax.adam(1e-3)`.
      target: The value of the metric to reach; None to get as far as possible.
      metric: A validation metric: `loss`, or a metric that the losses' bodies return.
      smallest: Whether smaller values of the metric are better; None lets its name tell (`nll`, `rmse` and the like fall, `accuracy` rises).
      budget_s: The most seconds for everything, compilations included. It ends at most a simulated pass later, or, as the first plan is made
        in any case, the compilation of that: a second, ten without a compilation cache.
      valid: Validation instances; by default a tenth of `data`, 1000 at most, is held out.
      space: Values to choose from, by name; settings that it does not name get usual values (`{"workers": (1,)}` keeps one worker).
      cost: As for `Trainer`: tunes for the machine of a cost model and judges by seconds of virtual time; the budget is in seconds of this
        machine.
      cores: Cores that host and devices share, for the simulation; by default those of this machine.
      seed: The seed of parameters, of the order of instances and of the choices that are tried.
      progress: Whether to show progress.
      **options: Settings that do not vary, as for `Trainer`.

    Returns:
      The best choice, as settings for `Trainer`, and all others, as a table, a picture and data.

    Raises:
      GraphError: If the graph is not closed, or has parameters in a table in host memory, which all trials would train.
      SettingsError: If there is no instance, a setting or a name in `space` is wrong, the metric is unknown, the target is no number or is
        met before training, or the budget ended before a single choice was tried.
      MessageError: If a message, payload or state function does not fit.

    Warns:
      TuningWarning: If no trial has reached the target.
    """
    require_transform(tx)
    _check_target(target)
    at_least("seed", seed, 0)
    _check_cores(cores)
    if space is not None and not isinstance(space, Mapping):
        fix = 'Write for example `space={"workers": (1, 2)}`.'
        raise SettingsError("tune, `space`", "values by name, or None", f"{space!r}", fix)
    options = {**_rename_settings(options), "seed": seed}
    space = _rename_settings(space or {})
    check_space(graph, space, options)
    budget = Budget(budget_s)
    graphs = BuiltGraphs(graph)
    some = graphs.of(
        {
            name: values[0]
            for name, values in space.items()
            if name not in Settings.__dataclass_fields__
        }
    )
    if metric not in (names := {"loss", *metrics_of_graph(some)}):
        fix = "Choose one of these, or let the loss's body return it."
        raise SettingsError("tune, `metric`", f"one of {sorted(names)}", f"{metric!r}", fix)
    train, held_out = _split(some, data, valid, seed)
    per_instance = n_examples(data) / len(data)
    with Reporter(progress) as reporter:
        settings_given = (
            graphs,
            tx,
            train,
            held_out,
            cost,
            cores or cores_here(),
            budget,
            per_instance,
            reporter,
        )
        search = Search(
            Predictor(*settings_given),
            Goal(metric, target, smallest),
            budget,
            np.random.default_rng(seed),
        )
        tuned = search.run(
            candidates(full_space(some, train, space, options), options),
            seed,
        )
    if target is not None and not tuned.is_reached:
        _warn(tuned)
    return tuned


def _check_target(target: Any) -> None:
    if target is not None and not (_is_number(target) and math.isfinite(target)):
        fix = "Give the value to reach, or None to get as far as possible."
        raise SettingsError("tune, `target`", "a finite number, or None", f"{target!r}", fix)


def _check_cores(cores: Any) -> None:
    if cores is not None and not (_is_number(cores) and 0 < cores < math.inf):
        fix = "Leave it out for the cores of this machine."
        raise SettingsError("tune, `cores`", "a finite number above 0, or None", f"{cores!r}", fix)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rename_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names that `Settings` has: the arXiv version's `min_update_frequency` is an interval."""
    result = {}
    for name, v in settings.items():
        result["min_update_interval" if name == "min_update_frequency" else name] = v
    return result


def _split(
    graph: Graph,
    data: Data,
    valid: Data | None,
    seed: int,
) -> tuple[Instances, Instances]:
    """Training instances in a random order, and validation instances."""
    whole = as_instances(graph, data)
    order = np.random.default_rng(seed).permutation(len(whole))
    if valid is not None:
        return Subset(whole, order), as_instances(graph, valid, "validation data")
    if len(whole) < 2:
        fix = "Pass more, or some for validation as `valid`."
        raise SettingsError(
            "tune, `data`", "two instances at least, one of them for validation", "one", fix
        )
    n = min(HELD_OUT, max(1, len(whole) // 10))
    return Subset(whole, order[n:]), Subset(whole, order[:n])


def _warn(tuned: Tuned) -> None:
    """Warns that no trial has reached the target."""
    tried = tuned.best.tried
    assert tried is not None
    warning = SettingsError(
        "tune, `target`",
        f"{tuned.metric} {tuned.target:g} within {tuned.budget_s:g} s",
        f"{tried.best:.4g} at best, after {tried.seconds:.3g} s of training",
        "The settings are those that came closest; raise `budget_s`, or choose a nearer target.",
    )
    warnings.warn(str(warning), TuningWarning, stacklevel=3)
