"""Gradient parity: the engine against the reference interpreter, under several schedules (law 2), in training and in inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ampjax.ir.graph import Graph
from ampjax.ir.narrow_floats import narrowest_floats
from ampjax.numerics.array_writes import advice_on_moved_rows
from ampjax.numerics.differences import Verification, tolerance_for
from ampjax.numerics.product_precision import advice_on_rounded_products
from ampjax.testing.engine_run import differences_of, run_engine
from ampjax.testing.reference import reference, with_tables
from ampjax.testing.verification import account, not_looked_at, random_nodes
from ampjax.train.assemble import require_closed
from ampjax.train.initial_params import initial_params
from ampjax.train.settings import Settings
from ampjax.train.training_data import Data, as_instances
from ampjax.utils.compilation_cache import use_compilation_cache
from ampjax.utils.progress import Reporter

SCHEDULES = (
    Settings(max_active_keys=1, max_dispatch_size=1, fuse=False, policy="backward_first"),
    Settings(max_active_keys=64, max_dispatch_size=64),
    Settings(
        max_active_keys=3,
        max_dispatch_size=2,
        workers=2,
        fuse=False,
        policy="largest",
    ),
)
"""One message at a time as in the paper; coalesced and fused; two workers with small dispatches."""


_HOW = {
    "eager": "evaluated operation by operation in float64",
    "jit": "with compiled bodies",
}
"""How the reference evaluates bodies, for the report."""


def verify(
    graph: Graph,
    instances: Data,
    *,
    params: Mapping[str, Any] | None = None,
    schedules: Sequence[Settings] | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    oracle: str = "eager",
    quick: bool = False,
    progress: bool = True,
) -> Verification:
    """Compares training and inference with the composed function and its `jax.grad`, across schedules.

    For training it compares the loss, metrics, gradient rows, every gradient and the gradient norm; for `evaluate` the loss and metrics; for
    `predict` the messages at each sink, with their states. The report says what was skipped. Parameters are frozen, whatever schedules
    and nodes say about updates. Random bodies (such as dropout) get no key in the reference. So a graph with random bodies is reported to
    differ, unless these compute the same with a key.

    What it differentiates is the graph's own composed function. For a compiled model, `compiled.verify` compares with the function that the
    user wrote.

    The reference evaluates bodies operation by operation in float64, so that it shares neither fusions nor rounding with the engine. For
    three sequences, trees, sentences or molecules this takes seconds on a quiet machine, less than the engine's own compilations, and about
    2.5 ms for each further message (each row of a ragged message counts). For hundreds of instances `oracle="jit"` is about ten times as fast, but then
    the compiler of the engine also compiles the reference. A body that fixes float32 (`astype`, `jnp.zeros(n, jnp.float32)`) also rounds in
    the reference. A body whose types no longer fit together in float64 is refused with an error that names it.

    Args:
      graph: A closed graph with at least one loss.
      instances: A few instances.
      params: Parameters by node name; nodes that are left out are initialised from the seed.
      schedules: Settings to try; by default one message at a time, coalesced and fused, and two workers with small dispatches.
      tolerance: Largest difference allowed: max |difference| / max |reference| per leaf. By default 1e-5, or 16 units of rounding of the
        narrowest floats that nodes compute with: 0.02 where some are float16, 0.1 where some are bfloat16.
      seed: Of the initial parameters.
      oracle: How the reference evaluates bodies: `eager` or `jit`.
      quick: Whether to try only the second of the default schedules, in which kernels are fused and dispatches are full.
      progress: Whether to show progress.

    Returns:
      The verdict; it prints as a readable report and is true if all agree.

    Raises:
      SettingsError: If the oracle is unknown, there is no instance, or instances of a model are not what `compiled.data` gives.
      GraphError: If it is no graph, it is still being built, or a body can't be evaluated operation by operation in float64.
    """
    require_closed("verify", graph)
    instances = as_instances(graph, instances, "instances")
    use_compilation_cache()
    tolerance = tolerance_for(narrowest_floats(graph)) if tolerance is None else tolerance
    start = initial_params(graph, dict(params or {}), seed)
    if schedules is not None:
        tried = schedules
    elif quick:
        tried = SCHEDULES[1:2]
    else:
        tried = SCHEDULES
    with Reporter(progress) as reporter:
        with reporter.part("reference", len(instances)) as ended:
            wanted = reference(
                graph, with_tables(graph, start), instances, oracle=oracle, ended=ended
            )
        runs = [run_engine(graph, instances, start, settings, reporter) for settings in tried]
    differences = [differences_of(run, wanted) for run in runs]
    worst = max(value for parts in differences for part in parts.values() for *_, value in part)
    agrees = worst <= tolerance
    verdict = "agrees with" if agrees else "differs from"
    why = "" if agrees else _explanations(random_nodes(graph))
    unseen = not_looked_at(
        graph,
        tried,
        wanted,
        oracle,
        max(run.largest for run in runs),
    )
    report = [
        f"The engine {verdict} jax.grad, {_HOW[oracle]}: largest difference {worst:.1e}, tolerance {tolerance:.0e}.{why}",
        *(
            account(settings, of_schedule, tolerance)
            for settings, of_schedule in zip(tried, differences, strict=True)
        ),
        "Not checked:",
        *(f"  {line}" for line in unseen),
    ]
    return Verification(agrees, worst, "\n".join(report), unseen)


def _explanations(drawing: Sequence[str]) -> str:
    """Collects possible explanations of a difference, each sentence after a blank."""
    reasons = _draws(drawing) if drawing else advice_on_moved_rows(), advice_on_rounded_products()
    return "".join(f" {reason}" for reason in reasons if reason)


def _draws(nodes: Sequence[str]) -> str:
    """Returns the explanation of a difference of random nodes."""
    return f"Random numbers of {', '.join(nodes)} are drawn by the engine alone: to compare, leave them out, such as with a dropout rate of 0."
