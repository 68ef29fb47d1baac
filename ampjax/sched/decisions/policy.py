"""Dispatch policies: small pure functions that choose which of a worker's ready queues goes next. Users can pass their own.

To add one of ours: a function with `@Ranked`, from a queue (`choosing/queue_views.py` says what it shows) to a rank, or a `Policy`; and

* its name in `POLICIES` below, by which users and tests of the scheduler find it, in `docs/reference/settings.md`, and in a row of
  `docs/concepts/asynchrony.md`; a test of its order in `tests/sched/test_policy.py`;
* if it is to be compiled, a number in `sched/layout/columns.py` and `choosing/policy_numbers.py`, and its order in `loops/choose.py`: in `rank`, or in
  `choose` if it lets workers wait. Without a number it is called as a user's policy is, which is right but slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ampjax.errors import SettingsError
from ampjax.sched.decisions.dispatch import FORWARD
from ampjax.sched.layout import columns as c

if TYPE_CHECKING:
    from ampjax.sched.choosing.queue_views import Queue

Policy = Callable[[Sequence["Queue"], int], "Queue | None"]
"""`policy(queues, now)`: chooses among a worker's queues that are not empty and can be dispatched; `now` is the number of the next dispatch.

The queues come in the order in which they ceased to be empty. None lets the worker wait; the policy is asked again when something has moved. If
all workers would wait, `backward_first` decides."""

Rank = tuple[int, ...]
"""Compared item by item; the lowest goes first."""


class Ranked:
    """A policy that takes the queue of the lowest rank; among equals, the one that ceased to be empty first.

    A worker with a thousand queues need not rank all of them again, only those that messages have come to or left.

    Args:
      rank: From a queue to its rank. It must depend on nothing but that queue, and not on its `under_way`, which also changes while none of its
        messages comes or goes.
    """

    def __init__(self, rank: Callable[[Queue], Rank]):
        self.rank = rank
        functools.update_wrapper(self, rank)

    def __call__(self, queues: Sequence[Queue], now: int) -> Queue:
        """Chooses among queues that are not empty and can be dispatched.

        Returns:
          The queue of the lowest rank.
        """
        return min(queues, key=self.rank)


@Ranked
def backward_first(q: Queue) -> Rank:
    """The paper's policy: backward messages before forward ones, the oldest first (AMPNet, Algorithm 1).

    Copies to another device go first of all: they cost their worker next to nothing, and another worker may be waiting for them. (In the paper
    a message is on its way as soon as it has been computed.)

    Args:
      q: A queue.

    Returns:
      Its rank.
    """
    return not q.stage.kind.is_transfer, not q.backward, q.born


@Ranked
def largest(q: Queue) -> Rank:
    """The fullest dispatch first: the queue with most ready rows, up to a full dispatch; backward first among equals.

    Args:
      q: A queue.

    Returns:
      Its rank.
    """
    return -q.ready, not q.backward, q.born


@Ranked
def balanced(q: Queue) -> Rank:
    """The default policy: most ready rows first; a backward row counts as one and a half, and waiting counts, too.

    Large dispatches cost less per row. Backward messages free memory, let the controller admit instances and keep staleness low.
    A queue whose first message has waited for `n` dispatches counts as if it had `n / 4` more rows, so that no queue waits for ever. With
    every dispatch all queues have waited for one more; so the difference between two queues depends only on when their first messages
    became ready, and a rank need not be updated.

    Args:
      q: A queue.

    Returns:
      Its rank.
    """
    return (
        q.born - q.ready * (c.BACKWARD_ROW_WEIGHT if q.backward else c.ROW_WEIGHT),
        not q.backward,
        q.born,
    )


@Ranked
def wavefront(q: Queue) -> Rank:
    """Stage by stage: forward messages from the pumps to the losses, then backward ones from the losses to the pumps, so instances stay in step.

    The messages of one stage go in few, large dispatches, most of all if instances also enter together (`min_admission`). This is the
    order of depth in which dynamic batching runs a minibatch (Looks et al. 2017; Neubig et al. 2017), applied to all instances in flight.

    Args:
      q: A queue.

    Returns:
      Its rank.
    """
    return q.backward, -q.stage.number if q.backward else q.stage.number, q.born


def one_forward_one_backward(queues: Sequence[Queue], now: int) -> Queue | None:
    """Backward first; a stage sends no more messages forward than the number of workers between the stage and the losses.

    Further instances wait before the first stage and not halfway, where each would make the others' gradients staler. Workers are just as
    busy (the schedule of PipeDream, Narayanan et al. 2019): with 8 in flight, a perceptron of four layers on four devices has a
    mean staleness of 1.2 updates instead of 2.8 at the same throughput. Use it for graphs without loops: in a loop a stage's messages wait for
    one another.

    Args:
      queues: The queues of one worker that can be dispatched.
      now: The number of the next dispatch.

    Returns:
      The queue that is taken; None lets the worker wait.
    """
    open_ones = []
    for q in queues:
        if q.direction != FORWARD or q.backward or q.under_way < q.stage.workers_ahead:
            open_ones.append(q)
    return backward_first(open_ones, now) if open_ones else None


POLICIES: dict[str, Policy] = {
    "backward_first": backward_first,
    "largest": largest,
    "balanced": balanced,
    "wavefront": wavefront,
    "one_forward_one_backward": one_forward_one_backward,
}
"""The policies that the setting `policy` knows by name."""


def find_policy(policy: str | Policy) -> Policy:
    """Finds a policy.

    Args:
      policy: The name of one in `POLICIES`, or a function.

    Returns:
      The policy.

    Raises:
      SettingsError: If there is none of that name.
    """
    if callable(policy):
        return policy
    if policy not in POLICIES:
        raise SettingsError(
            "setting `policy`",
            f"one of {list(POLICIES)}, or a function",
            f"{policy!r}",
            "Choose one of these names.",
        )
    return POLICIES[policy]
