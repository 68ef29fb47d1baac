"""Rows in eight bits as plain float64 numbers on the grid of a format: the oracle of tables with `row_dtype`."""

from __future__ import annotations

import ml_dtypes
import numpy as np

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
LEAST_EXPONENT = -100
MASK = (1 << 64) - 1


def gaps(row_dtype: str, sizes: np.ndarray) -> np.ndarray:
    """The distance between neighbouring numbers of a format around some absolute values."""
    if row_dtype == "int8":
        return np.ones_like(sizes)
    info = ml_dtypes.finfo(row_dtype)
    exponents = np.floor(
        np.log2(
            np.maximum(
                sizes,
                float(info.smallest_subnormal),
            )
        )
    )
    return 2.0 ** (np.maximum(exponents, info.minexp) - info.nmant)


def best_exponent(row_dtype: str, row: np.ndarray) -> int:
    """The exponent of the smallest scale with which a row fits."""
    exponent = LEAST_EXPONENT
    while LARGEST[row_dtype] * 2.0**exponent < np.abs(row).max(initial=0):
        exponent += 1
    return exponent


def split_mix(number: int) -> int:
    bits = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & MASK
    return bits ^ (bits >> 31)


def draws(seed: int, version: int, row: int, size: int) -> np.ndarray:
    """A row's random numbers in [0, 1)."""
    golden = 0x9E3779B97F4A7C15
    first = split_mix(seed + golden & MASK) ^ version
    key = split_mix(first + golden & MASK)
    of_row = split_mix(key + row * golden & MASK) >> 32
    result = []
    for column in range(size):
        bits = of_row + column * 0x9E3779B9 & 0xFFFFFFFF
        bits = (bits ^ (bits >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
        bits = (bits ^ (bits >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
        result.append((bits ^ (bits >> 16)) / 2**32)
    return np.array(result)


class PlainNarrow:
    """Rows `[n, size]` on the grid."""

    def __init__(self, values: np.ndarray, row_dtype: str, seed: int = 0):
        self.row_dtype = row_dtype
        self.seed = seed
        self.rows = np.zeros(values.shape)
        self.put(np.arange(len(values)), values)

    def put(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Rounds new rows to the nearest numbers, ties to the even code."""
        for i, row in zip(
            ids,
            np.asarray(values, np.float64),
            strict=True,
        ):
            exponent = best_exponent(self.row_dtype, row)
            scaled = row / 2.0**exponent
            gap = gaps(self.row_dtype, np.abs(scaled))
            self.rows[i] = np.round(scaled / gap) * gap * 2.0**exponent

    def update(self, ids: np.ndarray, values: np.ndarray, version: int) -> None:
        """Rounds updated rows up or down at random."""
        for i, row in zip(
            ids,
            np.asarray(values, np.float64),
            strict=True,
        ):
            exponent = best_exponent(self.row_dtype, row)
            scaled = np.abs(row) / 2.0**exponent
            gap = gaps(self.row_dtype, scaled)
            share = scaled / gap - np.floor(scaled / gap)
            goes_up = (
                share
                + draws(
                    self.seed,
                    version,
                    int(i),
                    len(row),
                )
                >= 1
            )
            rounded = (np.floor(scaled / gap) + goes_up) * gap
            self.rows[i] = np.sign(row) * rounded * 2.0**exponent
