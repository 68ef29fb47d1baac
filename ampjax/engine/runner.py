"""Runs one stage's dispatches: packs slots, pads to the ladder of sizes, and calls the kernels."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.engine import chain_kernels, kernels
from ampjax.engine.arenas import Arenas, grow, zeros
from ampjax.engine.draws import Draws
from ampjax.engine.edge_sizes import EdgeSizes, padded_edges
from ampjax.engine.kernels import TRASH, Collection, Reduction, Wiring
from ampjax.engine.ladders import ladder_for, segment_sizes
from ampjax.engine.learning import Learning
from ampjax.engine.program import make_chain_program, make_program
from ampjax.engine.residuals import Kept, find_chain_kept, find_kept, shapes_of
from ampjax.parallel.sync import Device
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.edges import Edges
from ampjax.sched.queues import FORWARD
from ampjax.sched.stages import HOST, ArenaKey, Stage


class StageRunner:
    """One stage's kernels and how to call them.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
      devices: The device of each memory space.
      draws: Where random bodies' keys come from.

    Attributes:
      recorded: What the forward pass keeps for the adjoint: arrays of rows, as many as the first output's arena has.
    """

    def __init__(self, stage: Stage, arenas: Arenas, devices: tuple[Device, ...], draws: Draws):
        self.stage, self._arenas, self._devices, self._draws = stage, arenas, devices, draws
        self._ladder = ladder_for(stage)
        self._out_keys = list(dict.fromkeys(stage.arenas[j] for j in range(len(stage.outputs))))
        in_keys = [port.arena for port in stage.ports if port.space != HOST]
        self._read_keys = [key for key in dict.fromkeys(in_keys) if key not in self._out_keys]
        self._keys: list[ArenaKey] = [*self._out_keys, *self._read_keys]
        self._host_ports = [(i, port.arena) for i, port in enumerate(stage.ports) if port.space == HOST]
        self._device_ports = [i for i, port in enumerate(stage.ports) if port.space != HOST]
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
        self._chain = make_chain_program(stage) if stage.chain is not None else None
        if self._chain is not None:
            self.program, self._random = self._chain, self._chain.random
            self._forward = chain_kernels.forward(self._chain, self._wiring)
        elif stage.kind in ("rows", "loss"):
            self.program = make_program(stage)
            self._random = self.program.random
            self._forward = kernels.forward(self.program, self._wiring)
            if stage.kind == "loss":
                self._loss_infer = kernels.loss_infer(self.program, self._wiring)
                self._make_adjoint = functools.partial(kernels.loss_train, self.program, self._wiring)
        elif stage.kind in ("reduce", "collect"):
            self._segments = Reduction(stage.nodes[0].op.function) if stage.kind == "reduce" else Collection()

    @functools.cached_property
    def needs_backward(self) -> bool:
        """Whether the adjoint has anything to compute: a gradient that comes in, and parameters or an input that take one."""
        comes_in = any(out.is_float for out in self.stage.outputs)
        ports = (self.stage.ports[i] for i in self._device_ports)
        return comes_in and (bool(self.stage.params) or any(port.type.is_float for port in ports))

    def forward(self, dispatch: Dispatch, params: tuple[Any, ...]) -> None:
        """The forward pass of a `rows`, `edges`, `transfer`, `reduce` or `collect` stage."""
        kind, a = self.stage.kind, self._arenas
        if kind == "transfer":
            self._transfer_forward(dispatch)
            return
        written = tuple([a.values[k] for k in self._out_keys])
        grads = tuple([a.grads[k] for k in self._out_keys])
        read = tuple([a.values[k] for k in self._read_keys])
        if kind in ("rows", "edges"):
            if _is_empty(dispatch):
                return
            pack, host, *edges = self._pack(dispatch)
            if dispatch.direction == FORWARD:
                records = self._records(params)
                seeds = self._seeds(dispatch, pack.shape[1], *edges[1:])
                written, grads, self.recorded = self._forward_train(
                    params, written, grads, records, read, host, pack, seeds, *edges
                )
            else:
                written = self._forward(params, written, read, host, pack, *edges)
        else:
            slots, ids, out, host = self._segment_arguments(dispatch)
            written, grads = kernels.segments_forward(self._segments, self._wiring)(
                written, grads, read, host, slots, ids, out
            )
        for key, value, grad in zip(self._out_keys, written, grads, strict=True):
            a.values[key], a.grads[key] = value, grad

    def learns_at_once(self, dispatch: Dispatch) -> bool:
        """Whether a dispatch's kernel computes weight gradients, and can use them for an update (`engine.learning.Updating`)."""
        computes = self.stage.kind == "loss" or (self.stage.kind == "rows" and self.needs_backward)
        return computes and dispatch.n_rows > 0

    def backward(
        self, dispatch: Dispatch, params: tuple[Any, ...], learning: Learning, learnt: Any, told: Any
    ) -> tuple[Any, ...]:
        """The adjoint; returns what `learning` makes of `learnt` (of a chain: accumulators) and this dispatch's weight gradients."""
        kind, a = self.stage.kind, self._arenas
        if not self.needs_backward or (_is_empty(dispatch) and kind in ("rows", "edges", "transfer")):
            return learnt
        if kind == "transfer":
            self._transfer_backward(dispatch)
            return learnt
        values = tuple([a.values[k] for k in self._keys])
        grads = tuple([a.grads[k] for k in self._keys])
        if kind in ("rows", "edges"):
            pack, host, *edges = self._pack(dispatch)
            records = self._records(params)
            seeds = self._seeds(dispatch, pack.shape[1], *edges[1:])
            more = edges if kind == "edges" else (told,)
            kernel = self._adjoint(learning)
            grads, learnt = kernel(params, values, grads, learnt, records, host, pack, seeds, *more)
        else:
            slots, ids, out, host = self._segment_arguments(dispatch)
            grads = kernels.segments_backward(self._segments, self._wiring)(
                values, grads, host, slots, ids, out, np.int32(len(dispatch.out_rows[0]))
            )
        for key, grad in zip(self._keys, grads, strict=True):
            a.grads[key] = grad
        return learnt

    def loss_train(
        self,
        dispatch: Dispatch,
        params: tuple[Any, ...],
        learning: Learning,
        learnt: Any,
        told: Any,
        metrics: jax.Array,
    ) -> tuple[Any, jax.Array]:
        """Loss and adjoint at once; returns what `backward` does, and the metrics with this dispatch's sums added."""
        if not dispatch.n_rows:
            return learnt, metrics
        a = self._arenas
        values = tuple([a.values[k] for k in self._keys])
        grads = tuple([a.grads[k] for k in self._keys])
        pack, host, *_ = self._pack(dispatch)
        seeds = self._seeds(dispatch, pack.shape[1])
        kernel = self._adjoint(learning)
        grads, learnt, metrics = kernel(params, values, grads, learnt, metrics, host, pack, seeds, told)
        for key, grad in zip(self._keys, grads, strict=True):
            a.grads[key] = grad
        return learnt, metrics

    def loss_infer(self, dispatch: Dispatch, params: tuple[Any, ...], metrics: jax.Array) -> jax.Array:
        """The loss alone; returns the metrics with this dispatch's sums added."""
        if not dispatch.n_rows:
            return metrics
        pack, host, *_ = self._pack(dispatch)
        values = tuple(self._arenas.values[k] for k in self._keys)
        return self._loss_infer(params, values, metrics, host, pack)

    def read(self, dispatch: Dispatch, port: int = 0) -> Any:
        """The rows that arrive at a port, `[r, *shape]` (padded: take the first `n_rows`)."""
        key, slots = self.stage.ports[port].arena, dispatch.in_rows[port]
        if key[0] == HOST:
            return self._arenas.host[key][slots]
        return kernels.get_rows(self._arenas.values[key], _padded(slots, self._ladder(dispatch.n_rows), True))

    # -- arguments

    def _pack(self, dispatch: Dispatch) -> tuple[Any, ...]:
        """The packed slots `[lines + 1, k]`, the rows of host ports `[k, *shape]`, and for a chain its edges and their padded sizes."""
        n, k, more = dispatch.n_rows, self._ladder(dispatch.n_rows), ()
        if dispatch.edges is not None:
            k, sizes = self._fit(dispatch, dispatch.edges)
            more = (padded_edges(dispatch.edges, k, sizes), sizes)
        lines = [dispatch.in_rows[i] for i in self._device_ports]
        pack = np.empty((len(lines) + len(dispatch.out_rows) + 1, k), np.int32)
        for line, slots in enumerate([*lines, *dispatch.out_rows]):
            pack[line, : len(slots)] = slots
            if k > len(slots):
                pack[line, len(slots) :] = slots[0] if line < len(lines) and n else TRASH
        pack[-1] = n
        host = [self._arenas.host[key].take(_repeated(dispatch.in_rows[i], k), axis=0) for i, key in self._host_ports]
        return pack, tuple(host), *more

    def _fit(self, dispatch: Dispatch, edges: Edges) -> tuple[int, tuple[int, ...]]:
        """The padded sizes of a chain's dispatch; what it expects is told from the first one, if nobody has told before."""
        if self.edge_sizes is None:
            assert dispatch.sizes is not None
            self.edge_sizes = EdgeSizes.of([(dispatch.sizes, edges.counts)])
        return self.edge_sizes.fit(self._ladder, max(dispatch.n_rows, len(dispatch.out_rows[0])), edges.totals)

    def _records(self, params: tuple[Any, ...]) -> tuple[jax.Array, ...]:
        """The arrays that hold what the adjoint needs of the activations: as long as the first output's arena."""
        kept = self._plan_records(params)
        capacity = self._arenas.capacity[self._out_keys[0]]
        if self._record_capacity < capacity:
            device = self._devices[self.stage.space]
            old = self.recorded or tuple(zeros(device, 0, shape, dtype) for shape, dtype in kept.rows)
            self.recorded = tuple(grow(r, capacity) for r in old)
            self._record_capacity = capacity
        return self.recorded

    def _plan_records(self, params: tuple[Any, ...]) -> Kept:
        """Which activations are recorded: found once."""
        if self._kept is None:
            rows = tuple((port.type.shape, port.type.dtype.name) for port in self.stage.ports)
            find: Any = find_kept if self._chain is None else find_chain_kept
            kept: Kept = find(self.program, rows, shapes_of(params)) if self.needs_backward else Kept()
            of: Any = kernels if self._chain is None else chain_kernels
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

    def _seeds(self, dispatch: Dispatch, k: int, edge_sizes: tuple[int, ...] = ()) -> Any:
        """The random numbers of the rows, padded; for a chain also those of each way's edges."""
        if not self._random:
            return None
        rows, *ways = self._draws.of(dispatch)
        padded = _padded(rows, k, True)
        if dispatch.edges is None:
            return padded
        return padded, tuple(_padded(way, size, True) for way, size in zip(ways, edge_sizes, strict=True))

    def _segment_arguments(
        self, dispatch: Dispatch
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], np.ndarray, tuple[np.ndarray, ...]]:
        out = dispatch.out_rows[0]
        r, m = segment_sizes(max(map(len, dispatch.in_rows)), len(out))
        slots, ids, host = [], [], []
        for i, port in enumerate(self.stage.ports):
            rows = dispatch.in_rows[i]
            assert dispatch.sizes is not None
            places = (
                np.repeat(np.arange(len(dispatch.sizes)), dispatch.sizes)
                if self.stage.kind == "reduce"
                else dispatch.scatter[i]
            )
            slots.append(_padded(rows, r, True))
            ids.append(np.concatenate([places, np.full(r - len(rows), m)]).astype(np.int32))
            if port.space == HOST:
                host.append(self._arenas.host[port.arena][slots[-1]])
        return tuple(slots), tuple(ids), _padded(out, m, False), tuple(host)

    # -- transfers

    def _transfer_forward(self, dispatch: Dispatch) -> None:
        n = dispatch.n_rows
        if not n:
            return
        a, k = self._arenas, self._ladder(n)
        source, target = self.stage.ports[0].arena, self._out_keys[0]
        slots = _padded(dispatch.in_rows[0], k, True)
        if source[0] == HOST:
            rows: Any = a.host[source][slots]
        else:
            rows = jax.device_put(kernels.get_rows(a.values[source], slots), self._devices[self.stage.space])
        grads = None if self.stage.written[0] else a.grads[target]
        a.values[target], zeroed = kernels.put_rows(
            a.values[target], grads, _padded(dispatch.out_rows[0], k, False), rows
        )
        if zeroed is not None:
            a.grads[target] = zeroed

    def _transfer_backward(self, dispatch: Dispatch) -> None:
        a, k = self._arenas, self._ladder(dispatch.n_rows)
        source, target = self.stage.ports[0].arena, self._out_keys[0]
        here, there = a.grads[target], a.grads[source]
        assert here is not None and there is not None
        rows = kernels.get_rows(here, _padded(dispatch.out_rows[0], k, False))
        rows = jax.device_put(rows, self._devices[source[0]])
        a.grads[source] = kernels.pay_rows(there, _padded(dispatch.in_rows[0], k, False), rows, self.stage.sole[0])


def _repeated(slots: np.ndarray, k: int) -> np.ndarray:
    """Slots `[k]`: padded with the first one, or where there is none with the trash slot."""
    slots = slots if len(slots) else np.full(1, TRASH)
    return slots if len(slots) == k else np.concatenate([slots, slots[:1].repeat(k - len(slots))])


def _padded(slots: np.ndarray, k: int, repeat: bool) -> np.ndarray:
    """Slots as int32 `[k]`: padded with the first one, or with the trash slot."""
    out = np.empty(k, np.int32 if slots.dtype != np.uint32 else np.uint32)
    n = len(slots)
    out[:n] = slots
    out[n:] = slots[0] if repeat and n else TRASH
    return out


def _is_empty(dispatch: Dispatch) -> bool:
    """Whether a dispatch has no rows at all: neither any that come in nor, where a chain collects, any that go out."""
    return not dispatch.n_rows and (dispatch.edges is None or not dispatch.edges.n_rows.any())
