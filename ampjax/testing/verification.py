"""The account that `verify` gives of its comparisons, and of the parts left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ampjax.ir.graph import Graph
from ampjax.numerics.differences import Difference, difference_table
from ampjax.testing.engine_run import has_sinks
from ampjax.testing.reference_result import Reference
from ampjax.train.settings import Settings


def account(
    settings: Settings, differences: Mapping[str, Sequence[Difference]], tolerance: float
) -> str:
    """Describes one schedule's comparison, and the size of the differences; with a table of all if one is too large.

    Args:
      settings: The schedule.
      differences: All differences, by what was run.
      tolerance: Largest difference allowed.
    """
    s = settings
    name = f"max_active_keys={s.max_active_keys}, max_dispatch_size={s.dispatch_limit}, workers={s.workers}, {s.policy}"
    every = []
    for part in differences.values():
        for difference in part:
            every.append(difference)
    if not max(value for *_, value in every) <= tolerance:
        return f"{name}\n{difference_table(every, tolerance)}"
    training, evaluation, predictions = (
        differences[run] for run in ("training", "evaluate", "predict")
    )
    n_leaves = len(training) - len(evaluation) - 3
    n_metrics = max(len(evaluation) - 1, 0)
    seen = [_part(f"loss, gradient norm and {_count(n_leaves, 'gradient')}", training)]
    if evaluation:
        metrics = f" and {_count(n_metrics, 'metric')}" if n_metrics else ""
        seen.append(_part(f"`evaluate`: loss{metrics}", evaluation))
    if predictions:
        seen.append(_part(f"`predict`: {_count(len(predictions), 'sink')}", predictions))
    return f"{name}: {'; '.join(seen)}"


def _part(compared: str, differences: Sequence[Difference]) -> str:
    return f"{compared}, at most {max(value for *_, value in differences):.1e} apart"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def not_looked_at(
    graph: Graph,
    schedules: Sequence[Settings],
    wanted: Reference,
    oracle: str,
    largest: int,
) -> tuple[str, ...]:
    """Lists the parts that a comparison leaves open, a line each."""
    random = random_nodes(graph)
    unseen = [
        "updates and optimizers, and the averaging of replicas: parameters were frozen",
        f"dispatches of more than {_count(largest, 'row')}: give more instances to fill larger ones",
        "user-written controllers (`Trainer(controller=...)`)",
    ]
    if all(s.weights == "current" for s in schedules):
        unseen.append('adjoints with the parameters of the forward pass (`weights="stashed"`)')
    if random:
        unseen.append(
            f"random numbers of {', '.join(random)}: the reference gives their bodies `key=None`"
        )
    if not has_sinks(graph):
        unseen.append("`predict`: the graph has no sink")
    if not wanted.metrics:
        unseen.append("metrics: no loss has any")
    if oracle == "jit":
        unseen.append("mistakes of XLA's that the reference shares: its bodies were compiled, too")
    return tuple(unseen)


def random_nodes(graph: Graph) -> list[str]:
    """The names of the nodes whose bodies draw random numbers, in backquotes."""
    return [f"`{name}`" for name, node in graph.nodes.items() if node.draws]
