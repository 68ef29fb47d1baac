"""Rows in eight bits: the numbers of a format, right in the mean, the same from run to run."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.narrow_oracle import LARGEST, PlainNarrow, gaps

from ampjax.sparse.narrow.narrow_rows import ROW_DTYPES, NarrowRows

row_dtypes = st.sampled_from(ROW_DTYPES)
seeds = st.integers(0, 2**32 - 1)


def any_rows(seed, n=20, size=5):
    """Rows of all sizes that float32 has, with elements much smaller than others, and zeros."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, size)) * 10.0 ** rng.uniform(-6, 0, (n, size))
    rows *= 10.0 ** rng.uniform(-28, 37, (n, 1))
    rows[rng.random((n, size)) < 0.1] = 0
    rows[0] = 0
    return rows.astype(np.float32)


def exponents(stored):
    return stored[:, :1].view(np.int8).astype(int)


@given(row_dtypes, seeds)
@settings(max_examples=examples(60))
def test_new_rows_are_the_nearest_numbers_of_the_dtype(row_dtype, seed):
    rows = any_rows(seed)
    narrow = NarrowRows(row_dtype, (5,))
    stored = narrow.stored(rows)
    scaled = np.ldexp(
        rows.astype(np.float64),
        -exponents(stored),
    )
    if row_dtype == "int8":
        codes = np.rint(scaled).astype(np.int8)
    else:
        codes = scaled.astype(np.dtype(row_dtype))
    is_zero = codes.astype(np.float64) == 0  # a negative zero is none in here
    assert (stored[:, 1:][~is_zero] == codes.view(np.uint8)[~is_zero]).all()
    assert not stored[:, 1:][is_zero].any()
    assert (np.abs(scaled) <= LARGEST[row_dtype]).all()
    assert (narrow.read(stored) == PlainNarrow(rows, row_dtype).rows.astype(np.float32)).all()


@given(row_dtypes, seeds, st.integers(0, 2**40))
@settings(max_examples=examples(60))
def test_rows_that_were_read_are_stored_as_they_are(row_dtype, seed, version):
    narrow = NarrowRows(row_dtype, (5,), seed)
    stored = narrow.stored(any_rows(seed))
    read = narrow.read(stored)
    assert (narrow.read(narrow.stored(read)) == read).all()
    again = stored.copy()
    places = np.arange(len(read))
    narrow.update(again, places, read, places, version)
    assert (narrow.read(again) == read).all()


@given(row_dtypes, seeds, st.integers(0, 2**40))
@settings(max_examples=examples(60))
def test_updated_rows_are_neighbours_by_the_oracles_random_numbers(row_dtype, seed, version):
    old = any_rows(seed)
    moved = (old * np.random.default_rng(seed).uniform(0.3, 1.9, old.shape)).astype(np.float32)
    narrow = NarrowRows(row_dtype, (5,), seed)
    stored = narrow.stored(old)
    ids = 3 * np.arange(20)
    oracle = PlainNarrow(np.zeros((60, 5)), row_dtype, seed)
    narrow.update(stored, np.arange(20), moved, ids, version)
    oracle.update(ids, moved, version)
    assert (narrow.read(stored) == oracle.rows[ids].astype(np.float32)).all()
    gap = gaps(
        row_dtype,
        np.abs(
            np.ldexp(
                moved.astype(np.float64),
                -exponents(stored),
            )
        ),
    )
    assert (np.abs(narrow.read(stored) - moved) < np.ldexp(gap, exponents(stored))).all()


@pytest.mark.parametrize("row_dtype", ROW_DTYPES)
@pytest.mark.parametrize("what", ["seeds", "versions", "rows"])
def test_the_mean_is_right(row_dtype, what):
    """Over seeds, updates or rows: each element within five standard deviations of its new value."""
    rng = np.random.default_rng(3)
    row = rng.normal(size=(1, 40)).astype(np.float32)
    n = 4000
    first = NarrowRows(row_dtype, (40,)).stored(row)
    if what == "rows":
        stored = np.repeat(first, n, axis=0)
        narrow = NarrowRows(row_dtype, (40,))
        narrow.update(
            stored,
            np.arange(n),
            np.repeat(row, n, axis=0),
            np.arange(n),
            1,
        )
        read = narrow.read(stored)
    else:
        read = np.empty((n, 40), np.float32)
        for i in range(n):
            narrow = NarrowRows(row_dtype, (40,), i if what == "seeds" else 0)
            stored = first.copy()
            narrow.update(
                stored,
                np.zeros(
                    1,
                    int,
                ),
                row,
                np.zeros(1, int),
                i % 7 if what == "seeds" else i,
            )
            read[i] = narrow.read(stored)[0]
    gap = np.ldexp(
        gaps(
            row_dtype,
            np.abs(np.ldexp(row, -exponents(first))),
        ),
        exponents(first),
    )
    error = np.abs(read.astype(np.float64).mean(axis=0) - row)
    assert (error <= 5 * gap / 2 / np.sqrt(n)).all()
    assert len(np.unique(read, axis=0)) > n / 2


@pytest.mark.parametrize("row_dtype", ROW_DTYPES)
def test_small_updates_count_in_the_mean(row_dtype):
    """A thousand steps of a thousandth of a gap go one gap, where the nearest number would stay."""
    narrow = NarrowRows(row_dtype, (1,))
    stored = narrow.stored(np.ones((500, 1), np.float32))
    places = np.arange(500)
    gap = float(gaps(row_dtype, np.ldexp(np.ones(1), -exponents(stored)[0]))[0])
    step = gap * 2.0 ** int(exponents(stored)[0, 0]) / 1000
    for version in range(1000):
        narrow.update(
            stored,
            places,
            narrow.read(stored) + np.float32(step),
            places,
            version,
        )
    assert 0.8 < float(narrow.read(stored).mean() - 1) / (1000 * step) < 1.2


def test_the_scale_is_the_smallest_with_which_the_row_fits():
    narrow = NarrowRows("int8", (2,))
    stored = narrow.stored(
        np.array(
            [[127, 5]],
            np.float32,
        )
    )
    one = np.zeros(1, int)
    for largest, exponent in ((127, 0), (128, 1), (60, -1), (64, 0), (63.5, -1), (0, -100)):
        narrow.update(
            stored,
            one,
            np.array([[largest, 0]], np.float32),
            one,
            0,
        )
        assert exponents(stored)[0, 0] == exponent, largest


@pytest.mark.parametrize(
    "shape",
    [(), (3,), (2, 3)],
)
def test_rows_have_any_shape(shape):
    narrow = NarrowRows("float8_e5m2", shape)
    rows = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
    stored = narrow.stored(rows)
    assert stored.nbytes == 6 * (1 + rows[0].size)
    out = np.empty((2, *shape), np.float32)
    narrow.read_some(
        stored,
        np.array([4, 1], np.int32),
        out,
    )
    assert (out == narrow.read(stored)[[4, 1]]).all()
    assert np.abs(out - rows[[4, 1]]).max() < 0.25 * np.abs(rows).max()


def test_all_numbers_of_a_format_are_kept():
    for row_dtype in ("float8_e4m3fn", "float8_e5m2"):
        info = ml_dtypes.finfo(row_dtype)
        numbers = np.arange(256).astype(np.uint8).view(np.dtype(row_dtype)).astype(np.float32)
        numbers = numbers[np.isfinite(numbers)][None]
        narrow = NarrowRows(row_dtype, numbers.shape[1:])
        assert numbers.max() == float(info.max) == LARGEST[row_dtype]
        assert (narrow.read(narrow.stored(numbers)) == numbers).all()


@pytest.mark.parametrize("row_dtype", ROW_DTYPES)
def test_the_largest_numbers_of_float32_stay_finite(row_dtype):
    """The last ones become the largest number that has the format's bits and is no infinity."""
    largest = np.finfo(np.float32).max
    rows = np.array(
        [[largest, -largest, 0.999 * largest, 1]],
        np.float32,
    )
    narrow = NarrowRows(row_dtype, (4,))
    stored = narrow.stored(rows)
    top = np.float32(LARGEST[row_dtype] / 2 ** np.floor(np.log2(LARGEST[row_dtype])) * 2.0**127)
    assert narrow.read(stored).tolist() == [[top, -top, top, 0]]
    place = np.zeros(1, int)
    for version in range(20):
        narrow.update(stored, place, rows, place, version)
        assert narrow.read(stored)[0, :3].tolist() == [top, -top, top]
