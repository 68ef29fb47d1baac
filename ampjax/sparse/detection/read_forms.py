"""Describes in words how a program reads a table's rows, for the reason that is given for a sparse leaf."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ampjax.sparse.detection.loss_jaxpr import Leaf
from ampjax.sparse.detection.row_axes import LEADING, table_shape
from ampjax.sparse.detection.table_views import TableView


def describe_form(
    leaves: Sequence[Leaf],
    leaf: int,
    axes: tuple[int, ...],
    read: Sequence[TableView],
) -> list[str]:
    """Describes the form in which a table is read, where the read is not simply `table[ids]`.

    Args:
      leaves: The parameters' leaves.
      leaf: The sparse one.
      axes: The axes along which its rows are counted.
      read: The views that its reads read.

    Returns:
      Phrases for the variable's reason; none where there is nothing to say.
    """
    beside = dict.fromkeys(other for view in read for other in view.leaves if other != leaf)
    words = [_rows(leaves[leaf].shape, axes)]
    if beside:
        words.append("joined with " + ", ".join(f"`{leaves[other].path}`" for other in beside))
    elif any(segment.leaf is None for view in read for segment in view.segments):
        words.append("joined with rows that are no table's")
    if any(view.writes for view in read):
        words.append("some rows are overwritten first, and get no gradient")
    return [text for text in words if text]


def _rows(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
) -> str:
    if axes == LEADING:
        return ""
    *outer, n_rows = (shape[a] for a in axes)
    if outer:
        each = "rows" if len(axes) < len(shape) else "numbers"
        return f"rows of a stack of {math.prod(outer)} tables of {n_rows} {each}, read by pairs"
    kind = "columns" if axes == (len(shape) - 1,) else f"parts along axis {axes[0]}"
    return f"{kind} read as rows: the table is {list(table_shape(shape, axes))}"
