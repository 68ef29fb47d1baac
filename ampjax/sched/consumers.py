"""Consumers: who consumes what, found out once from a plan's routes, so that nobody need count while messages travel.

Fills in what a stage says of its ports (`direct`, `distinct`, `sole`, `alone`) and of its outputs (`written`, `uses`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ampjax.ir.control import Bcast, Cond, Distribute, Flatmap, Isu, Phi, Repeat, Ungroup
from ampjax.sched.stages import HOST, Leaf, Stage, Step, Targets

MAKES_VIEWS = (Ungroup, Repeat, Distribute)
MAKES_COPIES = (Ungroup, Repeat, Distribute, Flatmap, Bcast)
"""Control nodes after which several messages can share an owner."""

Arrivals = dict[Leaf, list[tuple[int, bool, bool]]]
"""For each port the producers whose messages arrive: whether as views, and whether several of one owner can."""


def trace_owners(stages: Sequence[Stage], pumps: Mapping[int, Targets]) -> None:
    """Finds out for each port whether views can arrive there, and whether two messages can share an owner.

    Args:
      stages: All stages.
      pumps: The route of each pump's messages, by the pump's number as a producer (negative).
    """
    arrivals: Arrivals = {}
    for stage in stages:
        for j in range(len(stage.routes)):
            _follow(stage.routes[j], stage.number, len(stage.routes) > 1 and j > 0, arrivals)
    for producer, route in pumps.items():
        _follow(route, producer, False, arrivals)
    for stage in stages:
        ports = [arrivals.get(Leaf(stage.number, p), []) for p in range(len(stage.ports))]
        stage.direct = tuple(not any(view for _, view, _ in port) for port in ports)
        producers = [producer for port in ports for producer, _, _ in port]
        stage.distinct = len(set(producers)) == len(producers) and not any(
            again for port in ports for _, _, again in port
        )


def _follow(targets: Targets, producer: int, view: bool, arrivals: Arrivals) -> None:
    """Notes each leaf that a producer's messages reach: whether as views, and whether several of one owner can."""
    found: dict[Leaf, tuple[bool, bool]] = {}
    seen: dict[int, tuple[bool, bool]] = {}
    stack = [(targets, view, False)]
    while stack:
        targets, view, again = stack.pop()
        for target in targets:
            if isinstance(target, Leaf):
                old = found.get(target)
                found[target] = (view, again) if old is None else (old[0] or view, True)
                continue
            views, copies = target.kind in MAKES_VIEWS, target.kind in MAKES_COPIES
            old = seen.get(id(target))
            flags = (view or views, again or copies) if old is None else (old[0] or view or views, True)
            if flags != old:
                seen[id(target)] = flags
                stack.extend((t, flags[0], flags[1]) for t in target.targets)
    for leaf, (is_view, is_again) in found.items():
        arrivals.setdefault(leaf, []).append((producer, is_view, is_again))


def find_sole(stages: Sequence[Stage]) -> None:
    """Finds the outputs whose every message is consumed exactly once, and the ports that get such messages only."""
    outputs = {(s.number, j): reached(route, stages) for s in stages for j, route in enumerate(s.routes)}
    # A group's rows are its members', which others may consume too.
    good = {key: once and stages[key[0]].kind != "group" for key, (_, once) in outputs.items()}
    while True:
        shared = {leaf for key, (leaves, _) in outputs.items() if not good[key] for leaf in leaves}
        refused = {
            leaf for leaves, _ in outputs.values() for leaf in leaves if leaf in shared or not _pays(stages, leaf)
        }
        now = {key: good[key] and not any(leaf in refused for leaf in leaves) for key, (leaves, _) in outputs.items()}
        if now == good:
            break
        good = now
    alone = {leaf for key, (leaves, _) in outputs.items() if good[key] for leaf in leaves}
    for stage in stages:
        stage.written = tuple(good[stage.number, j] for j in range(len(stage.routes)))
        stage.sole = tuple(Leaf(stage.number, p) in alone for p in range(len(stage.ports)))


def _pays(stages: Sequence[Stage], leaf: Leaf) -> bool:
    """Whether the adjoint at a port computes a gradient for each message, row by row."""
    stage = stages[leaf.stage]
    port = stage.ports[leaf.port]
    comes_back = stage.kind == "loss" or any(out.is_float for out in stage.outputs)
    return (
        stage.kind in ("rows", "edges", "loss", "transfer") and port.space != HOST and port.type.is_float and comes_back
    )


def count_workers_ahead(stages: Sequence[Stage]) -> None:
    """Counts the workers on the way from each stage to where its messages end."""
    ahead = [list(dict.fromkeys(leaf.stage for r in s.routes for leaf in reached(r)[0])) for s in stages]
    workers: dict[int, set[int]] = {}
    for loop in _loops(ahead):  # stages of a loop have the same ahead of them
        found = {stages[number].worker for number in loop}
        beyond = {id(workers[n]): workers[n] for number in loop for n in ahead[number] if n in workers}
        found.update(*beyond.values())
        workers.update(dict.fromkeys(loop, found))
    for stage in stages:
        stage.workers_ahead = len(workers[stage.number])


def _loops(ahead: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The strongly connected components of a graph, those that are reached before those that reach them (Tarjan 1972).

    Args:
      ahead: For each vertex, those that its edges lead to.
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_: dict[int, None] = {}
    for root in range(len(ahead)):
        path = [] if root in order else [(root, iter(ahead[root]))]
        for vertex, _ in path:
            order[vertex] = lowest[vertex] = len(order)
            open_[vertex] = None
        while path:
            vertex, edges = path[-1]
            for other in edges:
                if other not in order:
                    order[other] = lowest[other] = len(order)
                    open_[other] = None
                    path.append((other, iter(ahead[other])))
                    break
                if other in open_:
                    lowest[vertex] = min(lowest[vertex], order[other])
            else:
                path.pop()
                if path:
                    before = path[-1][0]
                    lowest[before] = min(lowest[before], lowest[vertex])
                if lowest[vertex] == order[vertex]:
                    loop = [open_.popitem()[0]]
                    while loop[-1] != vertex:
                        loop.append(open_.popitem()[0])
                    yield loop


def count_uses(stages: Sequence[Stage], pumps: Mapping[int, Targets]) -> dict[int, int | None]:
    """Finds out how often messages are consumed, where that is certain: then references need no counting.

    Returns:
      What `Stage.uses` is for stages, for each pump.
    """
    known: dict[int, int | None] = {}
    for stage in stages:
        stage.uses = _sum(_uses(stages, route, known) for route in stage.routes)
    pump_uses = {pump: _uses(stages, route, known) for pump, route in pumps.items()}
    routes = [(stage.uses, stage.routes) for stage in stages]
    routes += [(pump_uses[pump], [route]) for pump, route in pumps.items()]
    shared = {leaf for uses, own in routes if uses != 1 for route in own for leaf in reached(route)[0]}
    for stage in stages:
        stage.alone = tuple(Leaf(stage.number, p) not in shared for p in range(len(stage.ports)))
    return pump_uses


def _uses(stages: Sequence[Stage], targets: Targets, known: dict[int, int | None]) -> int | None:
    """How many stages' ports each message of a route reaches in training; `known` holds the routes that have been followed."""
    if id(targets) not in known:
        known[id(targets)] = None  # for a loop of control nodes alone, which leads back here
        known[id(targets)] = _sum(_uses_of(stages, target, known) for target in targets)
    return known[id(targets)]


def _uses_of(stages: Sequence[Stage], target: Leaf | Step, known: dict[int, int | None]) -> int | None:
    if isinstance(target, Leaf):
        return int(stages[target.stage].trains)
    if target.kind in (Phi, Isu, Cond):
        found = {_uses(stages, output, known) for output in target.targets}
        return found.pop() if len(found) == 1 else None
    return _sum(_uses(stages, output, known) for output in target.targets) if target.kind is Bcast else None


def reached(targets: Targets, trained: Sequence[Stage] | None = None) -> tuple[dict[Leaf, None], bool]:
    """The ports that a route's messages can reach, and whether each message certainly reaches exactly one; with `trained`, the stages, in training."""
    leaves: dict[Leaf, None] = {}
    once, seen, stack = True, set(), [targets]
    while stack:
        targets = stack.pop()
        if trained is not None:
            targets = [t for t in targets if not isinstance(t, Leaf) or trained[t.stage].trains]
        once &= len(targets) == 1
        for target in targets:
            if isinstance(target, Leaf):
                leaves[target] = None
                continue
            once &= target.kind not in MAKES_COPIES
            if id(target) not in seen:
                seen.add(id(target))
                stack.extend(target.targets)
    return leaves, once


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum of numbers that are all known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
