"""Stacks of tables kept as one: tables with rows, optimizer rules, splits and reads alike.

A step costs something for each table: messages, kernel calls, arguments of its program. So hundreds of small tables cost as one large one does.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import optax

from ampjax.cluster.hosts.resources import Resources
from ampjax.errors import TableError
from ampjax.optim.split_by_rows import FEWEST_STACKED, split_rows, stack_name
from ampjax.optim.split_transform import Split
from ampjax.parallel.config.config import ParallaxConfig
from ampjax.parallel.config.leaf_paths import names, readable
from ampjax.parallel.config.partitioner import PartitionGroup
from ampjax.parallel.config.row_dtypes import row_dtype_of
from ampjax.parallel.homes.column_reads import Readings
from ampjax.sparse.detection.detect import Analysis
from ampjax.sparse.detection.row_axes import table_shape
from ampjax.sparse.detection.table_views import MAX_ROWS
from ampjax.sparse.rewrite.pulled_step import SparseProgram

Tree = Any
Axes = Mapping[str, tuple[int, ...]]


def by_shape(
    analysis: Analysis,
    axes: Axes,
) -> dict[str, tuple[str, ...]]:
    """Stacks tables whose rows have one shape and dtype, whatever the optimizer does with the tables.

    Args:
      analysis: The variables.
      axes: By table the axes along which its rows are counted.

    Returns:
      By name the tables in a stack, in their order; those that stay alone among them.
    """
    groups: dict[Hashable, list[str]] = {}
    for path, kind in _kinds(analysis, axes).items():
        groups.setdefault(kind, []).append(path)
    stacks = []
    for each in groups.values():
        stacks.append([each] if len(each) >= FEWEST_STACKED else [[path] for path in each])
    result = {}
    for of_group in stacks:
        for paths in of_group:
            result[stack_name(paths)] = tuple(paths)
    return result


def split_and_stack(
    tx: optax.GradientTransformation,
    program: SparseProgram,
    analysis: Analysis,
    params: Tree,
    batch: Tree,
    groups: Mapping[PartitionGroup, int],
    resources: Resources,
    config: ParallaxConfig,
) -> Split:
    """The optimizer cut in two; its rules say which tables are stacked.

    Args:
      tx: An optax transform.
      program: The loss on pulled rows, of the same tables, stacked or not.
      analysis: The variables.
      params: The parameters.
      batch: A replica's part of the first batch.
      groups: Tables that are split alike, and the number of partitions with which they start.
      resources: The machines.
      config: The settings.

    Returns:
      The optimizer's parts.

    Raises:
      TableError: If it does not work row by row on a table.
      SettingsError: If `tx` is no optax transform.
    """
    kinds = _kinds(analysis, program.axes)
    text = names(params)
    readings = Readings(program, config.boundary_between_workers_and_servers)
    for group, n_partitions in groups.items():
        # Tables of fewer partitions than there are servers are spread over servers one by one.
        is_spread = config.run_option == "ar" or n_partitions >= len(resources.servers)
        for path in group.paths:
            apart = group.label if is_spread else path
            narrow = row_dtype_of(config.row_dtype, text[path])
            kinds[path] = kinds[path], narrow, apart, readings.of_variable(path, batch)
    return split_optimizer(tx, program, params, kinds, config.check_finite)


def split_optimizer(
    tx: optax.GradientTransformation,
    program: SparseProgram,
    params: Tree,
    alike: Mapping[str, Hashable],
    check_finite: bool,
) -> Split:
    """Calls `split_rows`; if that fails, the advice names the setting and its tables.

    Args:
      tx: An optax transform.
      program: The loss on pulled rows.
      params: The parameters.
      alike: See `split_rows`.
      check_finite: See `split_rows`.

    Raises:
      TableError: As `split_rows` does.
      SettingsError: As `split_rows` does.
    """
    try:
        return split_rows(
            tx,
            program.as_tables(params),
            tuple(program.axes),
            program.transposed,
            alike,
            check_finite,
        )
    except TableError as error:
        raise TableError(
            readable(error.where),
            error.expected,
            error.got,
            _advice(error, program, names(params)),
        ) from error


def _advice(
    error: TableError,
    program: SparseProgram,
    text: Mapping[str, str],
) -> str:
    """Advice about an optimizer that does not work row by row: for all tables, or for one whose rows are along another axis."""
    for path in program.transposed:
        if f"table `{path}`" in error.where:
            name = text[path]
            return (
                f"Store `{name}` with its rows along the first axis, by which this optimizer goes; "
                f'or keep it dense: `ParallaxConfig(keep_dense=("{name}",))`.'
            )
    quoted = ", ".join(f'"{text[path]}"' for path in program.axes)
    return (
        f"Keep tables dense, as `lamb`, `adafactor` and `muon` need them: `ParallaxConfig(keep_dense=({quoted},))`; "
        "or give them a transform that treats each row for itself (`optax.partition` with `adam` for tables)."
    )


def _kinds(analysis: Analysis, axes: Axes) -> dict[str, Hashable]:
    """By table the shape and dtype of its rows, and a number: a stack has no more rows than can be numbered."""
    kinds: dict[str, Hashable] = {}
    totals: dict[Hashable, int] = {}
    for variable in analysis:
        if variable.path in axes:
            row = table_shape(variable.shape, axes[variable.path])[1:]
            kind = (row, variable.dtype)
            n_rows = variable.n_rows
            full, total = divmod(totals.get(kind, 0), MAX_ROWS)
            if total + n_rows > MAX_ROWS:
                full = full + 1
                total = n_rows
            else:
                full = full
                total = total + n_rows
            totals[kind] = full * MAX_ROWS + total
            kinds[variable.path] = kind, full
    return kinds
