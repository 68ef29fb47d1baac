"""The settings of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampjax.plan.stages import ArenaKey
from ampjax.sched.decisions.parameter_changes import ReplicaSync
from ampjax.sched.decisions.policy import Policy, balanced

NO_ROW_LIMIT = 1 << 30
"""The limit of arenas that have none, in rows."""


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """Throttle, intervals, policy, limits.

    It has more than twelve fields: each is one choice of the user, and has a default.

    Args:
      max_active_keys: Training instances in flight at most; so for inference.
      min_admission: Instances are admitted when there is room for so many at once.
      max_dispatch_size: Rows in one dispatch at most (a single ragged message may hold more).
      intervals: `min_update_interval` of each parameterised node.
      budgets: `max_staleness` of each parameterised node that has one.
      stalest: `drop_staler_than` of each parameterised node that has it.
      stashed: Nodes whose adjoint uses the forward pass's parameters.
      estimated: Nodes whose adjoint uses an estimate of these.
      policy: Which queue goes next.
      flush_every: For synchronous and pipeline training: instances between updates by the controller; None for asynchronous.
      joint: For synchronous and pipeline training: the nodes of each group that one step updates together, by the group's name.
      sync: How replicas are kept together.
      capacities: First size of each arena, in rows; others start at `capacity`.
      capacity: See `capacities`.
      limits: Largest size of each arena, in rows; others have `limit`.
      limit: See `limits`.
      program_bytes: Bytes of programs that are kept for instances that come again (`cache`).
      history: Dispatches that `story` can tell of, if they are not large (`past`).
    """

    max_active_keys: int = 16
    min_admission: int = 1
    max_dispatch_size: int = 64
    intervals: Mapping[str, int] = field(default_factory=dict)
    budgets: Mapping[str, int] = field(default_factory=dict)
    stalest: Mapping[str, int] = field(default_factory=dict)
    stashed: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    policy: Policy = balanced
    flush_every: int | None = None
    joint: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sync: ReplicaSync = field(default_factory=ReplicaSync)
    capacities: Mapping[ArenaKey, int] = field(default_factory=dict)
    capacity: int = 256
    limits: Mapping[ArenaKey, int] = field(default_factory=dict)
    limit: int = NO_ROW_LIMIT
    program_bytes: int = 1 << 28
    history: int = 2000
