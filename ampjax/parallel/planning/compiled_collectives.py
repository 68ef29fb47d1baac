"""The collectives of a compiled program: kinds and sizes, read from its text.

So bytes are those of the program that runs, not of the one that was intended. Knows HLO text; nothing of steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ampjax.parallel.planning.transfer_costs import all_gather_bytes, all_reduce_bytes

_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_LINE = re.compile(rf"^\s*(?:ROOT )?%?\S+ = (?P<result>.+?) (?P<kind>{_KINDS})(?P<start>-start)?\(")
_ARRAY = re.compile(r"\b(?P<dtype>pred|bf16|f8\w*|[a-z]\d+)\[(?P<shape>[\d,]*)\]")


@dataclass(frozen=True, order=True)
class Collective:
    """One array of a collective.

    Args:
      kind: `all-reduce`, `all-gather` and so on.
      dtype: HLO's name of the dtype: `f32`, `bf16`.
      shape: The shape of its result on one device.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the result on one device."""
        if self.dtype == "pred":
            bits = 8
        else:
            bits = int(re.findall(r"\d+", self.dtype)[0])
        size = 1
        for n in self.shape:
            size *= n
        return size * bits // 8

    def ring_bytes(self, n: int) -> float:
        """Bytes that each of n participants sends and receives in a ring.

        An AllReduce of w bytes takes 4·w·(n-1)/n; an AllGather to buffers of n·w bytes takes 2·w·(n-1). Others are not
        used here and count 0.
        """
        if self.kind == "all-reduce":
            return all_reduce_bytes(self.nbytes, n)
        if self.kind == "all-gather":
            return all_gather_bytes(self.nbytes / n, 1.0, n)
        return 0.0


def collectives(text: str) -> list[Collective]:
    """The collectives of a compiled program, one for each array, sorted; a combined one counts as its parts.

    Args:
      text: As `jax.stages.Compiled.as_text()` gives it.

    Returns:
      The collectives, sorted.

    >>> collectives("  %x = (f32[3,5]{1,0}, f32[]) all-reduce(%a, %b), channel_id=1")
    [Collective(kind='all-reduce', dtype='f32', shape=()), Collective(kind='all-reduce', dtype='f32', shape=(3, 5))]
    """
    return sorted(
        collective
        for line in text.splitlines()
        if (match := _LINE.match(line))
        for collective in _arrays(match)
    )


def _arrays(match: re.Match[str]) -> list[Collective]:
    kind = match["kind"]
    arrays = []
    for a in _ARRAY.finditer(match["result"]):
        arrays.append((a["dtype"], a["shape"]))
    if (
        match["start"] and kind != "all-reduce"
    ):  # the asynchronous form lists operands before results
        arrays = arrays[len(arrays) // 2 :]
    result = []
    for dtype, shape in arrays:
        result.append(
            Collective(
                kind,
                dtype,
                tuple(int(n) for n in shape.split(",") if n),
            )
        )
    return result
