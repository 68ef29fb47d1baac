"""Finds who consumes the rows of each stage: fills in `sole`, `written` and `workers_ahead` of `Stage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ampjax.plan.stages import HOST, Stage, StagePort, Targets


def find_sole_consumers(stages: Sequence[Stage]) -> None:
    """Finds the outputs whose messages are each consumed exactly once (`written`), and the ports that get only such messages (`sole`)."""
    outputs = {}
    for s in stages:
        for j, route in enumerate(s.routes):
            outputs[(s.number, j)] = find_reached(route, stages)
    ports = {key: list(reached) for key, (reached, _) in outputs.items()}
    # A group has the rows of its members, which other stages may consume, too.
    good = {}
    for key, (_, once) in outputs.items():
        good[key] = once and stages[key[0]].kind.is_dispatched
    # From all outputs down: an output that is consumed otherwise, too, takes others with it.
    while True:
        refused = _find_refused(stages, ports, good)
        now = {}
        for key, reached in ports.items():
            now[key] = good[key] and refused.isdisjoint(reached)
        if now == good:
            break
        good = now
    sole = _find_reached(ports, good, True)
    for stage in stages:
        stage.written = tuple(good[stage.number, j] for j in range(len(stage.routes)))
        stage.sole = tuple(StagePort(stage.number, p) in sole for p in range(len(stage.ports)))


_Output = tuple[int, int]
"""A stage's number, and the number of one of its outputs."""


def _find_refused(
    stages: Sequence[Stage],
    ports: Mapping[_Output, list[StagePort]],
    good: Mapping[_Output, bool],
) -> set[StagePort]:
    """Finds the ports that also get messages of other outputs, or whose stage does not write the gradient of each message."""
    refused = _find_reached(ports, good, False)
    for reached in ports.values():
        for port in reached:
            if not _pays(stages, port):
                refused.add(port)
    return refused


def _find_reached(
    ports: Mapping[_Output, list[StagePort]],
    good: Mapping[_Output, bool],
    wanted: bool,
) -> set[StagePort]:
    """The ports that the good outputs reach, or the others."""
    found: set[StagePort] = set()
    for key, reached in ports.items():
        if good[key] == wanted:
            found.update(reached)
    return found


def _pays(stages: Sequence[Stage], leaf: StagePort) -> bool:
    """Whether the backward pass of a port's stage computes a gradient for each of the port's messages, row by row."""
    stage = stages[leaf.stage]
    port = stage.ports[leaf.port]
    comes_back = stage.kind.starts_backward or any(out.is_float for out in stage.outputs)
    return stage.kind.writes_gradients and port.space != HOST and port.type.is_float and comes_back


def count_workers_ahead(stages: Sequence[Stage]) -> None:
    """Counts the workers on the way from each stage to where its messages end: fills in `workers_ahead`."""
    ahead = [
        list(dict.fromkeys(leaf.stage for r in s.routes for leaf in find_reached(r)[0]))
        for s in stages
    ]
    workers: dict[int, set[int]] = {}
    for loop in _loops(ahead):  # stages of a loop have the same ahead of them
        of_loop = {stages[number].worker for number in loop}
        beyond = {}
        for number in loop:
            for n in ahead[number]:
                if n in workers:
                    beyond[id(workers[n])] = workers[n]
        of_loop.update(*beyond.values())
        workers.update(dict.fromkeys(loop, of_loop))
    for stage in stages:
        stage.workers_ahead = len(workers[stage.number])


def _loops(ahead: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The strongly connected components of a graph, each after the components that its edges lead to (Tarjan 1972).

    Args:
      ahead: For each vertex, the vertices that its edges lead to.
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_: dict[int, None] = {}
    for root in range(len(ahead)):
        if root in order:
            path = []
        else:
            path = [(root, iter(ahead[root]))]
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


def find_reached(
    targets: Targets, trained: Sequence[Stage] | None = None
) -> tuple[dict[StagePort, None], bool]:
    """Finds the ports that a route's messages can reach.

    Args:
      targets: The route.
      trained: All stages, to consider only those that training reaches; None considers all ports.

    Returns:
      The ports, as the keys of a dictionary, in order; and whether each message certainly reaches exactly one of them.
    """
    leaves: dict[StagePort, None] = {}
    once = True
    seen = set()
    stack = [targets]
    while stack:
        targets = stack.pop()
        if trained is not None:
            targets = [
                t for t in targets if not isinstance(t, StagePort) or trained[t.stage].trains
            ]
        once &= len(targets) == 1
        for target in targets:
            if isinstance(target, StagePort):
                leaves[target] = None
                continue
            once &= target.node.op.sends_exactly_one
            if id(target) not in seen:
                seen.add(id(target))
                stack.extend(target.targets)
    return leaves, once
