"""Packs: the slots and numbers of a dispatch as one array of integers, in the layout that kernels take.

A pack begins with the dispatch's messages (their numbers among those in flight), their program lines and the numbers of their instances. Then come the arena slots of the rows of
each port and each output, its *sections*. Where each message has one row, the scheduler's loops pad all of these to one size: a pack is a matrix `[n_lines, size]`, with a line for each of
them, and one that begins with the number of rows. Ports are padded with their first slot, outputs with the trash slot. Kernels take the matrix as it is; what is in other columns of
the first lines, and in lines behind the last, is undefined. Else a pack has how many rows each section has, and then their slots, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.sched.layout.columns import ALIGNED, N_HEAD, TRASH

MOST_COALESCED = 16
"""Dispatches that one call of a kernel carries out, at most: their packs are read as one array."""

PIECE_LENGTH = 1 << 16
"""Numbers for which memory is taken at once."""


def n_lines(n_sections: int, size: int) -> int:
    """Counts the lines of a padded pack.

    Returns:
      How many lines; times `size` they are a multiple of `ALIGNED`.
    """
    n = N_HEAD + n_sections + 1
    while n * size % ALIGNED:
        n += 1
    return n


def rows_of(
    pack: np.ndarray,
    n_messages: int,
    n_sections: int,
    size: int,
) -> list[np.ndarray]:
    """Gives the slots of each section of a pack, without padding.

    Args:
      pack: The pack, int32.
      n_messages: Messages in it.
      n_sections: Ports and outputs of the stage together.
      size: The padded size; 0 if it is not padded.

    Returns:
      For each section its slots `[n]`, as views of the pack.
    """
    if size:
        return [
            pack[at : at + n_messages]
            for at in range(N_HEAD * size, (N_HEAD + n_sections) * size, size)
        ]
    at = N_HEAD * n_messages + n_sections
    sections = list[np.ndarray]()
    for rows in pack[at - n_sections : at].tolist():
        sections.append(pack[at : at + rows])
        at += rows
    return sections


def ids_of(
    pack: np.ndarray,
    n_messages: int,
    size: int,
) -> np.ndarray:
    """Gives the numbers of the instances of a pack's messages.

    Args:
      pack: The pack, int32.
      n_messages: Messages in it.
      size: The padded size; 0 if it is not padded.

    Returns:
      The numbers `[n_messages]`, a view of the pack.
    """
    start = 2 * (size or n_messages)
    return pack[start : start + n_messages]


def make_unpadded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Makes a pack of no messages that is not padded.

    Returns:
      The pack, int32.
    """
    return np.concatenate(
        [
            np.array(
                [len(section) for section in rows],
                np.int32,
            ),
            *rows,
        ]
    ).astype(np.int32)


def make_padded(
    in_rows: Sequence[np.ndarray],
    out_rows: Sequence[np.ndarray],
    size: int,
) -> np.ndarray:
    """Makes a padded pack of no messages.

    Args:
      in_rows: `[n]` for each port: the slots of its rows. A port without rows is padded with the trash slot.
      out_rows: `[n]` for each output: the slots of its rows.
      size: The padded size, at least `n`.

    Returns:
      `[n_lines, size]` int32.
    """
    n_sections = len(in_rows) + len(out_rows)
    pack = np.zeros(
        (n_lines(n_sections, size), size),
        np.int32,
    )
    for line, slots in enumerate(in_rows, N_HEAD):
        pad_into(pack[line], slots, True)
    for line, slots in enumerate(out_rows, N_HEAD + len(in_rows)):
        pad_into(pack[line], slots, False)
    pack[N_HEAD + n_sections, 0] = len(in_rows[0])
    return pack


def pad_into(
    out: np.ndarray,
    slots: np.ndarray,
    repeat: bool,
) -> None:
    """Writes slots, padded with the first one, or with the trash slot.

    Args:
      out: `[size]`, to be written.
      slots: `[n]`, with `n <= size`.
      repeat: True pads with the first slot, False with the trash slot.
    """
    n = len(slots)
    out[:n] = slots
    if n < len(out):
        out[n:] = slots[0] if repeat and n else TRASH


class PackMemory:
    """The memory of packs for kernels, one behind the other. Each pack begins at a multiple of 64 bytes, and its place is not written to again."""

    def __init__(self) -> None:
        self._piece = np.zeros(0, np.int32)
        self._end = 0

    def keep(
        self,
        packs: np.ndarray,
    ) -> tuple[np.ndarray, int]:
        """Keeps some packs, one behind the other.

        Args:
          packs: int32: the packs; their length is a multiple of `ALIGNED`.

        Returns:
          The array that they are a part of now, and where they begin in it.
        """
        start = self._end
        n = len(packs)
        if start + n > len(self._piece):
            self._piece = np.empty(
                max(n, PIECE_LENGTH) + ALIGNED,
                np.int32,
            )
            start = -self._piece.ctypes.data // self._piece.itemsize % ALIGNED
        self._end = start + n
        self._piece[start : self._end] = packs
        return self._piece, start


def stack_packs(
    packs: Sequence[np.ndarray],
    places: Sequence[int],
    most: int,
    size: int,
) -> np.ndarray:
    """Puts padded packs of one size into one array, without a copy where the packs lie one behind the other.

    Args:
      packs: Of one length.
      places: Where each begins in the array that it is a part of.
      most: At least as many as there are.
      size: The padded size.

    Returns:
      `[most, n_lines, size]` int32; the first ones are these packs, the others are undefined.
    """
    first = packs[0]
    start = places[0]
    whole = first.base
    length = len(first)
    if isinstance(whole, np.ndarray) and start + most * length <= len(whole):
        behind = zip(
            packs,
            places,
            range(start, start + most * length, length),
            strict=False,
        )
        if all([pack.base is whole and place == expected for pack, place, expected in behind]):
            return whole[start : start + most * length].reshape(
                most,
                -1,
                size,
            )
    out = np.empty((most, length // size, size), np.int32)
    for place, pack in enumerate(packs):
        out[place] = pack.reshape(-1, size)
    return out
