"""Formulas of digits with minus and times, and the actions of the shift-reduce parser that evaluates them.

Times binds more closely, and of two minuses the one on the right: 3 - 2 - 1 is 3 - (2 - 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.data.readers.data_checks import at_least_one

N_CLASSES = 5
"""Digits are 0 to 4; both operators calculate modulo 5."""
END = 0
MINUS = 1
TIMES = 2
"""What follows a digit; a larger number binds more closely."""
N_WORDS = 3 * N_CLASSES
MOST_WORDS = 4
SHIFT = 0
REDUCE = 1


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
) -> list[dict[str, Any]]:
    """Draws formulas of one to four digits.

    Args:
      n: How many.
      seed: Same seed, same formulas.

    Returns:
      Instances: `words` `[w]` int32, each 3 times a digit and what follows it; `actions` `[2 w - 1]` int32, the parser's; and the `label`:
      the formula's value.

    Raises:
      SettingsError: If `n` is below 1.
    """
    at_least_one("generate", n=n)
    rng = np.random.default_rng(seed)
    instances = []
    for _ in range(n):
        size = int(rng.integers(1, MOST_WORDS + 1))
        digits = rng.integers(0, N_CLASSES, size)
        follows = rng.integers(MINUS, TIMES + 1, size)
        follows[-1] = END
        words = (3 * digits + follows).astype(np.int32)
        actions, label = parse(words)
        instances.append({"words": words, "actions": actions, "label": np.int32(label)})
    return instances


def parse(words: np.ndarray) -> tuple[np.ndarray, int]:
    """Parses and evaluates a formula with a stack.

    Args:
      words: `[w]`: its words.

    Returns:
      The parser's actions, `[2 w - 1]` int32, and the value.
    """
    stack: list[tuple[int, int]] = []
    actions: list[int] = []
    for word in words.tolist():
        stack.append((word // 3, word % 3))
        actions.append(SHIFT)
        while len(stack) > 1 and stack[-2][1] > stack[-1][1]:
            (left, operator), (right, follows) = stack[-2:]
            value = left - right if operator == MINUS else left * right
            stack[-2:] = [(value % N_CLASSES, follows)]
            actions.append(REDUCE)
    return np.array(actions, np.int32), stack[0][0]
