"""Decisions of a run: the branch that a message takes by a value, and the number of rounds of a loop that reads a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ampjax.frontend.draft.index_spaces import Guard, IndexSpace, Region
from ampjax.frontend.draft.values import Computed, Elements, Flow, Value


class Decision:
    """A decision of the run: the way of messages at the place of the decision, and at any element of a sequence there.

    Args:
      region: Where it is made.
      make: Notes how a message goes on: from the message and its region inside to a wire for each branch; after these may come one
        before the branches.
      space: The rounds, or the visits, that it makes of each row; None where a row goes on as it is.

    Attributes:
      region: Where it is made.
      space: The rounds, or the visits.
      guards: For each branch, where it is chosen; none for rounds.
    """

    def __init__(
        self,
        region: Region,
        make: Callable[[Flow, Region], list[Flow]],
        space: IndexSpace | None = None,
    ):
        self.region = region
        self.space = space
        self._make = make
        self.guards: Sequence[Guard] = ()
        self._sent: dict[int, tuple[Flow, list[Flow]]] = {}
        if space is not None:
            space.decision = self

    def choices(self, field: str, n: int) -> Sequence[Guard]:
        """Notes a decision between branches."""
        self.guards = [Guard(field, number, None, self) for number in range(n)]
        return self.guards

    def send(self, flow: Flow) -> list[Flow]:
        """Sends messages on, each once.

        Args:
          flow: The messages, of the place where the decision is made or of a space inside.
        """
        if id(flow) not in self._sent:
            region_after = Region(
                self.inside(flow.region.space),
                flow.region.guards,
            )
            self._sent[id(flow)] = flow, self._make(flow, region_after)
        return self._sent[id(flow)][1]

    def inside(self, space: IndexSpace) -> IndexSpace:
        """The space of the same elements after the decision."""
        if self.space is None or space is self.region.space:
            return self.space or space
        assert space.parent is not None
        return self.inside(space.parent).copy_of(space)

    def take(self, value: Value, branch: int) -> Value:
        """Brings a value from before the decision into a branch: values of the instance stay known, computed sequences are sent on.

        Args:
          value: The value.
          branch: The branch; 0 for rounds.
        """
        if not isinstance(value, Elements):
            return value
        space = self.inside(value.space)
        element = value.element
        if isinstance(element, Computed):
            return Elements(
                space,
                Computed(self.send(element.flow)[branch], element.part),
            )
        return Elements(space, self.take(element, branch))
