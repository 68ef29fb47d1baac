"""Fills an explanation for each variable: findings, predictions, choices and measurements."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ampjax.parallel.config.leaf_paths import names
from ampjax.parallel.explanation import Explanation, VariableReport
from ampjax.parallel.planning.build_runner import RunnerSetup, Step
from ampjax.parallel.planning.compiled_collectives import Collective, collectives
from ampjax.parallel.planning.partition_search import SearchResult
from ampjax.parallel.planning.transfer_costs import predict_bytes
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.parallel.runner_model import BuiltModel
from ampjax.parallel.steps.synchronous_steps import DenseStep, SparseStep
from ampjax.sparse.detection.detect import Variable


@dataclass
class StepTotals:
    """Sums over the steps so far, of which reports give means.

    Args:
      steps: How many steps.
      alpha: By table, the sum of the shares of its rows that a replica touched.
    """

    steps: int = 0
    alpha: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, alpha: Mapping[str, float]) -> None:
        """Adds one step.

        Args:
          alpha: By table, the share of its rows that a replica touched in the step.
        """
        self.steps += 1
        self.alpha.update(alpha)


def explain(
    model: BuiltModel,
    totals: StepTotals,
    searches: Sequence[SearchResult],
    *,
    compiled: bool,
) -> Explanation:
    """The explanation of a runner.

    Args:
      model: Its model.
      totals: Sums over its steps.
      searches: Partition searches that have ended.
      compiled: Whether to compile the program once more, to read the bytes of its AllReduces.

    Returns:
      A table to print, with one entry for each variable.
    """
    reduced = _all_reduced(model.step) if compiled else None
    variables = [_variable(model, totals, variable, reduced) for variable in model.plan.analysis]
    resources = model.setup.resources
    used = set()
    for variable in variables:
        for server in variable.placement:
            used.add(server)
    n_servers = len(resources.servers) if used else 0
    sizes = (len(resources.machines), len(resources.devices), n_servers)
    return Explanation(variables, *sizes, list(searches), model.watch.found)


def _variable(
    model: BuiltModel, totals: StepTotals, variable: Variable, reduced: list[Collective] | None
) -> VariableReport:
    setup = model.setup
    plan = model.plan
    path = variable.path
    steps = totals.steps
    text = names(plan.program.params)[path]
    nbytes = int(np.prod(variable.shape, dtype=np.int64)) * variable.dtype.itemsize
    name = plan.table_of.get(path)
    if name is None:
        table = None
    else:
        table = model.step.tables[name][0]
    if table is not None and steps:
        alpha = totals.alpha[path] / steps
    else:
        alpha = plan.alpha.get(path)
    at_servers = table is not None and setup.config.run_option != "ar"
    if at_servers and table is not None:
        placement = tuple(table.placement)
    else:
        placement = plan.servers.get(path, ())
    if table is not None or setup.config.dense_at_servers:
        if name is None:
            share = 1.0
        else:
            share = _share(plan, totals, name, path)
        if steps:
            measured = share * setup.wire.traffic().per_machine(name or text) / steps
        else:
            measured = None
    else:
        measured = _ring_bytes(setup, variable, reduced)
    return VariableReport(
        path=text,
        shape=variable.shape,
        dtype=str(variable.dtype),
        sparse=variable.sparse,
        reason=variable.reason,
        alpha=alpha,
        predicted=predict_bytes(
            nbytes, None if table is None else alpha, len(setup.resources.machines)
        ),
        measured=measured,
        choice=plan.choice[path],
        partitions=1 if table is None else table.n_partitions,
        placement=placement,
    )


def _share(
    plan: VariablePlan,
    totals: StepTotals,
    table: str,
    path: str,
) -> float:
    """A variable's share of the bytes of its table: that of the rows that were touched."""
    touched = {}
    for p, (first, end) in plan.program.stacks[table].spans.items():
        touched[p] = totals.alpha[p] * (end - first)
    if total := sum(touched.values()):
        return touched[path] / total
    return 0.0


def _all_reduced(step: Step) -> list[Collective] | None:
    """Lists the AllReduces of the compiled step; None where there are none, or the step has not run yet."""
    lowered = None
    if isinstance(step, DenseStep | SparseStep) and step.last_shapes is not None:
        lowered = step.program().lower(*step.last_shapes)
    if lowered is None:
        return None
    result = []
    for c in collectives(lowered.compile().as_text()):
        if c.kind == "all-reduce":
            result.append(c)
    return result


def _ring_bytes(
    setup: RunnerSetup, variable: Variable, reduced: list[Collective] | None
) -> float | None:
    """A machine's bytes for a dense variable: the AllReduce of its size in the program, by the ring formula over replicas."""
    if reduced is None:
        return None
    size = int(np.prod(variable.shape, dtype=np.int64))
    match = next(
        (c for c in reduced if int(np.prod(c.shape, dtype=np.int64)) == size),
        None,
    )
    if match is None:
        return 0.0
    reduced.remove(match)  # each belongs to one variable
    # One ring through all machines: inside a machine nothing travels between machines.
    if len(setup.resources.machines) > 1:
        return match.ring_bytes(len(setup.resources.devices))
    return 0.0
