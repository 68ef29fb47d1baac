"""Foresight of a loop: the carry holds the choices of coming elements, so that a choice needs no message from each element.

A choice between K functions is a digit in base K. The digits of the next elements are one number, a *word*, in the messages' states: each
step takes the lowest digit from it. A word holds as many digits as its bits can; where one is used up and the sequence goes on, a pumped
message brings the next word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.frontend.draft.index_spaces import Column, Guard, IndexSpace
from ampjax.ir.state import State

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns


BITS = 62
"""Bits of a word."""

EXACT = 2**53
"""Up to this number float64 has every integer."""


class Foresight:
    """The words of a loop.

    Args:
      outer: The space around the loop.
      space: The space of the elements that it goes over.
      back: Whether it begins with the last one.

    Attributes:
      fields: The state fields of the elements' space that the loop keeps right: the choices, and what is left of the words.
      at_end: Where a word is used up and the sequence goes on.
    """

    def __init__(self, outer: IndexSpace, space: IndexSpace, back: bool):
        self._outer = outer
        self._space = space
        self._back = back
        self._choices: dict[str, tuple[Column, int]] = {}
        self.fields: set[str] = set()
        self.at_end = Guard(f"{space.dimension}_word_ends", 1, Column(space, self._is_end))

    def note(self, field: str, column: Column, n_values: int) -> None:
        """Makes the loop tell one more field.

        Args:
          field: The field.
          column: Its values, one for each element.
          n_values: They are below this number.
        """
        base = max(n_values, 2)
        self._choices[field] = column, base
        first = Column(self._outer, lambda data: self._first_words(data, field))
        rest = Column(
            self._space,
            lambda data: self._words(data, field)[0],
        )
        self._outer.fact(
            f"{field}_word", first, f"`{field}` of the first elements, as digits in base {base}"
        )
        self._space.fact(
            f"{field}_rest", rest, f"`{field}` of the next elements, as digits in base {base}"
        )
        self.fields |= {field, f"{field}_rest"}

    @property
    def next_words(self) -> Mapping[str, Column]:
        """The words that follow on used-up words, by state field."""
        return {
            f"{field}_rest": Column(
                self._space,
                lambda data, field=field: self._words(data, field)[1],
            )
            for field in self._choices
        }

    def begin(self, s: State) -> dict[str, Any]:
        """The fields at the first element, from a state outside."""
        return self._digits({field: getattr(s, f"{field}_word") for field in self._choices})

    def go_on(self, s: State) -> dict[str, Any]:
        """The fields at the next element."""
        return self._digits({field: getattr(s, f"{field}_rest") for field in self._choices})

    def is_at_end(self, s: State) -> Any:
        """Tells by an element's state whether a word is used up with that element."""
        at = getattr(s, self._space.index)
        if self._back:
            done = getattr(s, self._space.size) - at
        else:
            done = at + 1
        return done % self._per_word == 0

    def _digits(
        self,
        words: Mapping[str, Any],
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for field, word in words.items():
            base = self._choices[field][1]
            fields |= {field: word % base, f"{field}_rest": word // base}
        return fields

    @property
    def _per_word(self) -> int:
        """Digits that a word holds: the same for all fields."""
        return _digits(
            max(base for _, base in self._choices.values()),
            BITS,
        )

    def _powers(self, field: str) -> np.ndarray:
        """Computes the weight of each digit of a word."""
        return self._choices[field][1] ** np.arange(self._per_word, dtype=np.int64)

    def _steps(self, data: Columns) -> np.ndarray:
        """The step at which the loop comes to each element."""
        numbers = self._space.numbers(data)
        if self._back:
            return self._space.lengths(data)[self._space.parents(data)] - 1 - numbers
        return numbers

    def _first_words(self, data: Columns, field: str) -> np.ndarray:
        """The first word of each row around."""
        n = self._space.lengths(data)
        powers = self._powers(field)
        values = self._choices[field][0].of(data)
        if (
            len(n) and 0 < n[0] <= self._per_word and (n == n[0]).all()
        ):  # sequences of one length are a matrix
            weights = (powers[n[0] - 1 :: -1] if self._back else powers)[: n[0]]
            # floats are quicker
            if powers[n[0] - 1] * self._choices[field][1] <= EXACT:
                kind = np.float64
            else:
                kind = np.int64
            return (values.reshape(len(n), n[0]).astype(kind) @ weights.astype(kind)).astype(
                np.int64, copy=False
            )
        steps = self._steps(data)
        digits = np.where(
            steps < self._per_word,
            values * powers[steps % self._per_word],
            0,
        )
        words = np.zeros(len(n), np.int64)
        np.add.at(words, self._space.parents(data), digits)
        return words

    def _words(
        self,
        data: Columns,
        field: str,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Computes for each element the rest of its word, and the word that follows."""
        return data.once(
            (self, field),
            lambda: self._make_words(data, field),
        )

    def _make_words(
        self,
        data: Columns,
        field: str,
    ) -> tuple[np.ndarray, np.ndarray]:
        column, base = self._choices[field]
        powers = self._powers(field)
        steps = self._steps(data)
        n_words = -(-self._space.lengths(data) // self._per_word)
        word = (np.cumsum(n_words) - n_words)[self._space.parents(data)] + steps // self._per_word
        place = steps % self._per_word
        words = np.zeros(
            int(n_words.sum()) + 1,
            np.int64,
        )
        np.add.at(
            words,
            word,
            column.of(data) * powers[place],
        )
        return words[word] // powers[place] // base, words[word + 1]

    def _is_end(self, data: Columns) -> np.ndarray:
        n = self._space.lengths(data)
        if n.max(initial=0) <= self._per_word:
            return np.broadcast_to(
                np.int64(0),
                int(n.sum()),
            )
        steps = self._steps(data)
        return ((steps + 1) % self._per_word == 0) & (steps + 1 < n[self._space.parents(data)])


@cache
def _digits(base: int, bits: int) -> int:
    """Counts the digits of a base that fit into some bits."""
    return next(n for n in range(bits, 0, -1) if base**n <= 2**bits)
