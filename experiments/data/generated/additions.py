"""Additions of decimal numbers with the trace of a program that does them (as for Reed and de Freitas's neural programmer-interpreter, 2016).

The program ADD calls ADD1 for each column, from the right, and moves to the next column; ADD1 writes a digit and the carry.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.data.readers.data_checks import at_least_one

MOST_DIGITS = 3
N_COLUMNS = MOST_DIGITS + 2
"""Of a number as it is written: one for the last carry, and one behind it."""
HALT, WRITE, CARRY, NEXT, CALL = range(5)
"""What a program can do: end, write a digit, set the carry, move to the next column, call ADD1."""
MOST_STEPS = 5 * (MOST_DIGITS + 1) + 1


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
) -> list[dict[str, Any]]:
    """Draws additions of two numbers of one to three digits.

    Args:
      n: How many.
      seed: Same seed, same additions.

    Returns:
      Instances: `numbers` `[2, 5]`: their digits from the right; `columns` `[]`: how many there are to add; `operations` and `digits`
      `[21]`: the trace, ended by zeros; `label` `[5]`: the sum's digits from the right. All int32.

    Raises:
      SettingsError: If `n` is below 1.
    """
    at_least_one("generate", n=n)
    rng = np.random.default_rng(seed)
    return [_draw(rng) for _ in range(n)]


def _draw(rng: np.random.Generator) -> dict[str, Any]:
    columns = int(rng.integers(1, MOST_DIGITS + 1))
    numbers = np.zeros((2, N_COLUMNS), np.int32)
    numbers[:, :columns] = rng.integers(
        0,
        10,
        (2, columns),
    )
    steps = []
    carry = 0
    for left, right in numbers.T[: columns + 1].tolist():
        carry, digit = divmod(left + right + carry, 10)
        steps += [
            (CALL, 0),
            (WRITE, digit),
            (CARRY, carry),
            (HALT, 0),
            (NEXT, 0),
        ]
    trace = np.zeros((MOST_STEPS, 2), np.int32)
    trace[: len(steps)] = steps
    first, second = numbers @ 10 ** np.arange(N_COLUMNS)
    label = np.array(
        [(first + second) // 10**place % 10 for place in range(N_COLUMNS)],
        np.int32,
    )
    return {
        "numbers": numbers,
        "columns": np.int32(columns + 1),
        "operations": trace[:, 0],
        "digits": trace[:, 1],
        "label": label,
    }
