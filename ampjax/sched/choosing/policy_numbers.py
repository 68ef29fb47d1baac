"""Numbers of policies: compiled loops know ampjax's own policies by number; a user's policy is called with views of the queues (`backlog`)."""

from __future__ import annotations

from ampjax.sched.decisions.policy import (
    Policy,
    backward_first,
    balanced,
    largest,
    one_forward_one_backward,
    wavefront,
)
from ampjax.sched.layout import columns as c

NUMBERS: dict[Policy, int] = {
    backward_first: c.BACKWARD_FIRST,
    largest: c.LARGEST,
    balanced: c.BALANCED,
    wavefront: c.WAVEFRONT,
    one_forward_one_backward: c.ONE_FORWARD_ONE_BACKWARD,
}
"""`loops.choose` branches on these numbers: `rank` for an order of queues, `choose` for letting workers wait. A new number (the next one, in
`sched.layout.columns`) needs its branch in one of them; without one it has the order of `backward_first`."""

BY_ASKING = -1
"""The number of any other policy, which has to be called."""


def number_of(policy: Policy) -> int:
    """Gives the number by which compiled loops know a policy.

    Returns:
      Its number in `NUMBERS`; `BY_ASKING` if it has none.
    """
    return NUMBERS.get(policy, BY_ASKING)
