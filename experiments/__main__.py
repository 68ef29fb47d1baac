"""`python -m experiments NAME [OPTIONS]`: one sub-command for each experiment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from ampjax.errors import DataError, GraphError, LimitError, SettingsError
from ampjax.history import History
from experiments import (
    appendix_c,
    babi15,
    calibrate,
    figure1,
    figure5a,
    figure5b,
    list_reduction,
    mnist,
    permutation,
    qm9,
    report,
    scaling,
    sentiment,
    table3,
    virtual,
    wikiner,
)
from experiments.appendix_c import AppendixCOptions
from experiments.babi15 import Babi15Options
from experiments.bench import commands as bench
from experiments.calibrate import CalibrateOptions
from experiments.common import start_up
from experiments.figure1 import Figure1Options
from experiments.figure5a import Figure5aOptions
from experiments.figure5b import Figure5bOptions
from experiments.list_reduction import ListReductionOptions
from experiments.mnist import MnistOptions
from experiments.parallax import fig7, fig8, fig9, table1, table2, table4, table5, table6
from experiments.parallax import table3 as parallax_table3
from experiments.permutation import PermutationOptions
from experiments.qm9 import Qm9Options
from experiments.report import ReportOptions
from experiments.scaling import ScalingOptions
from experiments.sentiment import SentimentOptions
from experiments.table3 import Table3Options
from experiments.virtual import VirtualOptions
from experiments.wikiner import WikinerOptions

Command = (
    Annotated[ListReductionOptions, subcommand("list-reduction")]
    | Annotated[MnistOptions, subcommand("mnist")]
    | Annotated[SentimentOptions, subcommand("sentiment")]
    | Annotated[WikinerOptions, subcommand("wikiner")]
    | Annotated[Qm9Options, subcommand("qm9")]
    | Annotated[Babi15Options, subcommand("babi15")]
    | Annotated[PermutationOptions, subcommand("permutation")]
    | Annotated[VirtualOptions, subcommand("virtual-replicas")]
    | Annotated[Table3Options, subcommand("table3")]
    | Annotated[AppendixCOptions, subcommand("appendix-c")]
    | Annotated[table1.Table1Options, subcommand("parallax-table1")]
    | Annotated[table2.Table2Options, subcommand("parallax-table2")]
    | Annotated[parallax_table3.ParallaxTable3Options, subcommand("parallax-table3")]
    | Annotated[table4.Table4Options, subcommand("parallax-table4")]
    | Annotated[table5.Table5Options, subcommand("parallax-table5")]
    | Annotated[table6.Table6Options, subcommand("parallax-table6")]
    | Annotated[fig7.Fig7Options, subcommand("parallax-fig7")]
    | Annotated[fig8.Fig8Options, subcommand("parallax-fig8")]
    | Annotated[fig9.Fig9Options, subcommand("parallax-fig9")]
    | Annotated[Figure1Options, subcommand("figure1")]
    | Annotated[Figure5aOptions, subcommand("figure5a")]
    | Annotated[Figure5bOptions, subcommand("figure5b")]
    | Annotated[ScalingOptions, subcommand("scaling")]
    | Annotated[CalibrateOptions, subcommand("calibrate")]
    | Annotated[ReportOptions, subcommand("report")]
    | Annotated[bench.Bench, subcommand("bench")]
)

MAINS: dict[type, Callable[[Any], Any]] = {
    ListReductionOptions: list_reduction.main,
    MnistOptions: mnist.main,
    SentimentOptions: sentiment.main,
    WikinerOptions: wikiner.main,
    Qm9Options: qm9.main,
    Babi15Options: babi15.main,
    PermutationOptions: permutation.main,
    VirtualOptions: virtual.main,
    Table3Options: table3.main,
    AppendixCOptions: appendix_c.main,
    table1.Table1Options: table1.main,
    table2.Table2Options: table2.main,
    parallax_table3.ParallaxTable3Options: parallax_table3.main,
    table4.Table4Options: table4.main,
    table5.Table5Options: table5.main,
    table6.Table6Options: table6.main,
    fig7.Fig7Options: fig7.main,
    fig8.Fig8Options: fig8.main,
    fig9.Fig9Options: fig9.main,
    Figure1Options: figure1.main,
    Figure5aOptions: figure5a.main,
    Figure5bOptions: figure5b.main,
    ScalingOptions: scaling.main,
    CalibrateOptions: calibrate.main,
    ReportOptions: report.main,
    **bench.MAINS,
}


def parse(arguments: Sequence[str] | None = None) -> Any:
    """The chosen experiment's options.

    Raises:
      SystemExit: If the command line can't be read, or asks for help.
    """
    command: Any = tyro.cli(
        Command,  # type: ignore[arg-type]
        prog="python -m experiments",
        description="The papers' experiments. Each has its own --help.",
        args=arguments,
        config=(OmitArgPrefixes, OmitSubcommandPrefixes),
    )
    return command.what if isinstance(command, bench.Bench) else command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one experiment; gives the exit status: 2 for a mistake in options or data, which is told without a traceback; 130 after Ctrl-C."""
    options = parse(arguments)
    devices = getattr(options, "devices", getattr(options, "workers", 1))
    start_up(devices, spread_kernels=isinstance(options, MnistOptions))
    try:
        done = MAINS[type(options)](options)
    except (SettingsError, DataError, GraphError, LimitError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    runs = done if isinstance(done, list) else []
    return 130 if any(isinstance(run, History) and run.interrupted for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
