"""Reads by number: an element's message goes only to the rows that read the element, so that messages are as many as reads.

The instance says which element each row reads, so both sides know the numbers of the reads: those of one element follow each other. An element makes a
copy for each of its reads; a copy meets the message of the row that reads it by the read's number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.graph_draft import built_wire
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.node_bodies import second
from ampjax.frontend.draft.values import Flow
from ampjax.ir.builders import payload_builders, ragged_builders
from ampjax.ir.state import State

if TYPE_CHECKING:
    from ampjax.frontend.draft.graph_draft import GraphDraft
    from ampjax.frontend.instances.instance_columns import Columns


class Reads:
    """The element of a space that each row of a region reads.

    Args:
      region: The rows that read; the instances say which these are.
      elements: The elements' space.
      read: From the data set to `[rows of the region]`: the element's row in its space, which belongs to the same instance.
      name: A name that no other reads have.
      line: The user's line.
    """

    def __init__(
        self,
        region: Region,
        elements: IndexSpace,
        read: Callable[[Columns], np.ndarray],
        name: str,
        line: str,
    ):
        self.region = region
        self.elements = elements
        self._read = read
        self.name = name
        self.line = line

    def copies(self, draft: GraphDraft, flow: Flow) -> Flow:
        """Notes the nodes that send copies of the elements to the rows that read them.

        Args:
          draft: The graph to be.
          flow: The elements' messages, with the states of their place.

        Returns:
          A copy of what it reads for each row of the region, with the state of that row.
        """
        name = self.name
        line = self.line
        rows = self.region.space
        number = rows.fact(f"{name}_i", Column(rows, self._numbers), f"number of the read ({line})")
        count = self.elements.fact(
            f"{name}_n", Column(self.elements, self._counts), f"how many read it ({line})"
        )
        first = self.elements.fact(
            f"{name}_at", Column(self.elements, self._firsts), f"number of its first read ({line})"
        )
        reader = payload_notes.place(draft, self.region, name, line)
        sent = draft.name(f"{name}/copies")
        met = draft.name(f"{name}/gets")

        def number_read(s: State, i: Any) -> State:
            return s.replace(**{number: getattr(s, first) + i})

        def make() -> Any:
            copies = ragged_builders.flatmap(
                built_wire(flow), lambda s: getattr(s, count), number_read, name=sent
            )
            return payload_builders.npt(met, second, join=(number,))(
                built_wire(reader),
                copies,
            )

        return draft.control(self.region, flow.types, make)

    def _numbers(self, data: Columns) -> np.ndarray:
        """Numbers the reads among those of their instance, `[rows of the region's space]`; -1 for a row without a read."""
        rows = self.region.rows(data)
        read = self._read(data)
        order = np.argsort(read, kind="stable")
        starts = _starts(self._counts(data), self.elements.instances(data))
        numbers_of_reads = np.empty(len(read), np.int64)
        numbers_of_reads[order] = np.arange(len(read)) - starts[read[order]]
        if rows is None:
            return numbers_of_reads
        numbers = np.full(self.region.space.n_rows(data), -1)
        numbers[rows] = numbers_of_reads
        return numbers

    def _counts(self, data: Columns) -> np.ndarray:
        """`[elements]`: how many rows read each."""
        return np.bincount(
            self._read(data),
            minlength=self.elements.n_rows(data),
        )

    def _firsts(self, data: Columns) -> np.ndarray:
        """Finds the number of each element's first read among those of its instance, `[elements]`."""
        counts = self._counts(data)
        return np.cumsum(counts) - counts - _starts(counts, self.elements.instances(data))


def _starts(counts: np.ndarray, instances: np.ndarray) -> np.ndarray:
    """`[elements]`: how many reads there are of the instances before each element's own."""
    before = np.cumsum(counts) - counts
    return before[np.searchsorted(instances, instances)]


def as_messages(
    draft: GraphDraft,
    flow: Flow,
    name: str,
    line: str,
) -> Flow:
    """A graph's nodes, which travel in one message, as a message each."""
    nodes = flow.region.space
    assert nodes.parent is not None
    each = nodes.parent.along(f"{nodes.dimension}_row", nodes.sizes)
    called = draft.name(f"{name}/rows")

    def alone(s: State, i: Any) -> State:
        return s.replace(
            **dict.fromkeys(each.facts, 0),
            **{each.index: i},
        )

    def make():
        return ragged_builders.ungroup(built_wire(flow), state=alone, name=called)

    return payload_notes.refresh_states(
        draft,
        draft.control(
            flow.region.within(each),
            flow.types,
            make,
            is_fresh=False,
        ),
        name,
        line,
    )
