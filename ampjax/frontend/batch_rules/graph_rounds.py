"""Rounds of messages over graphs, as many as each example says: in rows that lie as around the loop, so that no level has tables of edges of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.choice_steps import mask_rows
from ampjax.frontend.batch_rules.while_steps import MaskedRounds, rounds
from ampjax.frontend.batches.programs_of_rows import Run
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.batches.row_tables import RowTables
from ampjax.frontend.combinators.graph_combinators import PROPAGATE
from ampjax.frontend.combinators.tracing import Call, Traced
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.values import Elements


def is_in_rounds(
    body: Body,
    call: Call,
    init: Sequence[Value],
    rows: Sequence[Value],
) -> bool:
    """Whether a loop can go on in rounds: over states of all nodes, with messages, and alike in each round.

    Args:
      body: Where the loop is.
      call: The loop.
      init: Its carry at the beginning.
      rows: What each round is given of sequences.
    """
    (step,) = call.functions
    kinds = {each.kind for each in calls(step.jaxpr)}
    k = call.options["n_carry"]
    return (
        body.room.frame is body.low.root
        and len(step.jaxpr.outvars) == k
        and any(isinstance(value, Elements) for value in init)
        and PROPAGATE in kinds
        and not any(kind.is_ordered for kind in kinds)
        and _ignores_rows(step, len(rows))
    )


def _ignores_rows(step: Traced, n_rows: int) -> bool:
    """Whether a loop's function uses no element of a sequence, such as the number of a round."""
    given = step.variables[len(step.variables) - n_rows :]
    return not any(variable in step.used for variable in given)


def graph_rounds(
    body: Body,
    call: Call,
    operands: Sequence[Value],
    space: IndexSpace,
) -> list[Value]:
    """Adds such a loop.

    Args:
      body: Where.
      call: The loop.
      operands: What it closes over, its carry at the beginning, and sequences.
      space: The space of its rounds.

    Returns:
      The carry after it.
    """
    (step,) = call.functions
    (n_closed,) = call.n_closed
    k = call.options["n_carry"]
    closed = operands[:n_closed]
    unused = operands[n_closed + k :]
    around = body.space
    root = body.low.root
    place = body.room.place

    def counts(tables: RowTables) -> np.ndarray:
        own = tables.rows(*place)
        found = np.zeros(own.shape, np.int32)
        found[own >= 0] = space.lengths(tables.data)[own[own >= 0]]
        return found

    def levels(tables: RowTables) -> np.ndarray:
        most = int(counts(tables).max(initial=0))
        n = tables.rounded((space, around, "rounds"), most)
        return np.zeros((tables.n_batches, n), np.int8)

    n_rounds = body.low.slot(("rounds of", space, around), root, counts)
    most = body.low.slot(("levels of", space, around), root, levels)

    def goes_on(run: Run, number: Any) -> Any:
        return jnp.asarray(run.slots[n_rounds]) > number + 1

    def turn(there: Body, carry: list[Value]) -> list[Value]:
        return there.run(
            step,
            [*closed, *carry, *(_any_row(x) for x in unused)],
        )

    given = MaskedRounds(
        mask_rows(body, lambda run: jnp.asarray(run.slots[n_rounds]) > 0),
        operands[n_closed : n_closed + k],
        [variable.aval for variable in step.jaxpr.outvars],
        turn,
        most,
        goes_on,
        # the host knows how many rounds there are, so few or none are not needed
        runs_empty=True,
    )
    return rounds(body, call, given)


def _any_row(xs: Value) -> Value:
    """An element of a sequence, for a function without any use for one."""
    return xs.element if isinstance(xs, Elements) else xs
