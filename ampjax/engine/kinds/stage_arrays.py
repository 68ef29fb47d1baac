"""The arrays that a stage's kernels take: its arenas, and the arrays of launches, padded and stacked. All kinds share this."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ampjax.engine.kernels import copy_kernels
from ampjax.engine.kernels.coalescing import COUNTS, MOST_BYTES, Coalesced
from ampjax.engine.kernels.kernel import Kernel
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.wiring import Wiring
from ampjax.engine.memory.arenas import Arenas
from ampjax.plan.ladders import ladder_for
from ampjax.plan.stages import HOST, ArenaKey, Stage
from ampjax.sched.decisions import packs
from ampjax.sched.decisions.dispatch import INFER
from ampjax.sched.layout.columns import N_HEAD

Arrays = tuple[Any, ...]
"""An array of rows for each of some arenas."""


class StageArrays:
    """The arrays that one stage's kernels take and return.

    Kernels get the arenas of the stage's outputs first, then those that are only read. Arenas are looked up anew for each launch, since a
    kernel that writes to one replaces it.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
      draws: Whether its bodies draw random numbers.
      loops: Whether its kernels can be looped.

    Attributes:
      wiring: Which of a kernel's arenas each port and each output has.
    """

    def __init__(
        self,
        stage: Stage,
        arenas: Arenas,
        draws: bool = False,
        loops: bool = False,
    ):
        self._stage = stage
        self._arenas = arenas
        self._draws = draws
        self.size_for = ladder_for(stage)
        self._out_keys = list(dict.fromkeys(stage.arenas))
        in_keys = [port.arena for port in stage.ports if port.space != HOST]
        self._read_keys = [key for key in dict.fromkeys(in_keys) if key not in self._out_keys]
        self._keys: list[ArenaKey] = [*self._out_keys, *self._read_keys]
        host_ports = []
        for i, port in enumerate(stage.ports):
            if port.space == HOST:
                host_ports.append((i, port.arena))
        self._host_ports = host_ports
        self._n_sections = len(stage.ports) + len(stage.outputs)
        self._largest_looped = self._find_largest_looped() if loops else 0
        self.wiring = Wiring(
            tuple(
                None if port.space == HOST else self._keys.index(port.arena) for port in stage.ports
            ),
            tuple(self._keys.index(key) for key in stage.arenas),
            stage.sole,
            stage.written,
        )
        self._all_arenas = *(port.arena for port in stage.ports), *stage.arenas
        self._get = copy_kernels.get_rows(self._all_arenas)

    def _find_largest_looped(self) -> int:
        """The most rows of a dispatch that may share a call with others.

        Its slots, its random numbers and its rows from the host are all copied to be stacked.
        """
        from_host = sum(
            math.prod(shape) * np.dtype(dtype).itemsize for _, (_, shape, dtype) in self._host_ports
        )
        return MOST_BYTES // (
            4 * (self._n_sections - len(self._host_ports) + 1 + self._draws) + from_host
        )

    # -- arenas

    def outputs(self) -> tuple[Arrays, Arrays, Arrays]:
        """The values and the adjoint rows (None for integers) of the outputs' arenas, and the values of the arenas that are only read."""
        a = self._arenas
        values = a.values
        grads = a.grads
        return (
            tuple([values[key] for key in self._out_keys]),
            tuple([grads[key] for key in self._out_keys]),
            tuple([values[key] for key in self._read_keys]),
        )

    def put_outputs(self, values: Arrays, grads: Arrays) -> None:
        """Replaces the values and the adjoint rows of the outputs' arenas."""
        a = self._arenas
        for key, value, grad in zip(self._out_keys, values, grads, strict=True):
            a.values[key] = value
            a.grads[key] = grad

    def everything(self) -> tuple[Arrays, Arrays]:
        """The values and the adjoint rows (None for integers) of all arenas of the stage."""
        values = self._arenas.values
        grads = self._arenas.grads
        return tuple([values[key] for key in self._keys]), tuple([grads[key] for key in self._keys])

    def put_gradients(self, grads: Arrays) -> None:
        """Replaces the adjoint rows of all arenas of the stage."""
        self._arenas.grads.update(zip(self._keys, grads, strict=True))

    @functools.cached_property
    def _put(self) -> Kernel:
        return copy_kernels.put_rows(self._all_arenas)

    def put_rows(self, slots: np.ndarray, rows: Any) -> None:
        """Writes rows to slots of the only output, `[k, *shape]`, and zeros to their adjoint rows where gradients will be added."""
        arenas = self._arenas
        key = self._stage.arenas[0]
        grads = None if self._stage.written[0] else arenas.grads[key]
        arenas.values[key], zeroed = self._put.once(
            arenas.values[key],
            grads,
            slots,
            rows,
        )
        if zeroed is not None:
            arenas.grads[key] = zeroed

    # -- launches

    def can_coalesce(self, before: Launch, launch: Launch) -> bool:
        """Whether one call can carry out a launch and the launch before: both have the same size, and a loop over both is faster."""
        k = self.size(launch)
        return (
            k == self.size(before)
            and k <= self._largest_looped
            and min(launch.n_rows, before.n_rows) > 0
        )

    def size(self, launch: Launch) -> int:
        """The size to which a launch is padded."""
        return launch.size or self.size_for(launch.n_rows)

    def call(
        self,
        kernel: Kernel,
        params: Any,
        donated: Any,
        read: Any,
        launches: Coalesced,
        scalars: Any = None,
    ) -> Any:
        """Calls a `@kernel` for launches: once, or looped where the kernel and the size allow.

        Args:
          kernel: The kernel (`kernels.kernel`).
          params: The stage's parameters.
          donated: The arrays that it changes.
          read: The arrays that it only reads.
          launches: One or several launches of the same size.
          scalars: `kernel.PerDispatch.scalars`.

        Returns:
          The changed `donated`.
        """
        k = self.size(launches[0])
        # Small dispatches of loopable kernels always take the looped function, even one alone: else
        # each would be compiled twice.
        if k <= self._largest_looped and kernel.looped is not None:
            host, pack = self.rows(launches, k, packs.MOST_COALESCED)
            stacked = host, pack, self._seeds(launches, k, packs.MOST_COALESCED), scalars
            return kernel.looped(
                COUNTS[len(launches)],
                params,
                donated,
                read,
                stacked,
            )
        # One dispatch: the stacked arrays without their first axis.
        host, pack = self.rows(launches, k, 1)
        seeds = self._seeds(launches, k, 1)
        per_dispatch = (
            tuple([rows[0] for rows in host]),
            pack[0],
            None if seeds is None else seeds[0],
            scalars,
        )
        return kernel.once(params, donated, read, per_dispatch)

    def rows(
        self, launches: Coalesced, k: int, most: int
    ) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """The arrays of launches, padded and stacked; entries after the last launch are undefined.

        Args:
          launches: The launches.
          k: The size to which each is padded.
          most: How many are stacked.

        Returns:
          The rows of host ports, `[most, k, *shape]` each, and the packs, int32 `[most, n_lines, k]`.
        """
        # Slots first: rows from the host are looked up by them.
        pack = self._packs(launches, k, most)
        n = len(launches)
        host: list[np.ndarray] = []
        for i, key in self._host_ports:
            arena = self._arenas.host[key]
            rows = np.empty(
                (most, k, *arena.shape[1:]),
                arena.dtype,
            )
            arena.take(
                pack[:n, N_HEAD + i],
                axis=0,
                out=rows[:n],
                mode="clip",
            )
            host.append(rows)
        return tuple(host), pack

    def lines(self, launch: Launch) -> np.ndarray:
        """The slots of each port, then of each output, of a launch, padded to the size of its kernel: int32 `[ports + outputs, k]`.

        Padding repeats a port's first slot; for outputs it is the trash slot. Where gradients go to a port's rows, padding must be the trash slot,
        too: `pad_slots(launch.in_rows[port], k, False)`.
        """
        return self._packs([launch], self.size(launch), 1)[0, N_HEAD : N_HEAD + self._n_sections]

    def read(self, launch: Launch, port: int) -> Any:
        """The rows that arrive at a port, `[r, *shape]` (perhaps padded: take the first `n_rows`)."""
        key = self._stage.ports[port].arena
        if key[0] == HOST:
            return self._arenas.host[key][launch.in_rows[port]]
        return self._get.once(
            self._arenas.values[key],
            self.lines(launch)[port],
        )

    def _packs(
        self,
        launches: Coalesced,
        k: int,
        most: int,
    ) -> np.ndarray:
        """The packs of dispatches, padded, `[most, n_lines, k]`; packs that the scheduler has padded are used unchanged."""
        # The scheduler has padded these already.
        if launches[0].size:
            return packs.stack_packs(
                [launch.pack for launch in launches],
                [launch.place for launch in launches],
                most,
                k,
            )
        out = np.empty(
            (most, packs.n_lines(self._n_sections, k), k),
            np.int32,
        )
        for pack, launch in zip(out, launches, strict=False):
            pack[:] = packs.make_padded(launch.in_rows, launch.out_rows, k)
        return out

    def _seeds(
        self,
        launches: Coalesced,
        k: int,
        most: int,
    ) -> np.ndarray | None:
        """The random numbers of the rows, uint32 `[most, k]`, padded; None where none are drawn, as in inference."""
        if not self._draws or launches[0].direction == INFER:
            return None
        seeds = np.empty((most, k), np.uint32)
        for number, launch in enumerate(launches):
            packs.pad_into(seeds[number], launch.seeds[0], True)
        return seeds


def pad_slots(
    slots: np.ndarray,
    k: int,
    repeat: bool,
) -> np.ndarray:
    """Slots, or random numbers, as int32 or uint32 `[k]`: padded with the first one (`repeat`), or with the trash slot."""
    out = np.empty(
        k,
        np.int32 if slots.dtype != np.uint32 else np.uint32,
    )
    packs.pad_into(out, slots, repeat)
    return out
