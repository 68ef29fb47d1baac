"""`python -m experiments bench NAME`: what can be measured, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import subcommand

from experiments.bench import engine, memory, parallax, simulate, start_up, tracing, workers, workload, workloads

BenchCommand = (
    Annotated[workloads.SentimentBench, subcommand("sentiment")]
    | Annotated[workloads.ListReductionBench, subcommand("list-reduction")]
    | Annotated[workloads.WikinerBench, subcommand("wikiner")]
    | Annotated[workloads.Qm9Bench, subcommand("qm9")]
    | Annotated[workloads.Babi15Bench, subcommand("babi15")]
    | Annotated[workloads.MnistBench, subcommand("mnist")]
    | Annotated[workloads.PermutationBench, subcommand("permutation")]
    | Annotated[engine.EngineOptions, subcommand("engine")]
    | Annotated[tracing.TracingOptions, subcommand("tracing")]
    | Annotated[start_up.StartUpBench, subcommand("start-up")]
    | Annotated[memory.MemoryBench, subcommand("memory")]
    | Annotated[workers.WorkersBench, subcommand("workers")]
    | Annotated[parallax.ParallaxBench, subcommand("parallax")]
    | Annotated[simulate.SimulateOptions, subcommand("simulate")]
)


@dataclass(frozen=True)
class Bench:
    """Ours beside other programs, and the engine alone.

    Args:
      what: What is measured.
    """

    what: BenchCommand


WORKLOADS = (
    workloads.SentimentBench,
    workloads.ListReductionBench,
    workloads.WikinerBench,
    workloads.Qm9Bench,
    workloads.Babi15Bench,
    workloads.MnistBench,
    workloads.PermutationBench,
)
MAINS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(WORKLOADS, workload.main),
    engine.EngineOptions: engine.main,
    tracing.TracingOptions: tracing.main,
    start_up.StartUpBench: start_up.main,
    memory.MemoryBench: memory.main,
    workers.WorkersBench: workers.main,
    parallax.ParallaxBench: parallax.main,
    simulate.SimulateOptions: simulate.main,
}
