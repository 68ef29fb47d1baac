"""Unfolds instances wave by wave, and names the instance that caused an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.instances import Messages
from ampjax.plan.planner import Plan
from ampjax.unfold.programs import Programs
from ampjax.unfold.rules.arrival_ranks import ArrivalRanks
from ampjax.unfold.unfolding import Unfolding
from ampjax.unfold.workspace import Workspace


class Unfolder:
    """Unfolds instances of a plan, some after others.

    Args:
      plan: The plan.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.ranks = ArrivalRanks(plan)
        self._spare: list[Workspace] = []

    def start(
        self,
        ids: Sequence[int] | np.ndarray,
        purpose: str = "train",
        assume: bool = False,
    ) -> Unfolding:
        """Begins to unfold instances. `end` or `give_up` must follow.

        Args:
          ids: `[n]`: their numbers.
          purpose: See `Unfolding`.
          assume: See `Unfolding`.

        Returns:
          The unfolding; nothing has been pumped.
        """
        workspace = self._spare.pop() if self._spare else Workspace(self.plan)
        return Unfolding(self.plan, workspace, ids, purpose, assume)

    def programs(self, unfolding: Unfolding) -> Programs:
        """Gives the programs as far as known; later programs are longer, and begin in the same way.

        Returns:
          The programs.
        """
        return unfolding.programs(self.ranks)

    def end(self, unfolding: Unfolding) -> Programs:
        """Ends an unfolding, which can't be used any more.

        Returns:
          Its programs.
        """
        programs = unfolding.programs(self.ranks)
        self.give_up(unfolding)
        return programs

    def give_up(self, unfolding: Unfolding) -> None:
        """Ends an unfolding whose programs are not needed."""
        if unfolding.workspace.empty:
            unfolding.workspace.clear()
            self._spare.append(unfolding.workspace)

    def unfold(
        self,
        batches: Sequence[Mapping[str, Messages]],
        ids: Sequence[int] | np.ndarray,
        purpose: str = "train",
        assume: bool = False,
    ) -> Unfolding:
        """Unfolds some instances as far as is known.

        Args:
          batches: The instances' messages, as `Instances.gather` gives them; several batches are pumped one after the other.
          ids: The instances' numbers.
          purpose: See `Unfolding`.
          assume: See `Unfolding`.

        Returns:
          The unfolding; more may be pumped, or chosen.

        Raises:
          MessageError: As `Unfolding.pump` does; of several instances it tells of the first that is refused when it is unfolded alone.
        """
        unfolding = self.start(ids, purpose, assume)
        try:
            for batch in batches:
                unfolding.pump(batch)
        except MessageError:
            # One of several has failed: each is unfolded alone, and the guilty one raises its own
            # error.
            if len(ids) > 1:
                for place in range(len(ids)):
                    alone = [
                        {pump: select_instances(m, [place]) for pump, m in batch.items()}
                        for batch in batches
                    ]
                    self.end(self.unfold(alone, [ids[place]], purpose, assume))
            raise
        return unfolding


def select_instances(messages: Messages, places: Sequence[int]) -> Messages:
    """Selects the messages of some instances.

    Args:
      messages: The messages of one pump.
      places: The places of the instances that are wanted; they get the places 0, 1, ... in this order.

    Returns:
      Their messages.
    """
    # New places by old ones; -1 for instances that are left out.
    new = np.full(
        max(int(messages.instance.max(initial=0)), *places) + 1,
        -1,
    )
    new[list(places)] = np.arange(len(places))
    place = new[messages.instance]
    mine = np.flatnonzero(place >= 0)
    n = len(messages.instance)
    columns = {}
    for name, values in messages.fields.items():
        columns[name] = np.broadcast_to(np.asarray(values), (n,))[mine]
    if isinstance(messages.payload, list):
        payload = [messages.payload[i] for i in mine.tolist()]
    else:
        payload = messages.payload[mine] if messages.sizes is None else messages.payload
    if messages.sizes is None:
        sizes = None
    else:
        sizes = np.asarray(messages.sizes)[mine]
    return Messages(payload, place[mine], columns, sizes)
