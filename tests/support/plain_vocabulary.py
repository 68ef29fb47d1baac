"""A vocabulary as a Python dictionary, id by id: the oracle of `px.Vocabulary`."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class PlainId:
    """An id that has a row, or is a candidate (row 0)."""

    row: int
    count: int
    seen: int


@dataclass
class PlainVocabulary:
    """The settings of a vocabulary, and its ids, the one that was seen longest ago first."""

    n_rows: int
    max_rows: int
    admit_after: int = 1
    evict: str | None = "age"
    max_age: int | None = None
    max_candidates: int = 0
    known: OrderedDict[Any, PlainId] = field(default_factory=OrderedDict)
    candidates: OrderedDict[Any, PlainId] = field(default_factory=OrderedDict)
    free: list[int] = field(default_factory=list)
    n_used: int = 1
    calls: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def admit(self, ids: Sequence[Any]) -> tuple[list[int], dict[str, Any]]:
        """Finds the rows of a batch, and lists the changes."""
        self.calls += 1
        admitted = []
        evicted = []
        if self.max_age is not None:
            for one in self.old_ones(self.known):
                evicted.append((self.take_row(one), one))
            for one in self.old_ones(self.candidates):
                del self.candidates[one]
                self.counts["forgotten"] += 1
        seen = Counter(ids)
        for one, count in seen.items():
            if one in self.known:
                self.see(self.known, one, count)
        for one, count in seen.items():
            if one not in self.known:
                self.meet(one, count, admitted, evicted)
        rows = [self.row(one) for one in ids]
        while self.n_rows < self.n_used:
            self.n_rows = min(2 * self.n_rows, self.max_rows)
        self.counts["reads"] += len(ids)
        self.counts["unknown"] += rows.count(0)
        self.counts["admitted"] += len(admitted)
        self.counts["evicted"] += len(evicted)
        return rows, {"admitted": admitted, "evicted": evicted, "unknown": rows.count(0)}

    def meet(
        self,
        one: Any,
        count: int,
        admitted: list[Any],
        evicted: list[Any],
    ) -> None:
        """Admits an id without a row, or notes a candidate."""
        total = count
        if one in self.candidates:
            total += self.candidates[one].count
        row = None
        if total >= self.admit_after:
            row = self.find_row(evicted)
            self.counts["refused"] += row is None
        if row is not None:
            self.candidates.pop(one, None)
            self.known[one] = PlainId(row, total, self.calls)
            admitted.append((row, one))
        elif one in self.candidates:
            self.see(self.candidates, one, count)
        elif self.max_candidates:
            if len(self.candidates) == self.max_candidates:
                self.candidates.popitem(last=False)
                self.counts["forgotten"] += 1
            self.candidates[one] = PlainId(0, count, self.calls)

    def find_row(self, evicted: list[Any]) -> int | None:
        """A row for a new id."""
        if self.free:
            return self.free.pop()
        if self.n_used < self.max_rows:
            self.n_used += 1
            return self.n_used - 1
        others = []
        for i, it in self.known.items():
            if it.seen < self.calls:
                others.append(i)
        if self.evict is None or not others:
            return None
        if self.evict == "age":
            victim = others[0]
        else:
            victim = min(
                others,
                key=lambda i: self.rank(self.known[i]),
            )
        evicted.append((self.take_row(victim), victim))
        return self.free.pop()

    def rank(self, it: PlainId) -> tuple[int, int, int]:
        """The lowest goes first."""
        return it.count, it.seen, it.row

    def take_row(self, one: Any) -> int:
        """Takes the row from an id."""
        row = self.known.pop(one).row
        self.free.append(row)
        return row

    def see(self, table: OrderedDict[Any, PlainId], one: Any, count: int) -> None:
        """Notes that an id was seen."""
        table[one].count += count
        table[one].seen = self.calls
        table.move_to_end(one)

    def old_ones(self, table: OrderedDict[Any, PlainId]) -> list[Any]:
        """Ids that were in none of the last batches."""
        assert self.max_age is not None
        first = self.calls - self.max_age
        return [one for one, it in table.items() if it.seen < first]

    def row(self, one: Any) -> int:
        """The row of an id."""
        return self.known[one].row if one in self.known else 0
