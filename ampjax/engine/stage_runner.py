"""Runs one stage's launches: packs slots, pads to the ladder of sizes, and calls the kernels."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.allreduce import Device
from ampjax.engine.arenas import Arenas, grow, zeros
from ampjax.engine.kernels import edge_kernels
from ampjax.engine.kernels import rows as kernels
from ampjax.engine.kernels.edge_sizes import EdgeSizes, PaddedEdges, Sizes, fitted_edges
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.looped import COUNTS, STACKED, STREAK, Kernel, Streak
from ampjax.engine.kernels.residuals import Kept, find_chain_kept, find_kept, shapes_of
from ampjax.engine.kernels.rows import Collection, Reduction, Wiring
from ampjax.engine.kernels.stage_program import make_chain_program, make_program
from ampjax.engine.kernels.weight_gradients import Learning
from ampjax.plan.ladders import ladder_for, segment_sizes
from ampjax.plan.stages import HOST, ArenaKey, Stage
from ampjax.sched.columns import N_HEAD
from ampjax.sched.decisions import packs
from ampjax.sched.decisions.dispatch import FORWARD
from ampjax.unfold.rules.edges import REMEMBERED, Edges


class StageRunner:
    """One stage's kernels and how to call them.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
      devices: The device of each memory space.

    Attributes:
      recorded: What the forward pass keeps for the adjoint: arrays of rows, as many as the first output's arena has.
    """

    def __init__(self, stage: Stage, arenas: Arenas, devices: tuple[Device, ...]):
        self.stage, self._arenas, self._devices = stage, arenas, devices
        self._ladder = ladder_for(stage)
        self._out_keys = list(dict.fromkeys(stage.arenas[j] for j in range(len(stage.outputs))))
        in_keys = [port.arena for port in stage.ports if port.space != HOST]
        self._read_keys = [key for key in dict.fromkeys(in_keys) if key not in self._out_keys]
        self._keys: list[ArenaKey] = [*self._out_keys, *self._read_keys]
        self._host_ports = [(i, port.arena) for i, port in enumerate(stage.ports) if port.space == HOST]
        self._n_sections = len(stage.ports) + len(stage.outputs)
        self._loops = stage.kind.is_row_wise and devices[stage.space].platform == "cpu"
        self._wiring = Wiring(
            tuple(None if port.space == HOST else self._keys.index(port.arena) for port in stage.ports),
            tuple(self._keys.index(stage.arenas[j]) for j in range(len(stage.outputs))),
            stage.sole,
            stage.written,
        )
        self._kept: Kept | None = None
        self.recorded: tuple[jax.Array, ...] = ()
        self._record_capacity = 0
        self._forward_train: Any = None  # a kernel, known with the parameters' shapes
        self._make_adjoint: Any = None  # makes one, for what becomes of weight gradients
        self._adjoints: dict[Learning, Any] = {}  # finding them by their programs would cost as much as a message
        self.edge_sizes: EdgeSizes | None = None
        self._fitted_edges = functools.lru_cache(REMEMBERED)(fitted_edges)  # instances that travel together come often
        self._chain = make_chain_program(stage) if stage.chain is not None else None
        if self._chain is not None:
            self.program, self._random = self._chain, self._chain.random
            self._forward = edge_kernels.forward(self._chain, self._wiring)
        elif stage.kind.is_row_wise:
            self.program = make_program(stage)
            self._random = self.program.random
            self._forward = kernels.forward(self.program, self._wiring)
            if stage.kind.starts_backward:
                self._loss_infer = kernels.loss_infer(self.program, self._wiring)
                self._make_adjoint = functools.partial(kernels.loss_train, self.program, self._wiring)
        elif stage.kind.sums_segments:
            function = Reduction(stage.nodes[0].op.function) if stage.kind.reduces else Collection()
            self._forward = kernels.segments_forward(function, self._wiring)
            self._backward = kernels.segments_backward(function, self._wiring)
        rows = *(port.arena for port in stage.ports), *stage.arenas
        self._put, self._get, self._pay = (of(rows) for of in (kernels.put_rows, kernels.get_rows, kernels.pay_rows))

    @functools.cached_property
    def _most_stacked(self) -> int:
        """Rows of a dispatch, at most, that is one of several in a call; 0 where none is. It brings slots, random numbers, and what comes from the host."""
        if not self._loops:
            return 0
        from_host = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, (_, shape, dtype) in self._host_ports)
        return STACKED // (4 * (self._n_sections - len(self._host_ports) + 1 + self._random) + from_host)

    @functools.cached_property
    def needs_backward(self) -> bool:
        """Whether the adjoint has anything to compute: a gradient that comes in, and parameters or an input that take one."""
        comes_in = any(out.is_float for out in self.stage.outputs)
        takes_one = any(port.type.is_float for port in self.stage.ports if port.space != HOST)
        return comes_in and (bool(self.stage.params) or takes_one)

    def can_coalesce(self, before: Launch, launch: Launch) -> bool:
        """Whether a dispatch can be carried out in the same call as the one before it, of this stage and direction: it has the same size."""
        k = self._size(launch)
        return k == self._size(before) and self._stacks(k) and min(launch.n_rows, before.n_rows) > 0

    def _size(self, launch: Launch) -> int:
        """The size to which a dispatch is padded, unless that follows from its edges."""
        return launch.size or self._ladder(launch.n_rows)

    def _stacks(self, k: int) -> bool:
        """Whether dispatches of this size are called as streaks: on CPUs, where a loop whose length is told at run time keeps no thread waiting."""
        return k <= self._most_stacked

    def forward(self, streak: Streak, params: tuple[Any, ...]) -> None:
        """The forward pass of a `rows`, `edges`, `transfer`, `reduce` or `collect` stage; a streak of more than one where they coalesce."""
        kind, a, launch = self.stage.kind, self._arenas, streak[0]
        if kind.is_transfer:
            self._transfer_forward(launch)
            return
        written = tuple([a.values[k] for k in self._out_keys])
        grads = tuple([a.grads[k] for k in self._out_keys])
        read = tuple([a.values[k] for k in self._read_keys])
        if kind.has_bodies:
            if _is_empty(launch):
                return
            if launch.direction == FORWARD:
                arguments = params, written, grads, self._records(params), read
                written, grads, self.recorded = self._call(self._forward_train, arguments, streak)
            else:
                written = self._call(self._forward, (params, written, read), streak, draws=False)
        else:
            slots, ids, out, host = self._segment_arguments(launch)
            written, grads = self._forward.once(written, grads, read, host, slots, ids, out)
        for key, value, grad in zip(self._out_keys, written, grads, strict=True):
            a.values[key], a.grads[key] = value, grad

    def learns_at_once(self, launch: Launch) -> bool:
        """Whether a dispatch's kernel computes weight gradients, and can use them for an update (`engine.kernels.weight_gradients.Updating`)."""
        kind = self.stage.kind
        computes = kind.is_row_wise and (kind.starts_backward or self.needs_backward)
        return computes and launch.n_rows > 0

    def backward(
        self, streak: Streak, params: tuple[Any, ...], learning: Learning, learnt: Any, told: Any
    ) -> tuple[Any, ...]:
        """The adjoint; returns what `learning` makes of `learnt` (of a chain: accumulators) and these dispatches' weight gradients."""
        kind, a, launch = self.stage.kind, self._arenas, streak[0]
        if not self.needs_backward or (_is_empty(launch) and kind.can_write_gradients):
            return learnt
        if kind.is_transfer:
            self._transfer_backward(launch)
            return learnt
        values = tuple([a.values[k] for k in self._keys])
        grads = tuple([a.grads[k] for k in self._keys])
        if kind.has_bodies:
            arguments = params, values, grads, learnt, self._records(params)
            grads, learnt = self._call(self._adjoint(learning), arguments, streak, told=(told,))
        else:
            slots, ids, out, host = self._segment_arguments(launch)
            n = np.int32(len(launch.out_rows[0]))
            grads = self._backward.once(values, grads, host, slots, ids, out, n)
        for key, grad in zip(self._keys, grads, strict=True):
            a.grads[key] = grad
        return learnt

    def loss_train(
        self,
        streak: Streak,
        params: tuple[Any, ...],
        learning: Learning,
        learnt: Any,
        told: Any,
        metrics: jax.Array,
    ) -> tuple[Any, jax.Array]:
        """Loss and adjoint at once; returns what `backward` does, and the metrics with these dispatches' sums added."""
        if not streak[0].n_rows:
            return learnt, metrics
        a = self._arenas
        values = tuple([a.values[k] for k in self._keys])
        grads = tuple([a.grads[k] for k in self._keys])
        arguments = params, values, grads, learnt, metrics
        grads, learnt, metrics = self._call(self._adjoint(learning), arguments, streak, told=(told,))
        for key, grad in zip(self._keys, grads, strict=True):
            a.grads[key] = grad
        return learnt, metrics

    def loss_infer(self, streak: Streak, params: tuple[Any, ...], metrics: jax.Array) -> jax.Array:
        """The loss alone; returns the metrics with these dispatches' sums added."""
        if not streak[0].n_rows:
            return metrics
        values = tuple([self._arenas.values[k] for k in self._keys])
        return self._call(self._loss_infer, (params, values, metrics), streak, draws=False)

    def read(self, launch: Launch, port: int = 0) -> Any:
        """The rows that arrive at a port, `[r, *shape]` (padded: take the first `n_rows`)."""
        key, slots = self.stage.ports[port].arena, launch.in_rows[port]
        if key[0] == HOST:
            return self._arenas.host[key][slots]
        return self._get.once(self._arenas.values[key], self._lines(launch)[N_HEAD + port])

    # -- arguments

    def _call(
        self, kernel: Kernel, arguments: tuple[Any, ...], streak: Streak, draws: bool = True, told: tuple[Any, ...] = ()
    ) -> Any:
        """Calls a kernel with `arguments`, then what the dispatches bring (host rows, slots, with `draws` random numbers), then what it is `told`, or a chain's edges."""
        first = streak[0]
        if first.edges is not None:
            k, sizes, edges = self._fit(first, first.edges)
            host, pack = self._rows(streak, k)
            seeds = [self._edge_seeds(first, k, sizes)] if draws else []
            return kernel.once(*arguments, _first(host), pack[0], *seeds, edges, sizes)
        k = self._size(first)
        in_a_row = kernel.in_a_row if self._stacks(k) else None
        most = 1 if in_a_row is None else STREAK
        host, pack = self._rows(streak, k, most)
        seeds = self._seeds(streak, k, most) if draws else ()
        if in_a_row is None:
            return kernel.once(*arguments, _first(host), pack[0], *_first(seeds), *told)
        return in_a_row(COUNTS[len(streak)], *arguments, host, pack, *seeds, *told)

    def _rows(self, streak: Streak, k: int, most: int = 1) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """The rows of host ports, `[most, k, *shape]` each, and the packs `[most, n_lines, k]`: padded, and for as many dispatches as there are."""
        pack, n = self._packs(streak, k, most), len(streak)
        rows: list[np.ndarray] = []
        for i, key in self._host_ports:
            arena = self._arenas.host[key]
            own = np.empty((most, k, *arena.shape[1:]), arena.dtype)
            arena.take(pack[:n, N_HEAD + i], axis=0, out=own[:n], mode="clip")
            rows.append(own)
        return tuple(rows), pack

    def _packs(self, streak: Streak, k: int, most: int) -> np.ndarray:
        """What dispatches bring, padded, `[most, n_lines, k]`: as the scheduler has written it, where it has padded it."""
        if streak[0].size:
            return packs.stacked([launch.pack for launch in streak], [launch.place for launch in streak], most, k)
        out = np.empty((most, packs.n_lines(self._n_sections, k), k), np.int32)
        for own, launch in zip(out, streak, strict=False):
            own[:] = packs.padded(launch.in_rows, launch.out_rows, k)
        return out

    def _lines(self, launch: Launch) -> np.ndarray:
        """The same for one, `[n_lines, k]`."""
        return self._packs([launch], self._size(launch), 1)[0]

    def _seeds(self, streak: Streak, k: int, most: int) -> tuple[np.ndarray | None]:
        """The random numbers of the rows, `[most, k]`, padded; None where nothing is random."""
        if not self._random:
            return (None,)
        seeds = np.empty((most, k), np.uint32)
        for number, launch in enumerate(streak):
            packs.pad_into(seeds[number], launch.seeds[0], True)
        return (seeds,)

    def _edge_seeds(self, launch: Launch, k: int, sizes: tuple[int, ...]) -> Any:
        """The random numbers of a chain: of its rows, and of what is sent on each way: an edge's, where bodies on ways are random, else none."""
        if not self._random:
            return None
        assert launch.edges is not None
        rows, *ways = launch.seeds
        if not launch.edges.random:  # nobody reads them, and what is sent may be less than the edges
            ways = [np.zeros(0, np.uint32)] * len(ways)
        return _padded(rows, k, True), tuple(
            _padded(way, size, True) for way, size in zip(ways, sizes[:-1], strict=True)
        )

    def _fit(self, launch: Launch, edges: Edges) -> tuple[int, Sizes, PaddedEdges]:
        """The padded sizes of a chain's dispatch, and its edges; what it expects is told from the first one, if nobody has told before."""
        if self.edge_sizes is None:
            assert launch.sizes is not None
            self.edge_sizes = EdgeSizes.of([(launch.sizes, edges.loads(launch.sizes))])
        rows = max(launch.n_rows, len(launch.out_rows[0]))
        return self._fitted_edges(self.edge_sizes, self._ladder, rows, edges)

    def _records(self, params: tuple[Any, ...]) -> tuple[jax.Array, ...]:
        """The arrays that hold what the adjoint needs of the activations: as long as the first output's arena."""
        kept = self._plan_records(params)
        capacity = self._arenas.capacity[self._out_keys[0]]
        if self._record_capacity < capacity:
            device = self._devices[self.stage.space]
            old = self.recorded or tuple(zeros((0, *shape), dtype, device) for shape, dtype in kept.rows)
            self.recorded = tuple(grow(r, capacity) for r in old)
            self._record_capacity = capacity
        return self.recorded

    def _plan_records(self, params: tuple[Any, ...]) -> Kept:
        """Which activations are recorded: found once."""
        if self._kept is None:
            rows = tuple((port.type.shape, port.type.dtype.name) for port in self.stage.ports)
            find: Any = find_kept if self._chain is None else find_chain_kept
            kept: Kept = find(self.program, rows, shapes_of(params)) if self.needs_backward else Kept()
            of: Any = kernels if self._chain is None else edge_kernels
            self._forward_train = of.forward_train(self.program, self._wiring, kept)
            self._make_adjoint = functools.partial(of.backward, self.program, self._wiring, kept)
            self._kept = kept
        return self._kept

    def _adjoint(self, learning: Learning) -> Any:
        """The kernel of the adjoint, and of a loss with it; that of a chain accumulates."""
        kernel = self._adjoints.get(learning)
        if kernel is None:
            kernel = self._make_adjoint() if self._chain is not None else self._make_adjoint(learning)
            self._adjoints[learning] = kernel
        return kernel

    def record_row_bytes(self, params: tuple[Any, ...]) -> int:
        """Bytes of the recorded activations of one row."""
        return sum(int(np.prod(shape)) * jnp.dtype(dtype).itemsize for shape, dtype in self._plan_records(params).rows)

    def _segment_arguments(
        self, launch: Launch
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray, tuple[np.ndarray, ...]]:
        out = launch.out_rows[0]
        r, m = segment_sizes(max(map(len, launch.in_rows)), len(out))
        slots, ids, host = [], [], []
        for i, port in enumerate(self.stage.ports):
            rows = launch.in_rows[i]
            assert launch.sizes is not None
            places = (
                np.repeat(np.arange(len(launch.sizes)), launch.sizes) if self.stage.kind.reduces else launch.scatter[i]
            )
            slots.append(_padded(rows, r, True))
            ids.append(np.concatenate([places, np.full(r - len(rows), m)]).astype(np.int32))
            if port.space == HOST:
                host.append(self._arenas.host[port.arena][slots[-1]])
        return tuple(slots), tuple(ids), _padded(out, m, False), tuple(host)

    # -- transfers

    def _transfer_forward(self, launch: Launch) -> None:
        n = launch.n_rows
        if not n:
            return
        a, (slots, to) = self._arenas, self._lines(launch)[N_HEAD : N_HEAD + 2]
        source, target = self.stage.ports[0].arena, self._out_keys[0]
        if source[0] == HOST:
            rows: Any = a.host[source][slots]
        else:
            rows = jax.device_put(self._get.once(a.values[source], slots), self._devices[self.stage.space])
        grads = None if self.stage.written[0] else a.grads[target]
        a.values[target], zeroed = self._put.once(a.values[target], grads, to, rows)
        if zeroed is not None:
            a.grads[target] = zeroed

    def _transfer_backward(self, launch: Launch) -> None:
        a, (slots, to) = self._arenas, self._lines(launch)[N_HEAD : N_HEAD + 2]
        source, target = self.stage.ports[0].arena, self._out_keys[0]
        here, there = a.grads[target], a.grads[source]
        assert here is not None and there is not None
        rows = self._get.once(here, to)
        rows = jax.device_put(rows, self._devices[source[0]])
        a.grads[source] = self._pay.once(there, _padded(launch.in_rows[0], len(slots), False), rows, self.stage.sole[0])


def _padded(slots: np.ndarray, k: int, repeat: bool) -> np.ndarray:
    """Slots as int32 `[k]`: padded with the first one, or with the trash slot."""
    out = np.empty(k, np.int32 if slots.dtype != np.uint32 else np.uint32)
    packs.pad_into(out, slots, repeat)
    return out


def _first(stacked: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first of each, where there are any."""
    return tuple([None if rows is None else rows[0] for rows in stacked])


def _is_empty(launch: Launch) -> bool:
    """Whether a dispatch has no rows at all: neither any that come in nor, where a chain collects, any that go out."""
    return not launch.n_rows and (launch.edges is None or not launch.edges.n_rows.any())
