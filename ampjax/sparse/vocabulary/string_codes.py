"""Integers in place of strings, for tables that find integers only. A string has its integer for as long as the string is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from ampjax.sparse.vocabulary.id_columns import NONE


class StringCodes:
    """The integers of strings. No integer is given twice.

    Args:
      texts: The strings that have integers at first: 0, 1, 2 and so on.
    """

    def __init__(self, texts: Iterable[str] = ()):
        self._texts: dict[int, str] = {}
        self._codes: dict[str, int] = {}
        for code, text in enumerate(texts):
            self._texts[code] = text
            self._codes[text] = code
        self._next = len(self._texts)

    def find(self, texts: Sequence[str]) -> np.ndarray:
        """Finds the integers of strings, `[n]`; `NONE` for a string without an integer.

        Args:
          texts: `[n]`.
        """
        codes = map(self._codes.get, texts, repeat(NONE))
        return np.fromiter(codes, np.int64, len(texts))

    def give(self, texts: Sequence[str]) -> np.ndarray:
        """Finds the integers of strings, `[n]`, and gives new integers to new strings.

        Args:
          texts: `[n]`.
        """
        codes = self.find(texts)
        for place in np.flatnonzero(codes == NONE).tolist():
            text = texts[place]
            code = self._codes.setdefault(text, self._next)
            if code == self._next:
                self._texts[code] = text
                self._next += 1
            codes[place] = code
        return codes

    def texts(self, codes: np.ndarray) -> list[str]:
        """Finds the strings of integers.

        Args:
          codes: `[n]`; all have been given, and are not forgotten.
        """
        return [self._texts[code] for code in codes.tolist()]

    def forget(self, codes: np.ndarray) -> None:
        """Forgets strings.

        Args:
          codes: `[n]`, their integers, each once.
        """
        for code in codes.tolist():
            text = self._texts.pop(code)
            del self._codes[text]
