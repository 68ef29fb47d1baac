"""The tables of a plan: made once, and lengthened when full."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.plan.ladders import padded_sizes
from ampjax.plan.planner import Plan
from ampjax.plan.stages import HOST, ArenaKey, Stage
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables

FIRST_LENGTH = 1024
"""Lines that tables have at first."""


class PlanArenas:
    """The arenas of a plan by number: the arenas of stages' outputs, and in host memory the arenas of pumps.

    Args:
      plan: The plan.

    Attributes:
      keys: The key of each.
      of_stage: For each stage the arena of each output.
      of_pump: The arena of each pump.
    """

    def __init__(self, plan: Plan):
        numbers: dict[ArenaKey, int] = {}
        types = [node.op.type for node in plan.graph.pumps.values()]
        pumps: list[ArenaKey] = [(HOST, t.shape, t.dtype.name) for t in types]
        self.of_pump = [numbers.setdefault(key, len(numbers)) for key in pumps]
        outputs = [stage.arenas if stage.kind.is_dispatched else () for stage in plan.stages]
        of_stage = []
        for of_outputs in outputs:
            of_stage.append([numbers.setdefault(key, len(numbers)) for key in of_outputs])
        self.of_stage = of_stage
        self.keys = list(numbers)


def make_tables(plan: Plan, settings: SchedulerSettings, arenas: PlanArenas) -> Tables:
    """Makes the tables of a plan, without programs and with nothing in flight.

    Returns:
      The tables.
    """
    params, starts, edge_types = _params(plan)
    width = max(
        (len(stage.parameterised) for stage in plan.stages),
        default=0,
    )
    return Tables(
        stages=_stages(plan, settings, arenas, starts),
        params=params,
        nodes=_nodes(plan, settings),
        lines=np.zeros((0, c.OWED + 1), np.int32),
        inputs=np.zeros((0, c.LENGTH + 1), np.int32),
        outputs=np.zeros((0, c.RANK + 1), np.int32),
        edges=np.zeros((0, edge_types), np.int32),
        picks=np.zeros(0, np.int32),
        live=np.zeros((0, c.SEEN + width), np.int32),
        instances=np.zeros((0, c.PURPOSE + 1), np.int64),
        queues=_queues(plan, settings),
        clock=np.zeros(c.WOKEN + plan.workers, np.int64),
        slots=np.zeros(0, np.int32),
        free=np.zeros(
            (len(arenas.keys), c.FREE),
            np.int32,
        ),
        active=np.zeros(
            (plan.workers, c.QUEUES + c.N_DIRECTIONS * len(plan.stages)),
            np.int32,
        ),
        idle=np.zeros((2, 0), np.int32),
        ranges=np.full((4, 64), -1, np.int64),
    )


def _stages(
    plan: Plan, settings: SchedulerSettings, arenas: PlanArenas, starts: Mapping[int, int]
) -> np.ndarray:
    n_stages = len(plan.stages)
    n_pumps = len(arenas.of_pump)
    width = max(
        (len(numbers) for numbers in arenas.of_stage),
        default=0,
    )
    table = np.zeros(
        (n_stages + n_pumps, c.ARENA + max(width, 1)),
        np.int64,
    )
    for stage, numbers in zip(plan.stages, arenas.of_stage, strict=True):
        if not stage.kind.is_dispatched:
            kind = c.GROUPS
        elif stage.outputs:
            kind = c.COMPUTES
        else:
            kind = c.ENDS
        head = (
            kind,
            stage.worker,
            len(stage.ports),
            len(numbers),
            stage.kind.is_transfer,
            stage.workers_ahead,
        )
        stashes = any(node in settings.stashed for node in stage.params)
        drops = any(node in settings.stalest for node in stage.params)
        traits = stashes, drops, stage.route_by is not None, stage.ragged
        table[stage.number, : c.SIZES] = (
            *head,
            starts[stage.number],
            len(stage.parameterised),
            *traits,
        )
        table[stage.number, c.SIZES : c.ARENA] = padded_sizes(
            stage,
            c.N_SIZES,
        )
        table[stage.number, c.ARENA : c.ARENA + len(numbers)] = numbers
    for pump, arena in enumerate(arenas.of_pump):
        table[-1 - pump, c.KIND] = c.PUMPS
        table[-1 - pump, c.N_OUTPUTS] = 1
        table[-1 - pump, c.ARENA] = arena
    return table


def _params(plan: Plan) -> tuple[np.ndarray, dict[int, int], int]:
    """The parameterised nodes of all stages `[p, 2]`, sharers of parameters side by side; the line where each stage's begin; the number of edge types of all chains."""
    numbers = {node: number for number, node in enumerate(plan.graph.parameterised)}
    rows: list[tuple[int, int]] = []
    starts = {}
    edge_types = 0
    for stage in plan.stages:
        starts[stage.number] = len(rows)
        for node in stage.parameterised:
            edge_type = stage.edge_type_of.get(node.name)
            others = c.OF_INPUT if stage.chain is None else c.OF_OUTPUT
            rows.append(
                (numbers[node.params_name], others if edge_type is None else edge_types + edge_type)
            )
        edge_types += n_edge_types(stage)
    return np.array(rows, np.int64).reshape(-1, 2), starts, edge_types


def n_edge_types(stage: Stage) -> int:
    """Counts the edge types of a stage's chain.

    Returns:
      How many; 0 for a stage without a chain.
    """
    return 0 if stage.chain is None else len(stage.chain.edge_types)


def _nodes(plan: Plan, settings: SchedulerSettings) -> np.ndarray:
    most_kept = max(settings.budgets.values(), default=c.NO_BUDGET) + 1
    nodes = np.zeros(
        (len(plan.graph.parameterised), c.AWAITED + most_kept),
        np.int64,
    )
    for number, node in enumerate(plan.graph.parameterised):
        if settings.flush_every is not None:
            nodes[number, c.INTERVAL] = c.NEVER
        else:
            nodes[number, c.INTERVAL] = settings.intervals.get(node, 1)
        nodes[number, c.BUDGET] = settings.budgets.get(
            node,
            c.NO_BUDGET,
        )
        nodes[number, c.STALEST] = settings.stalest.get(
            node,
            c.NO_BUDGET,
        )
        nodes[number, c.MEETS] = bool(settings.sync.every) and bool(
            plan.graph.parameterised[node].options.replica_of
        )
    return nodes


def _queues(plan: Plan, settings: SchedulerSettings) -> np.ndarray:
    queues = np.zeros(
        (c.N_DIRECTIONS * len(plan.stages), c.MOST_TAKEN_ROWS + 1),
        np.int64,
    )
    queues[:, c.ACTIVE_AT] = -1
    for stage in plan.stages:
        for direction in (c.FORWARD, c.BACKWARD, c.INFER):
            limit_queue(
                queues[c.N_DIRECTIONS * stage.number + direction],
                stage,
                direction,
                most_rows(stage, settings.max_dispatch_size),
            )
    return queues


def most_rows(stage: Stage, most: int) -> int:
    """Counts the rows that a dispatch of a stage may hold.

    Args:
      stage: The stage.
      most: How many dispatches of other stages may hold.

    Returns:
      The least of that and of its nodes' `max_dispatch_size`.
    """
    return min([most, *(node.options.max_dispatch_size or most for node in stage.nodes)])


def limit_queue(
    queue: np.ndarray,
    stage: Stage,
    direction: int,
    most: int,
) -> None:
    """Sets the limits of one dispatch of a queue: rows and messages, by the side that makes its kernel large.

    Args:
      queue: The queue's line, to be written.
      stage: Its stage.
      direction: Its direction, by number.
      most: How many rows.
    """
    forth = direction != c.BACKWARD
    collects = forth and stage.kind.collects
    makes_rows = collects or (forth and stage.kind.by_topology and not stage.aligned)
    queue[c.MAX_ROWS] = most
    queue[c.MAX_IN] = c.UNLIMITED if collects else most
    queue[c.MAX_ITEMS] = most if forth and stage.kind.reduces else c.UNLIMITED
    queue[c.MAX_OUT] = most if makes_rows else c.UNLIMITED


def lengthen_table(
    array: np.ndarray,
    n: int,
    axis: int = 0,
) -> np.ndarray:
    """Makes an array long enough.

    Args:
      array: The array.
      n: How long it must be, at least.
      axis: Along which axis.

    Returns:
      The array itself if it is long enough; else one that begins with it and ends in zeros, at least twice as long.
    """
    if n <= array.shape[axis]:
        return array
    shape = list(array.shape)
    shape[axis] = max(n, 2 * array.shape[axis], FIRST_LENGTH)
    new = np.zeros(shape, array.dtype)
    new[tuple(slice(0, size) for size in array.shape)] = array
    return new
