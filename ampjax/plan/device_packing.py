"""Packing: nodes onto devices whose memory is limited.

AMPNet's premise is a network of devices, each with a little memory of its own: a node runs where what it keeps (parameters, gradients,
optimizer state) has room. Rules of affinity say where nodes should be; here as many of them as possible stay there, and the others move.

Knows names, workers and bytes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ampjax.errors import SettingsError

MOST_SEARCH_STEPS = 200_000
"""Places that a search looks at, at most: whether things fit into boxes is hard to tell in general."""

MOST_NAMED = 6
"""Nodes that an error names, at most: the largest."""


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of a machine's devices, and the nodes' shares in that memory.

    Args:
      limit: Bytes of each device.
      sizes: Bytes that each node with parameters keeps, by name.
      device_of: The device of each worker.
    """

    limit: int
    sizes: Mapping[str, int]
    device_of: Sequence[int]

    def check(self, placed: Mapping[str, int]) -> None:
        """Checks a placement.

        Raises:
          SettingsError: If a device has no room for its nodes; names them and their bytes.
        """
        for device, used in self._count_used(placed).items():
            if used > self.limit:
                on_device = []
                for name, worker in placed.items():
                    if self.device_of[worker] == device:
                        on_device.append(name)
                raise SettingsError(
                    "setting `device_memory`",
                    f"nodes of at most {self.limit} bytes on device {device}, with parameters, gradients and optimizer state",
                    f"{used} bytes: {self._name_largest(on_device)}",
                    "Place some of them elsewhere, or raise `device_memory`.",
                )

    def fit(
        self,
        wanted: Mapping[str, int],
        pinned: Mapping[str, int],
    ) -> dict[str, int]:
        """Places nodes on the wanted workers, as far as there is room.

        A node that has none moves to the next worker that has some; where that leads nowhere, all are packed anew, the largest first.

        Args:
          wanted: Node name to worker, of every node that keeps something.
          pinned: Those of them that must not move.

        Returns:
          The same names with their workers.

        Raises:
          SettingsError: If there is not enough room, or no way to use it was found; names nodes and bytes.
        """
        self.check({name: worker for name, worker in wanted.items() if name in pinned})
        large = []
        for name in wanted:
            if self.sizes.get(name, 0) > self.limit:
                large.append(name)
        if large:
            raise SettingsError(
                "setting `device_memory`",
                f"at least {self.sizes[large[0]]} bytes, what node `{large[0]}` keeps: parameters, gradients and optimizer state",
                f"{self.limit}",
                "Raise it, or cut the node into smaller ones.",
            )
        placed = self._move_on(wanted, pinned)
        if placed is None:
            placed = self._pack_largest(wanted, pinned)
        if placed is None:
            raise SettingsError(
                "setting `device_memory`",
                f"room for {sum(self.sizes.get(name, 0) for name in wanted)} bytes on {len(self._count_used({}))} device(s): {self._name_largest(wanted)}",
                f"{self.limit} bytes on each, into which no way to put the nodes was found",
                "Raise it, or add workers.",
            )
        return placed

    def _move_on(
        self,
        wanted: Mapping[str, int],
        pinned: Mapping[str, int],
    ) -> dict[str, int] | None:
        """Each node stays, or moves to the next worker with room; None if there is none."""
        free = self._free(pinned)
        placed = dict(pinned)
        n = len(self.device_of)
        for name, start in wanted.items():
            if name in pinned:
                continue
            size = self.sizes.get(name, 0)
            round_trip = ((start + i) % n for i in range(n))
            worker = next(
                (w for w in round_trip if free[self.device_of[w]] >= size),
                None,
            )
            if worker is None:
                return None
            placed[name] = worker
            free[self.device_of[worker]] -= size
        return {name: placed[name] for name in wanted}

    def _pack_largest(
        self, wanted: Mapping[str, int], pinned: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Places the largest nodes first, each where the least room is left, with backtracking. None if no placing fits."""
        names = sorted(
            (n for n in wanted if n not in pinned),
            key=lambda name: -self.sizes.get(name, 0),
        )
        sizes = [self.sizes.get(name, 0) for name in names]
        free = self._free(pinned)
        chosen: list[int] = []
        if sizes:
            choices = [_rooms(free, sizes[0])]
        else:
            choices = []
        for _ in range(max(MOST_SEARCH_STEPS // len(free), 2 * len(names))):
            if len(chosen) == len(names):
                worker_of = dict(
                    zip(
                        names,
                        (self.device_of.index(device) for device in chosen),
                        strict=True,
                    )
                )
                return {name: worker_of.get(name, wanted[name]) for name in wanted}
            device = next(choices[-1], None)
            if device is not None:
                free[device] -= sizes[len(chosen)]
                chosen.append(device)
                choices.append(
                    _rooms(
                        free,
                        sizes[min(len(chosen), len(names) - 1)],
                    )
                )
                continue
            choices.pop()
            if not chosen:
                return None
            device = chosen.pop()
            free[device] += sizes[len(chosen)]
        return None

    def _free(
        self,
        placed: Mapping[str, int],
    ) -> dict[int, int]:
        result = {}
        for device, used in self._count_used(placed).items():
            result[device] = self.limit - used
        return result

    def _count_used(
        self,
        placed: Mapping[str, int],
    ) -> dict[int, int]:
        """Bytes in use, by device."""
        used = dict.fromkeys(self.device_of, 0)
        for name, worker in placed.items():
            used[self.device_of[worker]] += self.sizes.get(name, 0)
        return used

    def _name_largest(
        self,
        names: Mapping[str, int] | Sequence[str],
    ) -> str:
        """The largest nodes with their bytes."""
        largest = sorted(
            (n for n in names if self.sizes.get(n)),
            key=lambda name: -self.sizes[name],
        )
        named = ", ".join(f"`{name}` {self.sizes[name]}" for name in largest[:MOST_NAMED])
        return named + (
            f" and {len(largest) - MOST_NAMED} more" if len(largest) > MOST_NAMED else ""
        )


def _rooms(
    free: Mapping[int, int],
    size: int,
) -> Iterator[int]:
    """The devices with enough room, the least room first; of equal ones the first only, since the others are no different."""
    first = {}
    for device, room in reversed([*free.items()]):
        first[room] = device
    return iter([first[room] for room in sorted(first) if room >= size])
