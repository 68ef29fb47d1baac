"""The hang doctor: who waits for what, from where it should come, what those last did, and what the throttle says.

It reads the scheduler's parts and changes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ampjax.errors import DeadlockError
from ampjax.ir.control import Group
from ampjax.ir.graph import Node
from ampjax.ir.state import INSTANCE, State
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.explain import Waiting, find_waiting, story
from ampjax.sched.plan import Plan, entries
from ampjax.sched.stages import Stage
from ampjax.sched.traffic import Traffic

SHOWN = 8
"""Who waits, at most, in the error's sentence."""

EXAMINED = 3
"""Of how many of these it is told where their missing messages should come from."""

LATELY = 5
"""Lines of the oldest instance's story."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The scheduler's parts, as they are when nothing moves.

    Args:
      plan: The plan.
      traffic: The messages in existence.
      history: The last dispatches, oldest first.
      max_active_keys: Instances of a kind in flight at most.
      min_admission: Instances that enter at once at least.
    """

    plan: Plan
    traffic: Traffic
    history: Iterable[Dispatch]
    max_active_keys: int
    min_admission: int


def deadlock(s: Snapshot) -> DeadlockError:
    """That nothing can move: who waits for what, and below it what there is to know."""
    found = find_waiting(s.plan, s.traffic.joins, s.traffic.groups)
    shown = "; ".join(map(str, found[:SHOWN])) + (f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
    return DeadlockError(
        f"{s.traffic.inflight.total} instance(s) in flight",
        "messages that can move",
        "none: " + (shown or "an instance whose pumping has not ended"),
        "\n  ".join(["Pump what the nodes wait for, or mend the conditions that route it.", *report(s, found)]),
    )


def report(s: Snapshot, found: list[Waiting] | None = None) -> list[str]:
    """What there is to know about what is in flight, a line each."""
    found = find_waiting(s.plan, s.traffic.joins, s.traffic.groups) if found is None else found
    lines = dict.fromkeys(line for one in found[:EXAMINED] for line in _missing(s, one))
    return [*lines, *strangers(found[:SHOWN]), *_throttle(s), *_lately(s)]


def origins(stage: Stage, port: int) -> dict[Node, tuple[Node, ...]]:
    """The pumps, payload nodes and groups whose messages can arrive at a stage's port, each with the control nodes on the way."""
    found: dict[Node, tuple[Node, ...]] = {}
    passed: set[str] = set()
    stack = [((entries(stage) or stage.wires)[port].source, ())]
    while stack:
        node, way = stack.pop(0)
        if not node.is_control or isinstance(node.op, Group):
            found.setdefault(node, way)
        elif node.name not in passed:
            passed.add(node.name)
            wires = [w for w in node.inputs if w is not None and w.type is not None and not w.type.topology]
            stack += [(w.source, (node, *way)) for w in wires]
    return found


def _missing(s: Snapshot, one: Waiting) -> Iterator[str]:
    """Where the messages that one waits for should come from, and what these nodes last did."""
    for port in one.missing:
        for node, way in origins(one.stage, port).items():
            by = f" by way of {', '.join(f'{n.kind} `{n.name}`' for n in way)}" if way else ""
            place = f"port {one.stage.ports[port].name} of `{one.stage.name}`"
            yield f"{place} is fed by {node.kind} `{node.name}`{by}: {_doings(s, node, one.state)}"


def _doings(s: Snapshot, node: Node, wanted: State) -> str:
    """What of a node's messages waits for an instance, and what the node last did for it."""
    instance, numbers = int(wanted.instance[0]), numbers_of(s.plan, node)
    states = [state for number, state in _held(s) if number in numbers and state.instance[0] == instance]
    more = f" and {len(states) - 1} more" if len(states) > 1 else ""
    waits = f"{states[0]!r}{more} from it waits" if states else f"nothing of instance {instance} from it waits anywhere"
    own = [number for number in numbers if number >= 0 and s.plan.stages[number].kind not in ("group", "transfer")]
    return f"{waits}; {_last(s, own[0], instance)}" if own else waits


def _last(s: Snapshot, number: int, instance: int) -> str:
    for d in reversed([*s.history]):
        if d.stage is not None and d.stage.number == number and (mine := d.states[:, INSTANCE] == instance).any():
            state = State(d.states[mine][:1], s.plan.layout, d.stage.ports[0].type.fields)
            return f"it last ran for it in dispatch {d.number} ({d.direction}, {state!r})"
    return "it has not run for it lately"


def _held(s: Snapshot) -> Iterator[tuple[int, State]]:
    """The messages that wait in joins and groups: the number of what emitted each, and its state."""
    cells = s.traffic.cells
    waiting = [(j, p, state, cell) for j, join in s.traffic.joins.items() for p, state, cell in join.pending()]
    for g, groups in s.traffic.groups.items():
        for group in groups.open.values():
            waiting += [(g, 0, state, cell) for state, cell in group.members]
            waiting += [(g, 1, group.state, group.opener)] if group.state is not None else []
    for stage, port, state, cell in waiting:
        fields = s.plan.stages[stage].ports[port].type.fields
        yield int(cells.stage[cells.owner[cell]]), State(state[None], s.plan.layout, fields)


def numbers_of(plan: Plan, node: Node) -> list[int]:
    """What the cells of a node's messages carry: the number of its stage or pump, and those of the transfers that copy them."""
    pumps = list(plan.graph.pumps)
    own = [-1 - pumps.index(node.name)] if node.name in pumps else [x.number for x in plan.stages if node in x.nodes]
    return own + [x.number for x in plan.stages if x.kind == "transfer" and node in origins(x, 0)]


def strangers(found: list[Waiting]) -> Iterator[str]:
    """Messages of one instance that wait for each other at a node and have different keys."""
    first: dict[tuple[int, int], Waiting] = {}
    told: set[tuple[int, int]] = set()
    for one in found:
        place = one.stage.number, int(one.state.instance[0])
        other = first.setdefault(place, one)
        if one is not other and one.port in other.missing and place not in told:
            told.add(place)
            ports = one.stage.ports
            yield f"the keys at `{one.stage.name}` do not meet: {other.state!r} on port {ports[other.port].name}, {one.state!r} on port {ports[one.port].name}"


def _throttle(s: Snapshot) -> Iterator[str]:
    count = s.traffic.inflight.count
    yield (
        f"in flight: {count[True]} training and {count[False]} inference instance(s), at most {s.max_active_keys} of each; "
        f"they enter {s.min_admission} at once at least"
    )
    queues = sorted(s.traffic.queues.values(), key=lambda queue: queue.stage.number)
    waiting = [f"{q.direction} of `{q.stage.name}` {q.items}" for q in queues if q.items]
    yield "queues: " + (", ".join(waiting[:SHOWN]) if waiting else "empty")


def _lately(s: Snapshot) -> Iterator[str]:
    """The oldest instance's story, as far as it is known."""
    oldest = s.traffic.inflight.oldest
    if oldest is None:
        return
    lines = story(s.plan, s.history, oldest, {})
    yield f"instance {oldest} is the oldest; " + ("lately:" if lines else "nothing of it has been dispatched lately")
    yield from (f"  {line}" for line in lines[-LATELY:])
