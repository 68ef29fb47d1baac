"""`python -m experiments NAME [OPTIONS]`: one sub-command for each experiment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Union

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from ampjax.errors import DataError, GraphError, LimitError, ServerError, SettingsError
from ampjax.train.history import History
from experiments.common import start_up


@dataclass(frozen=True)
class Command:
    """Where an experiment is; its module is imported when it is wanted, since all together take seconds.

    Args:
      module: The module below `experiments` that holds its options.
      options: Their class.
      runs: The module whose `main` runs it; by default the same.
    """

    module: str
    options: str
    runs: str | None = None

    @property
    def type(self) -> type:
        """The class of its options."""
        return getattr(import_module(f"experiments.{self.module}"), self.options)

    @property
    def main(self) -> Callable[[Any], Any]:
        """Runs an experiment with its options."""
        return import_module(f"experiments.{self.runs or self.module}").main


COMMANDS: Mapping[str, Command] = {
    "list-reduction": Command("list_reduction", "ListReductionOptions"),
    "mnist": Command("mnist", "MnistOptions"),
    "sentiment": Command("sentiment", "SentimentOptions"),
    "wikiner": Command("wikiner", "WikinerOptions"),
    "qm9": Command("qm9", "Qm9Options"),
    "babi15": Command("babi15", "Babi15Options"),
    "permutation": Command("permutation", "PermutationOptions"),
    "functions": Command("functions", "FunctionsOptions"),
    "by-hand": Command("by_hand.targets", "ByHandOptions"),
    "sequences": Command("sequences.driver", "SequencesOptions"),
    "virtual-replicas": Command("virtual", "VirtualOptions"),
    "table3": Command("table3", "Table3Options"),
    "appendix-c": Command("appendix_c", "AppendixCOptions"),
    "parallax-table1": Command("parallax.table1", "Table1Options"),
    "parallax-table2": Command("parallax.table2", "Table2Options"),
    "parallax-table3": Command("parallax.table3", "ParallaxTable3Options"),
    "parallax-table4": Command("parallax.table4", "Table4Options"),
    "parallax-table5": Command("parallax.table5", "Table5Options"),
    "parallax-table6": Command("parallax.table6", "Table6Options"),
    "parallax-fig7": Command("parallax.fig7", "Fig7Options"),
    "parallax-fig8": Command("parallax.fig8", "Fig8Options"),
    "parallax-fig9": Command("parallax.fig9", "Fig9Options"),
    "figure1": Command("figure1", "Figure1Options"),
    "figure5a": Command("figure5a", "Figure5aOptions"),
    "figure5b": Command("figure5b", "Figure5bOptions"),
    "scaling": Command("scaling", "ScalingOptions"),
    "staleness": Command("staleness.board", "StalenessOptions"),
    "admission": Command("admission", "AdmissionOptions"),
    "local-sgd": Command("local_sgd.driver", "LocalSgdOptions"),
    "engram": Command("engram.driver", "EngramOptions"),
    "tune": Command("tune", "TuneOptions"),
    "chaos": Command("chaos.driver", "ChaosOptions"),
    "chaos-hosts": Command("chaos.hosts", "ChaosHostsOptions"),
    "chaos-runner": Command("chaos.runner", "ChaosRunnerOptions"),
    "calibrate": Command("calibrate", "CalibrateOptions"),
    "numerics": Command("numerics", "NumericsOptions"),
    "report": Command("report", "ReportOptions"),
    "results": Command("results.driver", "ResultsOptions"),
    **{
        f"bench {name}": Command(
            "bench.workloads", f"{name.title().replace('-', '')}Bench", "bench.workload"
        )
        for name in (
            "sentiment",
            "list-reduction",
            "wikiner",
            "qm9",
            "babi15",
            "mnist",
            "permutation",
        )
    },
    "bench engine": Command("bench.engine", "EngineOptions"),
    "bench tracing": Command("bench.tracing", "TracingOptions"),
    "bench start-up": Command("bench.start_up", "StartUpBench"),
    "bench memory": Command("bench.memory", "MemoryBench"),
    "bench pages": Command("bench.pages", "PagesBench"),
    "bench table-nodes": Command("bench.table_nodes", "TableNodesBench"),
    "bench table-places": Command("bench.table_places", "TablePlacesBench"),
    "bench budgets": Command("bench.budgets", "BudgetsBench"),
    "bench lifetimes": Command("bench.lifetimes", "LifetimesBench"),
    "bench workers": Command("bench.workers", "WorkersBench"),
    "bench hosts": Command("bench.hosts", "HostsBench"),
    "bench parallax": Command("bench.parallax", "ParallaxBench"),
    "bench recommender": Command("bench.recommender", "RecommenderBench"),
    "bench row-dtypes": Command("bench.row_dtypes", "RowDtypesBench"),
    "bench wire": Command("bench.wire", "WireBench"),
    "bench simulate": Command("bench.simulate", "SimulateOptions"),
    "bench control": Command("bench.control", "ControlOptions"),
    "bench unfold": Command("bench.unfold", "UnfoldOptions"),
    "bench front-end": Command("bench.front_end", "FrontEndBench"),
    "bench growth": Command("bench.growth", "GrowthBench"),
    "gpu": Command("gpu", "GpuOptions"),
    "bench batch": Command("bench.batch.driver", "BatchBench"),
    "bench lanes": Command("bench.lanes.driver", "LanesBench"),
}
"""By what is written on the command line. `bench` compares ours with other programs, and measures the engine alone."""


def named(arguments: Sequence[str]) -> str | None:
    """The experiment that a command line begins with."""
    return next(
        (name for n in (2, 1) if (name := " ".join(arguments[:n])) in COMMANDS),
        None,
    )


def parse(arguments: Sequence[str]) -> Any:
    """The chosen experiment's options.

    Raises:
      SystemExit: If the command line can't be read, or asks for help.
    """
    name = named(arguments)
    if name is not None:
        return _read(
            COMMANDS[name].type,
            name,
            arguments[len(name.split()) :],
        )
    bench = list(arguments[:1]) == ["bench"]
    within = {
        name.removeprefix("bench "): c.type
        for name, c in COMMANDS.items()
        if name.startswith("bench ") == bench
    }
    if not bench:
        within["bench"] = Bench
    choices = [
        Annotated[kind, subcommand(name, description=_first(kind))] for name, kind in within.items()
    ]
    return _read(Union[tuple(choices)], "bench" if bench else "", arguments[bench:])  # noqa: UP007 - made of a list


@dataclass(frozen=True)
class Bench:
    """Compares ampjax with other programs, and measures the engine alone; each bench has its own --help."""


def _first(kind: type) -> str:
    """The first paragraph of a class's documentation."""
    return str(kind.__doc__).split("\n\n")[0]


def _read(
    options: Any,
    name: str,
    arguments: Sequence[str],
) -> Any:
    return tyro.cli(
        options,
        prog=f"python -m experiments {name}".strip(),
        description=None if name else "The papers' experiments. Each has its own --help.",
        args=arguments,
        config=(OmitArgPrefixes, OmitSubcommandPrefixes),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one experiment; gives the exit status: 2 for a mistake in options or data, which is told without a traceback; 130 after Ctrl-C."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parse(given)
    command = COMMANDS[str(named(given))]
    devices = getattr(options, "devices", getattr(options, "workers", 1))
    large = command in (COMMANDS["mnist"], COMMANDS["bench batch"])
    # The experiments that `results` starts choose for themselves: what it set in the environment would be the user's choice to them.
    large = large or command == COMMANDS["results"]
    start_up(devices, spread_kernels=large)
    try:
        done = command.main(options)
    except (SettingsError, DataError, GraphError, LimitError, ServerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    runs = done if isinstance(done, list) else []
    if any(isinstance(run, History) and run.interrupted for run in runs):
        return 130
    return 0


def run() -> int:
    """Runs one experiment from the command line; gives the exit status: 141, as other programs do, if nobody reads on (`... --help | head`)."""
    try:
        try:
            return main()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError as error:
        if not isinstance(error.__context__, SystemExit | BrokenPipeError | None):
            raise  # something else had gone wrong
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 1
        )  # Python flushes standard output once more when it ends
        return 141


if __name__ == "__main__":
    sys.exit(run())
