"""Counts read from programs: rows of each arena, rows of work, messages by stage; the counts of a dry run, with nothing run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.unfold.programs import Programs
from ampjax.unfold.rules.edges import EdgeIndex
from ampjax.unfold.unfolder import Unfolder

ArenaRows = dict[ArenaKey, int]


@dataclass(frozen=True, eq=False)
class InstanceNeeds:
    """The needs of some instances: rows of arenas, rows of work, edges.

    Args:
      each: See `demand`.
      work: See `work`.
      edges: For the stages of chains, by number: the rows of each of their messages `[m]`, and its `DispatchEdges.loads` `[m, edge types + 1]`.
    """

    each: dict[ArenaKey, np.ndarray]
    work: np.ndarray
    edges: dict[int, tuple[np.ndarray, np.ndarray]]

    def largest(self, n: int) -> np.ndarray:
        """Finds the instances with the most work.

        Returns:
          Their positions, those with the most work first.
        """
        return np.argsort(-self.work, kind="stable")[:n]


def needs(
    plan: Plan,
    batches: Sequence[Mapping[str, Messages]],
    ids: Sequence[int] | np.ndarray,
    purpose: str = "train",
) -> InstanceNeeds:
    """Unfolds some instances, and counts their needs; payloads' choices are the ones that nodes assume.

    Args:
      plan: The plan.
      batches: The instances' messages, as `Instances.gather` gives them; several batches are pumped one after the other.
      ids: The instances' numbers, no two the same.
      purpose: What they are run for, one of `passes.PURPOSES`.

    Returns:
      What they need.

    Raises:
      MessageError: As `Unfolder.unfold` does.
    """
    unfolder = Unfolder(plan)
    unfolding = unfolder.unfold(batches, ids, purpose, assume=True)
    programs = unfolder.programs(unfolding)
    edges = {}
    for number in programs.edges:
        mine = np.flatnonzero(programs.stage == number)
        if len(mine):
            rows = programs.rows[mine].astype(np.int64)
            index = EdgeIndex(plan.stages[number], unfolding.workspace.topologies)
            edges[number] = (
                rows,
                index.of(
                    programs.instance_of[mine],
                    rows,
                ).loads(rows),
            )
    unfolder.give_up(unfolding)
    return InstanceNeeds(demand(plan, programs), work(plan, programs), edges)


def demand(
    plan: Plan,
    programs: Programs,
) -> dict[ArenaKey, np.ndarray]:
    """Counts the rows that instances need of each device arena if nothing is freed before the instances have ended.

    Returns:
      For each arena `[k]` int64.
    """
    rows_of: dict[ArenaKey, np.ndarray] = {}
    place = programs.instance_of
    for number in np.unique(programs.stage[programs.stage >= 0]).tolist():
        mine = programs.stage == number
        for key in plan.stages[number].arenas if plan.stages[number].kind.is_dispatched else ():
            rows = np.bincount(
                place[mine],
                programs.size[mine],
                programs.n_instances,
            ).astype(np.int64)
            rows_of[key] = rows_of.get(key, 0) + rows
    return rows_of


def work(plan: Plan, programs: Programs) -> np.ndarray:
    """Counts the rows that stages take in for instances.

    Returns:
      `[k]` int64.
    """
    groups = [stage.number for stage in plan.stages if not stage.kind.is_dispatched]
    runs = (programs.stage >= 0) & ~np.isin(programs.stage, groups)
    return np.bincount(
        programs.instance_of[runs], programs.rows[runs], programs.n_instances
    ).astype(np.int64)


def messages(plan: Plan, programs: Programs) -> dict[str, int]:
    """Counts the messages that each stage takes in, without groups, which are never dispatched.

    Args:
      plan: The plan.
      programs: The programs of some instances.

    Returns:
      Messages by the stage's name.
    """
    of_stages = dict.fromkeys(
        (stage.name for stage in plan.stages if stage.kind.is_dispatched),
        0,
    )
    counts = np.bincount(
        programs.stage[programs.stage >= 0],
        minlength=len(plan.stages),
    ).tolist()
    for stage, n in zip(plan.stages, counts, strict=True):
        if stage.kind.is_dispatched:
            of_stages[stage.name] += n  # copies of one wire to several ports share a name
    return of_stages
