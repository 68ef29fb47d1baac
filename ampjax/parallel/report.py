"""Fills an explanation: what was found, predicted, chosen and measured, for each variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.parallel.config.leaf_paths import names
from ampjax.parallel.equivalence.compare import Equivalence
from ampjax.parallel.explanation import Explanation, VariableReport
from ampjax.parallel.planning.build_runner import RunnerSetup, Step
from ampjax.parallel.planning.compiled_collectives import Collective, collectives
from ampjax.parallel.planning.partition_search import SearchResult
from ampjax.parallel.planning.transfer_costs import predict_bytes
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.parallel.steps.synchronous_steps import DenseStep, SparseStep


def explain(
    setup: RunnerSetup,
    plan: VariablePlan,
    step: Step,
    alpha: Mapping[str, float],
    steps: int,
    searches: Sequence[SearchResult],
    compiled: bool,
    equivalence: Equivalence,
) -> Explanation:
    """The explanation of a runner.

    Args:
      setup: What it is trained with.
      plan: What became of its variables.
      step: What makes its steps.
      alpha: By table, the sum of alphas over steps.
      steps: How many.
      searches: Partition searches that have ended.
      compiled: Whether to compile the program for its collectives.
      equivalence: What came of the comparison with the joined batch.
    """
    reduced = _all_reduced(step) if compiled else None
    variables = [_variable(setup, plan, step, v, alpha, steps, reduced) for v in plan.analysis]
    resources = setup.resources
    used = {server for own in variables for server in own.placement}
    n_servers = len(resources.servers) if used else 0
    sizes = (len(resources.machines), len(resources.devices), n_servers)
    return Explanation(variables, *sizes, list(searches), equivalence)


def _variable(
    setup: RunnerSetup,
    plan: VariablePlan,
    step: Step,
    variable: Any,
    alpha: Mapping[str, float],
    steps: int,
    reduced: list[Collective] | None,
) -> VariableReport:
    path, n = variable.path, len(setup.resources.machines)
    text = names(plan.program.params)[path]
    nbytes = int(np.prod(variable.shape, dtype=np.int64)) * variable.dtype.itemsize
    own = step.tables.get(path)
    mean = plan.alpha.get(path) if not (own and steps) else alpha[path] / steps
    at_servers = own is not None and setup.config.run_option != "ar"
    placement = tuple(own[0].placement) if at_servers and own else plan.servers.get(path, ())
    if own is not None or setup.config.dense_at_servers:
        measured = setup.wire.traffic().per_machine(path if own else text) / steps if steps else None
    else:
        measured = _ring_bytes(setup, variable, reduced)
    return VariableReport(
        text,
        variable.shape,
        str(variable.dtype),
        variable.sparse,
        variable.reason,
        mean,
        predict_bytes(nbytes, mean if own is not None else None, n),
        measured,
        plan.choice[path],
        own[0].n_partitions if own else 1,
        placement,
    )


def _all_reduced(step: Step) -> list[Collective] | None:
    """The AllReduces of the compiled step; None where it has none, or did not run yet."""
    lowered = None
    if isinstance(step, DenseStep | SparseStep) and step.last_shapes is not None:
        lowered = step.program().lower(*step.last_shapes)
    return None if lowered is None else [c for c in collectives(lowered.compile().as_text()) if c.kind == "all-reduce"]


def _ring_bytes(setup: RunnerSetup, variable: Any, reduced: list[Collective] | None) -> float | None:
    """A machine's bytes for a dense variable: the AllReduce of its size in the program, by the ring formula over replicas."""
    if reduced is None:
        return None
    size = int(np.prod(variable.shape, dtype=np.int64))
    found = next((c for c in reduced if int(np.prod(c.shape, dtype=np.int64)) == size), None)
    if found is None:
        return 0.0
    reduced.remove(found)  # each belongs to one variable
    # One ring through all machines: inside a machine nothing travels between machines.
    return found.ring_bytes(len(setup.resources.devices)) if len(setup.resources.machines) > 1 else 0.0
