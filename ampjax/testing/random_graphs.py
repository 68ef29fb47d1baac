"""Random graphs with instances for them, for property tests: every node kind, nested loops, fan-out, joins, groups, replicas.

A graph is grown block by block. Every open wire is known with its `_Domain`, the exact set of states that its messages have: wires
of one domain can be joined, a loop whose counter is reset at the exit gives its entry's domain back, a group of what a flatmap made
gives back the flatmap's. So a case cannot wait for ever, and every loop ends because its bound is read from the state.

Payloads have four features and bodies come from a small palette of module-level functions and frozen layers, equal where they look
equal: kernels that are compiled once serve all cases. Bodies are bounded and smooth enough for float32 comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.ir import builders as amp
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Topology, messages
from ampjax.ir.state import State
from ampjax.ir.wires import Wire

FEATURES = 4
"""Every payload has this many features (a concat's result twice as many, until the next node)."""

MAX_WIDTH = 8
"""Messages of one instance on one wire, at most."""


# Bodies: the palette.


def squash(x: jax.Array) -> jax.Array:
    """`x / sqrt(1 + x²)`: a square root and a division."""
    return x / jnp.sqrt(1 + x * x)


def logarithm(x: jax.Array) -> jax.Array:
    """`log(1 + x²)`."""
    return jnp.log1p(x * x)


def halves(x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean of two payloads."""
    return 0.5 * (x + y)


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x · tanh(y)`."""
    return x * jnp.tanh(y)


def twins(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two outputs of one input."""
    return jnp.tanh(x), 0.5 * x


@dataclass(frozen=True)
class Dense:
    """`tanh(x @ w + b)` to four features.

    Args:
      n_in: Features in.
      dtype: The parameters' dtype.
    """

    n_in: int = FEATURES
    dtype: str = "float32"

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        """`w [n_in, 4]` and `b [4]`."""
        w, b = (
            jax.random.normal(key, (self.n_in, FEATURES), self.dtype),
            jax.random.normal(key, (FEATURES,), self.dtype),
        )
        return {"w": 0.6 * w * self.n_in**-0.5, "b": 0.1 * b}  # small: a saturated tanh loses digits in float32

    def __call__(self, params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        """`[n_in] -> [4]`."""
        return jnp.tanh(x @ params["w"] + params["b"])


@dataclass(frozen=True)
class Scale:
    """`x · s`, with a parameter per feature."""

    dtype: str = "float32"

    def init(self, key: jax.Array) -> jax.Array:
        """`s [4]`."""
        return 1 + 0.2 * jax.random.normal(key, (FEATURES,), self.dtype)

    def __call__(self, params: jax.Array, x: jax.Array) -> jax.Array:
        """`[4] -> [4]`."""
        return x * params


@dataclass(frozen=True)
class Gate:
    """Mixes two payloads by a gate that reads the first (the sine keeps the two different, so that no gradient is zero by identity)."""

    dtype: str = "float32"

    def init(self, key: jax.Array) -> jax.Array:
        """`w [4, 4]`."""
        return 0.5 * jax.random.normal(key, (FEATURES, FEATURES), self.dtype)

    def __call__(self, params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        """`[4], [4] -> [4]`."""
        gate = jax.nn.sigmoid(x @ params)
        return gate * jnp.sin(1 + x) + (1 - gate) * y


@dataclass(frozen=True)
class Cell:
    """A small recurrent cell with two inputs and two outputs, like an LSTM's `h` and `c`."""

    dtype: str = "float32"

    def init(self, key: jax.Array) -> jax.Array:
        """`w [4, 4]`."""
        return 0.5 * jax.random.normal(key, (FEATURES, FEATURES), self.dtype)

    def __call__(self, params: jax.Array, h: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`[4], [4] -> [4], [4]`."""
        c = 0.5 * c + jnp.tanh(h @ params)
        return jnp.tanh(c), c


@dataclass(frozen=True)
class Table:
    """An embedding of `n_rows` tokens in four features."""

    n_rows: int = 5
    dtype: str = "float32"

    def init(self, key: jax.Array) -> jax.Array:
        """The table `[n_rows, 4]`."""
        return jax.random.normal(key, (self.n_rows, FEATURES), self.dtype)

    def __call__(self, params: jax.Array, token: jax.Array) -> jax.Array:
        """`[] -> [4]`."""
        return params[token]


@dataclass(frozen=True)
class _Largest:
    """The number of the largest of the first `n` features."""

    n: int

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.argmax(x[: self.n])


def square_loss(x: jax.Array) -> jax.Array:
    """Half the squared norm of one payload."""
    return 0.5 * jnp.sum(x * x)


def distance_loss(x: jax.Array, y: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Half the squared distance, with a scalar metric."""
    loss = 0.5 * jnp.sum((x - y) ** 2)
    return loss, {"distance": jnp.sqrt(1 + loss)}


def token_loss(x: jax.Array, token: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    """Cross entropy of the four features with a label in `[0, 4)`, with a pair as metric."""
    hit = (jnp.argmax(x) == token).astype(x.dtype)
    return jax.nn.logsumexp(x) - x[token], {"hits": (hit, jnp.ones_like(hit))}


def sum_rows(rows: jax.Array, segment_ids: jax.Array, n_segments: int) -> jax.Array:
    """The sum of each segment's rows; zero for an empty one."""
    return jax.ops.segment_sum(rows, segment_ids, n_segments)


def mean_rows(rows: jax.Array, segment_ids: jax.Array, n_segments: int) -> jax.Array:
    """The sum of each segment's rows over one more than their number."""
    ones = jnp.ones((len(segment_ids), 1), rows.dtype)
    return sum_rows(rows, segment_ids, n_segments) / (1 + sum_rows(ones, segment_ids, n_segments))


# State functions: frozen, so that they compare and print.


@dataclass(frozen=True)
class _Bound:
    """`base + s.name % mod`, or the constant `base`: loop bounds, counts, sizes, routes."""

    name: str | None
    mod: int
    base: int

    def __call__(self, s: State) -> Any:
        return self.base + getattr(s, self.name) % self.mod if self.name else self.base

    @property
    def most(self) -> int:
        """The largest value."""
        return self.base + (self.mod - 1 if self.name else 0)


@dataclass(frozen=True)
class _Below:
    """`s.counter < bound(s)`."""

    counter: str
    bound: _Bound

    def __call__(self, s: State) -> Any:
        return getattr(s, self.counter) < self.bound(s)


@dataclass(frozen=True)
class _Even:
    """`bound(s)` is even: a truth value."""

    bound: _Bound

    def __call__(self, s: State) -> Any:
        return np.asarray(self.bound(s)) % 2 == 0


@dataclass(frozen=True)
class _Shift:
    """`name` becomes `name + by`."""

    name: str
    by: int

    def __call__(self, s: State) -> State:
        return s.replace(**{self.name: getattr(s, self.name) + self.by})


@dataclass(frozen=True)
class _Jump:
    """`name` becomes `name + sign * bound(s)`: a loop's counter is reset by subtracting its bound, which can be undone."""

    name: str
    bound: _Bound
    sign: int

    def __call__(self, s: State) -> State:
        return s.replace(**{self.name: getattr(s, self.name) + self.sign * np.asarray(self.bound(s))})


@dataclass(frozen=True)
class _Put:
    """`name` becomes `bound(s)`."""

    name: str
    bound: _Bound

    def __call__(self, s: State) -> State:
        return s.replace(**{self.name: self.bound(s)})


@dataclass(frozen=True)
class _Drop:
    """`name` goes."""

    name: str

    def __call__(self, s: State) -> State:
        return s.drop(self.name)


@dataclass(frozen=True)
class _Number:
    """`state(s, i)` of a flatmap or ungroup: `name` becomes `i`."""

    name: str

    def __call__(self, s: State, i: np.ndarray) -> State:
        return s.replace(**{self.name: i})


@dataclass(frozen=True)
class _Field:
    """`s.name`."""

    name: str

    def __call__(self, s: State) -> Any:
        return getattr(s, self.name)


@dataclass(frozen=True)
class _Columns:
    """A keying function: the instance and some fields."""

    names: tuple[str, ...]

    def __call__(self, s: State) -> Any:
        return s.instance, *(getattr(s, name) for name in self.names)


@dataclass(frozen=True)
class _Backwards:
    """An order: by `name`, falling."""

    name: str

    def __call__(self, s: State) -> Any:
        return -getattr(s, self.name)


# What is known of an open wire.


@dataclass(frozen=True)
class _Domain:
    """A set of states: equal domains have equal states in every instance.

    Args:
      key: What it was derived from; equal keys mean equal sets.
      fields: The state fields.
      width: Messages of one instance, at most.
      single: Exactly one message per instance.
      base: Number of the pumps' domain whose messages stand in a 1 : 1 relation to these by that domain's unique fields, if any.
    """

    key: Any
    fields: tuple[str, ...]
    width: int
    single: bool
    base: int | None = None


@dataclass(frozen=True)
class _Open:
    """A wire to build on: its domain, and for ragged wires what its row counts are derived from (None: not ragged)."""

    wire: Wire
    domain: _Domain
    rows: Any = None

    def like(self, wire: Wire) -> _Open:
        return replace(self, wire=wire)

    def fits(self, other: _Open) -> bool:
        """Whether the two can be joined message by message and row by row."""
        return (self.domain.key, self.rows) == (other.domain.key, other.rows)


@dataclass(frozen=True)
class Case:
    """A random graph and instances for it.

    Args:
      graph: The graph, closed.
      instances: The instances as a data set.
      replay: A line of Python that rebuilds the case as `case`.
      data: The same instances as dictionaries.
    """

    graph: Graph = field(repr=False)
    instances: InstanceList = field(repr=False)
    replay: str
    data: list[dict[str, Any]] = field(repr=False)


def random_case(seed: int, *, size: int = 8, n_instances: int | None = None, dtype: str = "float32") -> Case:
    """A random graph, with instances; a pure function of its arguments.

    Args:
      seed: The seed.
      size: Blocks in the graph; a block is a few nodes. The graph also gets the pumps, losses and sinks that it needs.
      n_instances: _Number of instances; by default 1 to 6, at random.
      dtype: Of payloads and parameters. `float64` needs JAX's 64-bit mode.
    """
    grower = _Grower(np.random.default_rng(seed), dtype)
    with Graph() as graph:
        grower.pump_some()
        grower.grow(size, first=0, depth=0)
        grower.finish()
    n = int(grower.rng.integers(1, 7)) if n_instances is None else n_instances
    data = [grower.instance() for _ in range(n)]
    ragged = [name for name, node in graph.pumps.items() if node.op.type.ragged]
    options = f"size={size}, n_instances={n_instances}, dtype={dtype!r}"
    replay = f"from ampjax.testing import random_case; case = random_case({seed}, {options})"
    return Case(graph, InstanceList(data, ragged), replay, data)


class _Grower:
    """Grows one graph; then draws instances for its pumps."""

    def __init__(self, rng: np.random.Generator, dtype: str):
        self.rng, self.dtype = rng, dtype
        self.pool: list[_Open] = []
        self.names: dict[str, int] = {}
        self.bases: list[tuple[_Domain, list[tuple[str, str]]]] = []
        self.topologies: dict[str, tuple[str, int, int]] = {}

    # Chance and names.

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def name(self, stem: str) -> str:
        self.names[stem] = self.names.get(stem, 0) + 1
        return f"{stem}{self.names[stem]}"

    def free_field(self, domain: _Domain, stem: str) -> str:
        return next(name for i in range(99) if (name := f"{stem}{i}") not in domain.fields)

    def bound(self, domain: _Domain, base: int, most: int = 3) -> _Bound:
        """A function of the domain's states with values in `[base, most]`."""
        known = [name for name in domain.fields if name in ("a", "b", "i")]
        if not known or self.chance(0.1):
            return _Bound(None, 1, int(self.rng.integers(base, most)))
        return _Bound(self.pick(known), int(self.rng.integers(2, max(most - base + 1, 2) + 1)), base)

    def mate(self, one: _Open, first: int) -> _Open:
        """A wire that can be joined with this one; the same wire where there is no other."""
        others = [o for o in self.pool[first:] if o.fits(one) and o.wire is not one.wire]
        return self.pick(others) if others else one

    # Pumps and instances.

    def pump_some(self) -> None:
        """A domain with one message per instance, and often one with several, each with some pumps."""
        shapes = [("a", "b"), ("a",), ()]
        self.bases.append((_Domain("one", self.pick(shapes), 1, True, 0), []))
        if self.chance(0.7):
            self.bases.append((_Domain("many", ("i", *self.pick(shapes)), 4, False, 1), []))
        for base in range(len(self.bases)):
            for _ in range(int(self.rng.integers(1, 4))):
                self.pump(base, self.pick(["float", "token", "ragged", "ragged"]))

    def pump(self, base: int, kind: str) -> None:
        domain, pumps = self.bases[base]
        name = self.name(kind)
        pumps.append((name, kind))
        shape, dtype = ((), "int32") if kind in ("token", "label") else ((FEATURES,), self.dtype)
        wire = amp.pump(name, shape, dtype, domain.fields, ragged=kind == "ragged")
        if kind == "token":
            wire = amp.ppt(self.name("table"), Table(dtype=self.dtype))(wire)
        self.pool.append(_Open(wire, domain, ("pump", name) if kind == "ragged" else None))

    def instance(self) -> dict[str, Any]:
        """One instance: a dictionary of messages by pump."""
        result: dict[str, Any] = {}
        ragged: dict[str, int] = {}
        for domain, pumps in self.bases:
            n = 1 if domain.single else int(self.rng.choice(5, p=[0.1, 0.3, 0.25, 0.2, 0.15]))
            fields = {f: np.arange(n) if f == "i" else self.rng.integers(0, 6, n) for f in domain.fields}
            for name, kind in pumps:
                sizes = self.rng.integers(0, 5, n) if kind == "ragged" else None
                result[name] = messages(
                    self.payload(kind, n if sizes is None else int(sizes.sum())), sizes=sizes, **fields
                )
                if sizes is not None and domain.single:
                    ragged[name] = int(sizes[0])
        for name, (pump, n_kinds, n_rows) in self.topologies.items():
            n_node = ragged[pump]
            rows = n_node if n_rows < 0 else n_rows
            if n_rows < 0 and self.chance(0.3):
                result[name] = Topology.from_kinds(self.rng.integers(0, n_kinds, n_node), n_kinds)
                continue
            n_edge = int(self.rng.integers(0, 7)) if n_node and rows else 0
            senders, receivers = (self.rng.integers(0, max(n, 1), n_edge) for n in (n_node, rows))
            kinds = self.rng.integers(0, n_kinds, n_edge)
            result[name] = Topology.from_edges(senders, receivers, kinds, rows, n_kinds)
        return result

    def payload(self, kind: str, n: int) -> np.ndarray:
        if kind in ("token", "label"):
            return self.rng.integers(0, FEATURES, n).astype(np.int32)
        return self.rng.standard_normal((n, FEATURES)).astype(self.dtype)

    # Growth.

    def grow(self, n: int, first: int, depth: int) -> None:
        """Adds `n` blocks on wires of the pool from `first` on; those not used yet are preferred."""
        for _ in range(n):
            pool = self.pool[first:]
            fresh = [o for o in pool if not o.wire.consumers]
            one = self.pick(fresh) if fresh and self.chance(0.7) else self.pick(pool)
            blocks: list[tuple[float, Callable[..., None]]] = [
                (3, self.unary), (2, self.binary), (1.5, self.concat), (1, self.two_outputs), (1, self.fan_out), (1, self.shift), (2, self.diamond), (0.7, self.dead_branch),
                (1, self.replicas), (1.5, self.choice), (0.5, self.loss), (1.5, self.flatmap), ((2.5, 4, 0)[depth], self.loop),
            ]  # fmt: skip
            if one.rows is None:
                blocks += [(1, self.repeat), (1.5, self.grouped)]
            else:
                blocks += [(2, self.ungroup), (3, self.reduce), (6, self.distribute)]
            weights = np.array([weight for weight, _ in blocks])
            block = blocks[int(self.rng.choice(len(blocks), p=weights / weights.sum()))][1]
            block(one, first, depth)

    def body(self, one: _Open, other: _Open | None = None) -> _Open:
        """One node: a body on one wire, or on two that fit."""
        if other is None:
            ppt = [Dense(dtype=self.dtype), Scale(self.dtype)]
            layer = self.pick([*ppt, *ppt, jax.nn.relu, squash, logarithm])
        else:
            layer = self.pick([Gate(self.dtype), Gate(self.dtype), halves, product])
        stem = getattr(layer, "__name__", type(layer).__name__.lower())
        wires = (one.wire,) if other is None else (one.wire, other.wire)
        join = (
            None if other is None else self.pick([None, None, _Columns(one.domain.fields), one.domain.fields or None])
        )
        if hasattr(layer, "init"):
            return one.like(amp.ppt(self.name(stem), layer, join=join)(*wires))
        return one.like(amp.npt(self.name(stem), layer, join=join)(*wires))

    def unary(self, one: _Open, first: int, depth: int) -> None:
        self.pool.append(self.body(one))

    def binary(self, one: _Open, first: int, depth: int) -> None:
        self.pool.append(self.body(one, self.mate(one, first)))

    def concat(self, one: _Open, first: int, depth: int) -> None:
        """Concatenates two wires, then splits them again or reads all eight features."""
        both = amp.concat(one.wire, self.mate(one, first).wire, name=self.name("concat"))
        if self.chance(0.5):
            self.pool += [one.like(w) for w in amp.split(both, (FEATURES, FEATURES), name=self.name("split"))]
        else:
            self.pool.append(one.like(amp.ppt(self.name("wide"), Dense(2 * FEATURES, self.dtype))(both)))

    def two_outputs(self, one: _Open, first: int, depth: int) -> None:
        if self.chance(0.5):
            outputs = amp.npt(self.name("twins"), twins, outputs=2)(one.wire)
        else:
            outputs = amp.ppt(self.name("cell"), Cell(self.dtype), outputs=2)(one.wire, self.mate(one, first).wire)
        self.pool += [one.like(w) for w in outputs]

    def fan_out(self, one: _Open, first: int, depth: int) -> None:
        self.pool += [one.like(w) for w in amp.bcast(one.wire, int(self.rng.integers(2, 4)), name=self.name("bcast"))]

    def shift(self, one: _Open, first: int, depth: int) -> None:
        """An isu that shifts a field, and often, after a body, the one that shifts it back; or one that adds a field."""
        known = [name for name in one.domain.fields if name in ("a", "b", "i")]
        if known and self.chance(0.7):
            forth, back = (_Shift(f, by) for f, by in zip([self.pick(known)] * 2, (3, -3), strict=True))
            fields, base = one.domain.fields, None
        else:
            extra = self.free_field(one.domain, "x")
            forth, back = _Put(extra, self.bound(one.domain, 0)), _Drop(extra)
            fields, base = (*one.domain.fields, extra), one.domain.base
        wire = amp.isu(one.wire, forth, back, name=self.name("isu"))
        domain = replace(one.domain, key=("isu", one.domain.key, forth), fields=fields, base=base)
        moved = _Open(wire, domain, one.rows)
        self.pool.append(moved)
        if isinstance(forth, _Shift) and self.chance(0.6):
            self.pool.append(one.like(amp.isu(self.body(moved).wire, back, forth, name=self.name("isu"))))

    def diamond(self, one: _Open, first: int, depth: int) -> None:
        """Cond, different bodies, phi."""
        n = int(self.rng.integers(2, 4))
        choose = self.bound(one.domain, 0, n - 1)
        choose = _Even(choose) if n == 2 and self.chance(0.5) else choose
        wires = amp.cond(one.wire, choose, n, name=self.name("cond"))
        branches = [self.body(one.like(wire)) if self.chance(0.8) else one.like(wire) for wire in wires]
        self.pool.append(one.like(amp.phi(self.name("phi"), *(branch.wire for branch in branches))))

    def dead_branch(self, one: _Open, first: int, depth: int) -> None:
        """A cond one of whose outputs ends in a sink or a loss: what goes on has fewer states."""
        choose = _Even(self.bound(one.domain, 0))
        domain = replace(one.domain, key=("if", one.domain.key, choose), single=False, base=None)
        for each in {id(o.wire): o for o in (one, self.mate(one, first))}.values():
            kept, dead = amp.cond(each.wire, choose, name=self.name("cond"))
            self.end(_Open(dead, replace(domain, key=("else", domain.key)), each.rows))
            self.pool.append(_Open(kept, domain, each.rows))

    def replicas(self, one: _Open, first: int, depth: int) -> None:
        n = int(self.rng.integers(2, 4))
        route = "round_robin" if self.chance(0.5) else self.bound(one.domain, 0, n - 1)
        if self.chance(0.5):
            layer, wires = Dense(dtype=self.dtype), (one.wire,)
        else:
            layer, wires = Gate(self.dtype), (one.wire, self.mate(one, first).wire)
        self.pool.append(one.like(amp.replicate(amp.ppt(self.name("replicas"), layer), n, route)(*wires)))

    def choice(self, one: _Open, first: int, depth: int) -> None:
        """A cond on what is read from a payload, different bodies, phi; joined with the message itself, since nobody knows the new field."""
        if one.rows is not None:
            return self.diamond(one, first, depth)
        name, n = self.free_field(one.domain, "r"), int(self.rng.integers(2, 4))
        chosen = amp.npt(self.name("choose"), _Largest(n))(self.mate(one, first).wire)
        wire = amp.route_by(one.wire, chosen, name, assume=self.bound(one.domain, 0, n - 1), name=self.name("route"))
        wires = amp.cond(wire, _Field(name), n, name=self.name("cond"))
        branches = [self.body(one.like(w)).wire if self.chance(0.8) else w for w in wires]
        found = amp.phi(self.name("phi"), *branches)
        both = amp.npt(self.name("halves"), halves, join=_Columns(one.domain.fields))(one.wire, found)
        self.pool.append(one.like(both))

    def flatmap(self, one: _Open, first: int, depth: int) -> None:
        """A message becomes none or several."""
        count = self.bound(one.domain, 0)
        if one.domain.width * count.most <= MAX_WIDTH:
            self.pool.append(self.exploded(one, count, self.free_field(one.domain, "f")))

    def exploded(self, one: _Open, count: _Bound, name: str) -> _Open:
        wire = amp.flatmap(one.wire, count, _Number(name), name=self.name("flatmap"))
        return _Open(wire, _flat(one.domain, ("bound", one.domain.key, count), count.most, name), one.rows)

    def repeat(self, one: _Open, first: int, depth: int) -> None:
        count = self.bound(one.domain, 0)
        wire = amp.repeat(one.wire, count, name=self.name("repeat"))
        self.pool.append(_Open(wire, one.domain, ("bound", one.domain.key, count)))

    def grouped(self, one: _Open, first: int, depth: int) -> None:
        """Flatmap, a body, group: with an opener sizes may be 0. The members often have another consumer, the group a body right behind."""
        opened = self.chance(0.7)
        count = self.bound(one.domain, 0 if opened else 1)
        if one.domain.width * count.most > MAX_WIDTH:
            return
        each = self.body(self.exploded(one, count, self.free_field(one.domain, "f")))
        self.pool.append(each)
        by = _Columns(one.domain.fields) if opened and self.chance(0.3) else one.domain.fields
        order = _Backwards(each.domain.fields[-1]) if self.chance(0.5) else None
        opener = self.mate(one, first).wire if opened else None
        if opener is not None and self.mate(one, first).rows is not None:
            opener = one.wire
        wire = amp.group(each.wire, by=by, size=count, order=order, opener=opener, name=self.name("group"))
        rows = _Open(wire, one.domain, ("bound", one.domain.key, count))
        self.pool.append(self.body(rows) if self.chance(0.4) else rows)
        if self.chance(0.3):
            self.end(each)

    def ungroup(self, one: _Open, first: int, depth: int) -> None:
        most = one.rows[2].most if one.rows[0] == "bound" else 6
        if one.domain.width * most > 2 * MAX_WIDTH:
            return
        name = self.free_field(one.domain, "f")
        options: dict[str, Any] = {"field": name} if self.chance(0.5) else {"state": _Number(name)}
        wire = amp.ungroup(one.wire, **options, name=self.name("ungroup"))
        same = one.rows[0] == "bound" and one.rows[1] == one.domain.key
        key = one.rows if same else ("rows", one.domain.key, one.rows)
        self.pool.append(_Open(wire, _flat(one.domain, key, most, name)))

    def reduce(self, one: _Open, first: int, depth: int) -> None:
        wire = amp.reduce(self.name("reduce"), self.pick([sum_rows, mean_rows]), one.wire)
        self.pool.append(_Open(wire, one.domain))

    def distribute(self, one: _Open, first: int, depth: int) -> None:
        """Rows go to one wire per edge kind, through a body each, and are collected again, as in a GGNN's step."""
        pumps = {name for domain, pumps in self.bases if domain.single for name, _ in pumps}
        if one.rows[0] != "pump" or one.rows[1] not in pumps:
            return self.unary(one, first, depth)
        known = [name for name, (pump, _, _) in self.topologies.items() if pump == one.rows[1]]
        if not known or self.chance(0.3):
            name = self.name("topology")
            n_rows = int(self.rng.integers(0, 4)) if self.chance(0.2) else -1
            self.topologies[name] = (one.rows[1], int(self.rng.integers(1, 4)), n_rows)
            self.maps = getattr(self, "maps", {}) | {name: amp.topology(name)}
        else:
            name = self.pick(known)
        _, n_kinds, n_rows = self.topologies[name]
        wires = amp.distribute(one.wire, self.maps[name], n_kinds, name=self.name("distribute"))
        edges = [self.body(replace(one, wire=w, rows=("edge", name, j))) for j, w in enumerate(wires)]
        self.pool += [edge for edge in edges if self.chance(0.2)]
        wire = amp.collect([edge.wire for edge in edges], self.maps[name], name=self.name("collect"))
        collected = replace(one, wire=wire, rows=one.rows if n_rows < 0 else ("nodes", name))
        meets = n_rows < 0 and self.chance(0.5)
        self.pool.append(self.body(collected, one) if meets else collected)

    def loop(self, one: _Open, first: int, depth: int) -> None:
        """A loop with one or two carried wires, and blocks, perhaps loops, in it. Its exit has its entry's states again."""
        while_ = self.chance(0.5)
        bound = self.bound(one.domain, 0 if while_ else 1)
        if one.domain.width * bound.most > MAX_WIDTH:
            return
        counter = self.free_field(one.domain, "c")
        inner = _flat(one.domain, ("bound", one.domain.key, bound), bound.most, counter)
        zero = _Put(counter, _Bound(None, 1, 0))
        outer = replace(one.domain, key=("isu", one.domain.key, zero), fields=inner.fields)
        entries = []
        for each in (one, self.mate(one, first))[: int(self.rng.integers(1, 3))]:
            wire = amp.isu(each.wire, zero, _Drop(counter), name=self.name("isu"))
            entries.append(_Open(wire, outer, each.rows))
        start, phis = len(self.pool), [amp.phi(self.name("loop")) for _ in entries]
        exits: list[Wire] = []
        for phi, entry in zip(phis, entries, strict=True):
            wire: Wire = phi
            if while_:
                wire, out = amp.cond(wire, _Below(counter, bound), name=self.name("cond"))
                exits.append(out)
            self.pool.append(_Open(wire, inner, entry.rows))
        if self.chance(0.5):
            self.pool.append(self.exploded(self.mate(one, first), bound, counter))
        self.grow(int(self.rng.integers(1, 4)), start, depth + 1)
        for phi, entry in zip(phis, entries, strict=True):
            last = next(o for o in reversed(self.pool) if o.domain.key == inner.key and o.rows == entry.rows)
            wire = amp.isu(self.body(last).wire, _Shift(counter, 1), _Shift(counter, -1), name=self.name("isu"))
            if not while_:
                wire, out = amp.cond(wire, _Below(counter, bound), name=self.name("cond"))
                exits.append(out)
            phi.connect(entry.wire, wire)
        for entry, out in zip(entries, exits, strict=True):
            reset = amp.isu(out, _Jump(counter, bound, -1), _Jump(counter, bound, 1), name=self.name("isu"))
            self.pool.append(_Open(reset, outer, entry.rows))
        self.pool += [entry for entry in entries if self.chance(0.3)]

    # Ends.

    def loss(self, one: _Open, first: int, depth: int) -> None:
        """A loss: with a label on the instance or the state, with another wire, or alone."""
        domain, name = one.domain, self.name("loss")
        kind = self.pick(["float", "label"])
        body = distance_loss if kind == "float" else token_loss
        if one.rows is None and domain.base is not None and self.chance(0.6):
            pumped, _ = self.bases[domain.base]
            unique = ("i",) if "i" in pumped.fields else ()
            join = self.pick(
                [("instance", *unique), _Columns(unique), None if pumped.key == domain.key else unique or ("instance",)]
            )
            amp.loss(name, body, join=join)(one.wire, self.label(domain.base, kind))
        elif one.rows is None and domain.single and self.chance(0.8):
            amp.loss(name, body, join=("instance",))(one.wire, self.label(0, kind))
        elif (mate := self.mate(one, first)).wire is not one.wire:
            amp.loss(name, distance_loss)(one.wire, mate.wire)
        else:
            amp.loss(name, square_loss)(one.wire)

    def label(self, base: int, kind: str) -> Wire:
        domain, pumps = self.bases[base]
        name = self.name("label")
        pumps.append((name, kind))
        return amp.pump(name, *(((FEATURES,), self.dtype) if kind == "float" else ((), "int32")), domain.fields)

    def end(self, one: _Open) -> None:
        if self.chance(0.6):
            amp.loss(self.name("loss"), square_loss)(one.wire)
        else:
            amp.sink(self.name("sink"), one.wire)

    def finish(self) -> None:
        """Gives every wire that goes nowhere an end, and the graph at least one loss."""
        for one in self.pool:
            if one.wire.consumers:
                continue
            if self.chance(0.75):
                self.loss(one, 0, 0)
            else:
                amp.sink(self.name("sink"), one.wire)
        if "loss" not in self.names:
            self.loss(self.pool[-1], 0, 0)


def _flat(domain: _Domain, rows: Any, most: int, name: str) -> _Domain:
    """The states that a flatmap, an ungroup or a loop makes: the domain's with the numbers below each one's count in `name`."""
    return _Domain(("flat", domain.key, rows, name), (*domain.fields, name), max(domain.width * most, 1), False)
