"""The keys that the engine has drawn random numbers with, by places in the model: so the function itself can draw the same."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from ampjax.engine.kernels.stage_program import row_key
from ampjax.frontend.combinators.draw_places import DrawPlace
from ampjax.frontend.draft.graph_draft import Drawing
from ampjax.ir.nodes import Node
from ampjax.ir.state import INSTANCE
from ampjax.plan.row_seeds import RowSeeds
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import INFER, Dispatch
from ampjax.sched.scheduler import Scheduler
from ampjax.trace.instruments import Instrument


class DrawnKeys(Instrument):
    """Notes which rows draw while a pass trains.

    Args:
      drawings: By node, where in the model it draws.
      scheduler: Decides.
      seeds: The pass's.
    """

    def __init__(
        self,
        drawings: Mapping[str, Drawing],
        scheduler: Scheduler,
        seeds: RowSeeds,
    ):
        self._drawings = drawings
        self._scheduler = scheduler
        self._seeds = seeds
        self._found: dict[tuple[int, DrawPlace], tuple[str, int, int]] = {}

    def key(self, instance: int, place: DrawPlace) -> jax.Array:
        """The key that was drawn with.

        Args:
          instance: The instance's number.
          place: Where the model draws, and for which elements.
        """
        role, seed, step = self._found[instance, place]
        return jax.random.fold_in(
            row_key(role, np.uint32(seed)),
            step,
        )

    def decided(self, dispatch: Dispatch) -> None:
        """A worker got a dispatch."""
        if dispatch.stage >= 0:
            stage = self._scheduler.plan.stages[dispatch.stage]
        else:
            stage = None
        if stage is None or not stage.random or dispatch.direction == INFER:
            return
        contents = self._scheduler.contents
        states = contents.states(dispatch)
        sizes = contents.sizes(dispatch)
        edges = contents.edges(dispatch)
        if edges is None:
            rows = [sizes]
        else:
            rows = [edges.n_rows, *edges.counts.T]
        for nodes, seeds, elements in zip(
            _nodes(stage), self._seeds.of(states, sizes, edges), rows, strict=True
        ):
            for node in nodes:
                if node.role in self._drawings:
                    self._note(node.role, states, seeds, elements)

    def _note(
        self,
        role: str,
        states: np.ndarray,
        seeds: np.ndarray,
        sizes: np.ndarray | None,
    ) -> None:
        """Notes the rows of some messages at a node."""
        drawing = self._drawings[role]
        layout = self._scheduler.plan.layout
        spaces = []
        for space in reversed(drawing.space.carrier.around()):
            if space.parent is not None:
                spaces.append(space)
        if sizes is None:
            n_rows = np.ones(len(states), np.int64)
        else:
            n_rows = sizes
        message = np.repeat(np.arange(len(states)), n_rows)
        row = np.arange(len(message)) - np.repeat(np.cumsum(n_rows) - n_rows, n_rows)
        columns = [states[message, layout.column(space.index)] for space in spaces]
        numbers = np.stack(
            [states[message, INSTANCE], row, seeds, *columns],
            axis=1,
        ).tolist()
        for instance, own, seed, *elements in numbers:
            number_in = dict(zip(spaces, elements, strict=True))
            uses = []
            for space, number in number_in.items():
                if space.uses:
                    uses.append(space.uses[number].path)
            each = [number for space, number in number_in.items() if not space.uses] + (
                [] if sizes is None else [own]
            )
            for step, place in drawing.places:
                for use in uses:
                    place = place.of_use(len(use) - 1, use[-1])
                self._found[instance, place.of_each(each)] = role, seed, step


def _nodes(stage: Stage) -> list[list[Node]]:
    """Groups a stage's nodes: all together; for a chain the nodes on rows, then the nodes on the edges of each type."""
    if stage.chain is None:
        return [list(stage.nodes)]
    return [
        list(stage.row_nodes),
        *(list(edge_type.nodes) for edge_type in stage.chain.edge_types),
    ]
