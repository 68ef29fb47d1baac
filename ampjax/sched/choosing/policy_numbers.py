"""Policies: those of ours have numbers, by which compiled loops compare queues; users' are asked with views of the queues (`backlog`)."""

from __future__ import annotations

from ampjax.sched import columns as c
from ampjax.sched.decisions.policy import Policy, backward_first, balanced, largest, one_forward_one_backward, wavefront

NUMBERS: dict[Policy, int] = {
    backward_first: c.BACKWARD_FIRST,
    largest: c.LARGEST,
    balanced: c.BALANCED,
    wavefront: c.WAVEFRONT,
    one_forward_one_backward: c.ONE_FORWARD_ONE_BACKWARD,
}
"""`loops.choose` branches on these numbers: a new one needs a branch there, or it gets the order of `backward_first`."""

BY_ASKING = -1
"""A policy that has no number."""


def number_of(policy: Policy) -> int:
    """Gives the number by which compiled loops know a policy.

    Args:
      policy: The policy.

    Returns:
      Its number in `NUMBERS`; `BY_ASKING` if it has none.
    """
    return NUMBERS.get(policy, BY_ASKING)
