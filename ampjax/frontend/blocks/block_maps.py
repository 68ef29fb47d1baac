"""`map` over pairs as steps of a block, for functions of nothing but operations of JAX."""

from __future__ import annotations

from collections.abc import Sequence

from ampjax.frontend.batches.programs_of_rows import View
from ampjax.frontend.batches.room_bodies import Body, is_static
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.blocks.block_bodies import BlockBody
from ampjax.frontend.blocks.grids import Grid, grid_of
from ampjax.frontend.blocks.level_grids import level_grid_of
from ampjax.frontend.combinators.tracing import Traced
from ampjax.frontend.deduction.equations import Name, flatten
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.values import Constant, Elements, Static


def block_map(
    body: Body,
    space: IndexSpace,
    function: Traced,
    closed: Sequence[Value],
    rows: Sequence[Value],
    of_whole: bool = False,
) -> list[Value] | None:
    """Computes a function for each pair; None where pairs are to be rows.

    Args:
      body: The rows around.
      space: The pairs' space.
      function: The function.
      closed: What it closes over.
      rows: What it gets of a pair.
      of_whole: Whether it is one of several operations on whole sequences, so that what the host knows of pairs alone is computed in the block, too.
    """
    grid = block_in(body, space)
    is_sequence = [isinstance(value, Elements) for value in (*closed, *rows)]
    if grid is None or any(is_sequence) or not _is_plain(function):
        return None
    are_in_block = [is_in_block(body, grid, value) for value in rows]
    is_known = of_whole and all(map(is_static, rows))
    if not any(are_in_block) and not is_known:
        return None
    if not all(map(grid.takes, rows)):
        return None
    inner = BlockBody(body.low, body.block, grid)
    results = inner.run(
        function,
        [*closed, *rows],
    )
    found: list[Value] = []
    for value, variable in zip(results, function.jaxpr.outvars, strict=True):
        if isinstance(value, Constant):
            value = Static(body.low.host.column(value, inner.region, variable.aval))
        found.append(Elements(space, value))
    return found


def block_in(body: Body, space: IndexSpace) -> Grid | None:
    """The block of a space of pairs that a room's rows have; None where a computed value chooses rows, or in a loop in a loop.

    Args:
      body: The rows.
      space: The pairs' space.
    """
    room = body.room
    if space.parent is not room.space:
        return None
    if room.mask is None and room.frame is body.low.root:
        return grid_of(body.low, space)
    return level_grid_of(body.low, room, space)


def is_in_block(body: Body, grid: Grid, value: Value) -> bool:
    """Whether a value of pairs is one of the elements across, or is computed in their block.

    Args:
      body: Where it is read.
      grid: The block.
      value: The value.
    """
    if isinstance(value, View) and grid.axes(value.rows) != "":
        return True
    return isinstance(value, Static | View) and value in body.low.across and grid.takes(value)


def _is_plain(function: Traced) -> bool:
    """Says whether a function contains no combinator, and draws no numbers."""
    names = {variable: Name(variable.aval) for variable in function.variables}
    equations, _ = flatten(function, dict(names))
    for equation in equations:
        if equation.call is not None or equation.draws or equation.reads is not None:
            return False
    return True
