"""Affinity: which worker hosts which node.

Knows the static graph and the number of workers; no device, no queue, no message. The same graph, rule and seed give the
same map in every process: nothing here iterates over a set of names.

**Heavy nodes** are those with parameters, counted `h = 0, 1, ...` in the order in which the graph was built. AMPNet (§5 and
appendix B) gives its heavy operations, the linear layers, to workers of their own, `h mod W`, and deals the light ones out at
random among the rest. Having parameters is our reading of "heavy": such a node multiplies by a matrix or updates one.
Replicas are built one after the other, so `h mod W` puts the replicas of a group on successive workers. Where a part of the graph with
several heavy nodes is copied, each copy counts as one, so that it stays on one worker and its chains can be fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ampjax.errors import SettingsError
from ampjax.plan.device_packing import DeviceMemory

if TYPE_CHECKING:
    from ampjax.ir.graph import Graph
    from ampjax.ir.nodes import Node

Placement = Mapping[str, int]
Wish = Mapping[str, int | str]
"""The worker of each node, or the host: by its name, with `:` and a number for one of its workers."""

Rule = str | Wish | Callable[["Graph", int], Wish]
HostWorkers = Mapping[str, Sequence[int]]
"""The workers of each host, by its name."""

RULES = ("default", "paper", "coloured")


def assign(
    graph: Graph,
    workers: int,
    rule: Rule = "default",
    seed: int = 0,
    hops: int = 1,
    memory: DeviceMemory | None = None,
    hosts: HostWorkers | None = None,
) -> dict[str, int]:
    """The worker of each hosted node: of every node that is neither control nor a pump.

    A node's own `worker` option wins over every rule; it still counts as the h-th heavy node. A node that computes with another's
    parameters is always where that one is, and counts as no heavy node of its own.

    Args:
      graph: The graph.
      workers: Number of workers, W.
      rule: One of
        `default`: heavy node h on worker h mod W; a light node with the payload node that consumes its output directly, else
        with the one that feeds it, so that chains can be fused into one kernel;
        `paper`: heavy node h on worker h mod W; light nodes at random among the workers without heavy nodes, or among all
        where there are none such;
        `coloured`: a greedy colouring in graph order: heavy nodes within `hops` hops of each other, and replicas of one
        group, are on different workers as far as W allows; light nodes as in `default`;
        a mapping of node names to workers, of every hosted node without a `worker` option; in a worker's place may stand the name of a
        host, for its first worker, or `name:1`, for its second one;
        a function of the graph and W that gives such a mapping.
      seed: Seed of the random choice; read by `paper` only.
      hops: Range of the colouring; read by `coloured` only. Two heavy nodes are one hop apart if a path leads from one to
        the other through light nodes only, in the graph of hosted nodes (control nodes contracted, direction ignored).
      memory: What devices hold and nodes need. Heavy nodes for which there is no room where a rule wants them go elsewhere; a map, and
        nodes with a `worker` option, must fit as they are.
      hosts: The workers of each host, by its name.

    Returns:
      Node name to worker, in `[0, workers)`, in graph order.

    Raises:
      SettingsError: If `workers`, `hops` or `seed` is out of range, the rule is unknown, or a map lacks a node, names one
        that is not hosted, or a worker or a host that does not exist, or parts nodes that share parameters; or if there is not enough memory.
    """
    _check_integer("workers", workers, 1)
    _check_integer("hops", hops, 1)
    _check_integer("seed", seed, 0)
    nodes = list_hosted(graph)
    places = _Places(workers, hosts or {})
    pinned = {}
    for n in nodes:
        if n.options.worker is not None:
            pinned[n.name] = places.worker(f"node `{n.name}`, worker", n.options.worker)
    # A pin of one node holds for all that share its parameters.
    for users in graph.users.values():
        pins = [pinned[user.name] for user in users if user.name in pinned]
        pinned.update(dict.fromkeys((user.name for user in users), pins[0]) if pins else {})
    if callable(rule):
        rule = rule(graph, workers)
    if isinstance(rule, Mapping):
        placed = _place_by_map(nodes, rule, pinned, places)
        _check_shared(graph, placed)
    elif rule == "default":
        placed = _follow(
            nodes,
            _fitting(nodes, _modulo(nodes, workers), pinned, memory),
            workers,
        )
    elif rule == "paper":
        placed = _at_random(
            nodes,
            _fitting(nodes, _modulo(nodes, workers), pinned, memory),
            workers,
            seed,
        )
    elif rule == "coloured":
        placed = _follow(
            nodes,
            _fitting(nodes, _colour(nodes, pinned, workers, hops), pinned, memory),
            workers,
        )
    else:
        raise SettingsError(
            "affinity",
            f"one of {RULES}, a mapping or a function",
            f"{rule!r}",
            "Choose one of these.",
        )
    if memory is not None:
        memory.check(placed)
    return {node.name: placed[node.name] for node in nodes}


def list_hosted(graph: Graph) -> list[Node]:
    """Lists the nodes that a worker hosts: PPT, NPT, Concat, Split, Reduce, Collect, Loss and Sink.

    Returns:
      The nodes, in graph order.
    """
    result = []
    for node in graph.nodes.values():
        if not node.is_control and node.kind != "Pump":
            result.append(node)
    return result


def heavy_neighbours(
    graph: Graph,
    hops: int = 1,
) -> dict[str, list[str]]:
    """For each heavy node the others that `coloured` keeps on different workers, in graph order.

    Args:
      graph: The graph.
      hops: How far to look, as in `assign`.

    Returns:
      Name to names; symmetric. Replicas of one group are neighbours at any distance.
    """
    return _neighbours(list_hosted(graph), hops)


# ---- heavy nodes -----------------------------------------------------------------------------------------------------


def _modulo(
    nodes: list[Node],
    workers: int,
) -> dict[str, int]:
    number: dict[str, int] = {}
    for node in (heavy := _heavy(nodes)):
        number.setdefault(node.part or node.name, len(number))
    result = {}
    for node in heavy:
        result[node.name] = number[node.part or node.name] % workers
    return result


def _colour(
    nodes: list[Node],
    pinned: Placement,
    workers: int,
    hops: int,
) -> dict[str, int]:
    """Greedy: each heavy node takes the worker with the fewest neighbours, then the fewest heavy nodes, then the first."""
    near = _neighbours(nodes, hops)
    colours = {name: pinned[name] for name in near if name in pinned}
    load = _count(colours.values(), workers)
    for name in near:
        if name not in colours:
            clashes = _count(
                (colours[other] for other in near[name] if other in colours),
                workers,
            )
            colours[name] = min(
                range(workers),
                key=lambda w: (clashes[w], load[w], w),
            )
            load[colours[name]] += 1
    return colours


def _neighbours(
    nodes: list[Node],
    hops: int,
) -> dict[str, list[str]]:
    heavy = {node.name: node for node in _heavy(nodes)}
    edges = _link_both_ways(nodes)
    # One hop leads through light nodes only; more hops are chained.
    one_hop = {
        name: _reach(name, edges, through=lambda other: other not in heavy, to=heavy)
        for name in heavy
    }
    near = {name: one_hop[name] for name in heavy}
    for _ in range(hops - 1):
        near = {
            name: near[name] | {far: None for other in near[name] for far in one_hop[other]}
            for name in heavy
        }
    result = {}
    for name in heavy:
        result[name] = [
            other
            for other in heavy
            if other != name and (other in near[name] or _same_group(heavy[name], heavy[other]))
        ]
    return result


def _reach(
    start: str,
    edges: Mapping[str, Iterable[str]],
    through: Callable[[str], bool],
    to: Mapping[str, Node],
) -> dict[str, None]:
    """The names in `to` that a path from `start` meets first, passing only nodes that `through` allows."""
    seen = {start: None}
    ahead = [start]
    while ahead:
        for other in edges[ahead.pop()]:
            if other not in seen:
                seen[other] = None
                if through(other):
                    ahead.append(other)
    return {name: None for name in seen if name in to and name != start}


def _same_group(one: Node, other: Node) -> bool:
    return one.options.replica_of is not None and one.options.replica_of == other.options.replica_of


def _heavy(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.owns_params]


def _count(values: Iterable[int], workers: int) -> list[int]:
    return np.bincount(np.fromiter(values, np.int64), minlength=workers).tolist()


def _fitting(
    nodes: list[Node], wanted: Placement, pinned: Placement, memory: DeviceMemory | None
) -> dict[str, int]:
    """Places heavy nodes on the workers that a rule names, or on others with room, together with the sharers of their parameters; and all pinned nodes."""
    heavy = {**wanted, **pinned}
    placed = heavy if memory is None else memory.fit(heavy, pinned)
    return placed | {node.name: placed[node.params_name] for node in nodes if node.has_params}


# ---- light nodes -----------------------------------------------------------------------------------------------------


def _at_random(
    nodes: list[Node],
    placed: Placement,
    workers: int,
    seed: int,
) -> dict[str, int]:
    busy = {placed[node.name] for node in _heavy(nodes)}
    rest = [w for w in range(workers) if w not in busy] or list(range(workers))
    light = [node.name for node in nodes if node.name not in placed]
    chosen = np.random.default_rng(seed).integers(
        len(rest),
        size=len(light),
    )
    return {
        **placed,
        **{name: rest[i] for name, i in zip(light, chosen, strict=True)},
    }


def _follow(
    nodes: list[Node],
    placed: Placement,
    workers: int,
) -> dict[str, int]:
    """Light nodes of a copied part join its heavy ones; others a consumer, else a producer: over direct wires, else through control nodes.

    What no placed node reaches goes to the worker that hosts the fewest nodes, one connected piece at a time.
    """
    placed = dict(placed)
    wires = _Wires.of(nodes)
    of_parts: dict[str, set[int]] = {}
    for node in _heavy(nodes):
        if node.part is not None:
            of_parts.setdefault(node.part, set()).add(placed[node.name])
    # Copies first, so that a part stays on one worker; then along direct wires, which can be fused;
    # then through control nodes.
    for node in nodes:
        if node.name not in placed and len(of_part := of_parts.get(node.part or "", ())) == 1:
            (placed[node.name],) = of_part
    wires.spread(placed, wires.direct)
    wires.spread(placed, wires.all)
    for node in nodes:
        if node.name not in placed:
            # Nothing placed reaches this one: the emptiest worker takes it, and its neighbours
            # follow.
            load = _count(placed.values(), workers)
            placed[node.name] = load.index(min(load))
            wires.spread(placed, wires.direct)
            wires.spread(placed, wires.all)
    return placed


@dataclass(frozen=True)
class _Wires:
    """The wires among hosted nodes; edges are (producer, consumer), in graph order."""

    names: tuple[str, ...]
    direct: tuple[tuple[str, str], ...]
    all: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, nodes: list[Node]) -> _Wires:
        """The wires of a graph: without a control node between, and with any number of control nodes."""
        direct = []
        for n in nodes:
            for wire in n.outputs:
                for c, _ in wire.consumers:
                    if not c.is_control:
                        direct.append((n.name, c.name))
        return cls(
            tuple(n.name for n in nodes),
            tuple(direct),
            tuple((n.name, c) for n in nodes for c in _consumers(n)),
        )

    def spread(
        self,
        placed: dict[str, int],
        edges: tuple[tuple[str, str], ...],
    ) -> None:
        """Places nodes next to placed ones until nothing changes; consumers before producers, all nodes each time."""
        consumers = _list_adjacent(self.names, edges)
        producers = _list_adjacent(
            self.names,
            ((c, p) for p, c in edges),
        )
        # Consumers until nothing changes, only then producers once: to follow a consumer is what
        # lets nodes be fused.
        while self._settle(placed, consumers) or self._settle(placed, producers):
            pass

    def _settle(
        self,
        placed: dict[str, int],
        towards: Mapping[str, list[str]],
    ) -> bool:
        """Follows `towards` from unplaced nodes to placed ones; returns whether any node was placed."""
        before = len(placed)
        progress = True
        while progress:
            settled = {
                n: placed[next(o for o in towards[n] if o in placed)]
                for n in self.names
                if n not in placed and any(o in placed for o in towards[n])
            }
            placed.update(settled)
            progress = bool(settled)
        return len(placed) > before


def _consumers(node: Node) -> list[str]:
    """The hosted nodes that a node's messages reach through control nodes alone."""
    names: dict[str, None] = {}
    seen = {node.name: None}
    ahead = [node]
    while ahead:
        for consumer in (c for wire in ahead.pop(0).outputs for c, _ in wire.consumers):
            if not consumer.is_control:
                names[consumer.name] = None
            elif consumer.name not in seen:
                seen[consumer.name] = None
                ahead.append(consumer)
    return list(names)


def _link_both_ways(nodes: list[Node]) -> dict[str, list[str]]:
    wires = _Wires.of(nodes)
    return _list_adjacent(
        wires.names,
        (edge for p, c in wires.all for edge in ((p, c), (c, p))),
    )


def _list_adjacent(
    names: Iterable[str],
    edges: Iterable[tuple[str, str]],
) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {name: [] for name in names}
    for start, end in edges:
        result[start].append(end)
    return result


# ---- checks ----------------------------------------------------------------------------------------------------------


def _place_by_map(
    nodes: list[Node], placement: Wish, pinned: Placement, places: _Places
) -> dict[str, int]:
    names = [node.name for node in nodes]
    unknown = [name for name in placement if name not in names]
    if unknown:
        raise SettingsError(
            "affinity map",
            "names of nodes that workers host",
            f"`{unknown[0]}`",
            f"Pumps and control nodes have no worker; there are {names}.",
        )
    missing = [name for name in names if name not in placement and name not in pinned]
    if missing:
        raise SettingsError(
            "affinity map",
            "a worker for every payload node",
            f"none for `{missing[0]}`",
            "Add it, or give the node `worker=`.",
        )
    return {
        name: places.worker(f"affinity map, node `{name}`", wish)
        for name, wish in placement.items()
    } | dict(pinned)


def _check_shared(graph: Graph, placed: Placement) -> None:
    """Nodes that share parameters are on one worker."""
    for owner, users in graph.users.items():
        for user in users:
            if placed[user.name] != placed[owner]:
                raise SettingsError(
                    f"affinity map, node `{user.name}`",
                    f"worker {placed[owner]}, that of `{owner}`, whose parameters it shares",
                    f"worker {placed[user.name]}",
                    "Put the two on one worker.",
                )


@dataclass(frozen=True)
class _Places:
    """The places to which a node can be pinned: workers, and hosts by name."""

    workers: int
    hosts: HostWorkers

    def worker(self, where: str, wish: object) -> int:
        """The worker that is meant.

        Raises:
          SettingsError: If there is no such worker, or no such host.
        """
        if isinstance(wish, str):
            return self._of_host(where, wish)
        if (
            not isinstance(wish, (int, np.integer))
            or isinstance(wish, bool)
            or not 0 <= wish < self.workers
        ):
            fix = "Choose one of these, or raise `workers`."
            raise SettingsError(where, f"a worker in [0, {self.workers})", f"{wish!r}", fix)
        return int(wish)

    def _of_host(self, where: str, wish: str) -> int:
        name, _, number = (wish, "", "0") if wish in self.hosts else wish.rpartition(":")
        if not self.hosts:
            fix = "Name a worker, or let workers run on hosts (`Trainer(hosts=...)`)."
            raise SettingsError(
                where, f"a worker in [0, {self.workers}), as there are no hosts", f"{wish!r}", fix
            )
        if name not in self.hosts:
            fix = "Choose one of these, or add the machine to the resource file."
            raise SettingsError(where, f"one of the hosts {list(self.hosts)}", f"{wish!r}", fix)
        workers = self.hosts[name]
        if not number.isdecimal() or int(number) >= len(workers):
            fix = f"Choose one of these, or `{name}` for its first worker."
            raise SettingsError(
                where, f"`{name}:0` to `{name}:{len(workers) - 1}`, its workers", f"{wish!r}", fix
            )
        return workers[int(number)]


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise SettingsError(
            name,
            f"an integer of at least {least}",
            f"{value!r}",
            f"Pass {least} or a larger integer.",
        )
