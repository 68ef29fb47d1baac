from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import DataError, SettingsError
from ampjax.ir.instances import Instances
from experiments.data import list_reduction as lr

SEEDS = st.integers(0, 2**32 - 1)


def slow_label(operation, digits):
    """The definition in exact arithmetic, one list at a time; `round` of a fraction takes ties to the even number."""

    def mean(values):
        if values:
            return Fraction(sum(values), len(values))
        return Fraction(0)

    result = [
        lambda: mean(digits),
        lambda: mean(digits[0::2]) - mean(digits[1::2]),
        lambda: Fraction(max(digits) - min(digits)),
        lambda: Fraction(len(digits)),
    ][operation]()
    return round(result) % 10


def label(operation, digits):
    """The label that the module gives to a list."""
    row = np.zeros((1, 9), dtype=np.int64)
    row[0, : len(digits)] = digits
    n = np.array([len(digits)])
    return int(lr._label(np.array([operation]), row, n, np.arange(9) < n[:, None])[0])


@given(st.integers(1, 300), SEEDS)
def test_columns(n, seed):
    data = lr.generate(n, seed)
    assert data.tokens.shape == (n, 10)
    assert data.tokens.dtype == np.int32
    assert data.lengths.shape == (n,)
    assert data.lengths.dtype == np.int64
    assert data.labels.shape == (n,)
    assert data.labels.dtype == np.int32
    assert set(data.tokens[:, 0]) <= set(range(10, 14))
    assert set(data.lengths) <= set(range(2, 11))
    assert data.tokens[:, 1:].min() >= 0
    assert data.tokens[:, 1:].max() <= 9
    assert not data.tokens[np.arange(10) >= data.lengths[:, None]].any()
    assert len(data) == n and repr(data) == f"ListReduction({n} sequences)"


@given(SEEDS)
def test_generated_labels_are_the_definition(seed):
    data = lr.generate(50, seed)
    for tokens, length, got in zip(
        data.tokens.tolist(),
        data.lengths.tolist(),
        data.labels.tolist(),
        strict=True,
    ):
        assert got == slow_label(tokens[0] - 10, tokens[1:length])


@given(
    st.integers(0, 3),
    st.lists(
        st.integers(0, 9),
        min_size=1,
        max_size=9,
    ),
)
def test_any_list_has_the_definition_for_a_label(operation, digits):
    assert label(operation, digits) == slow_label(operation, digits)


@pytest.mark.parametrize(
    ("operation", "digits", "expected"),
    [
        (0, [2, 3], 2),  # 2.5: a tie goes to the even number
        (0, [3, 4], 4),
        (1, [7], 7),  # nothing in L[1::2]: its mean is 0
        (1, [1, 2], 9),  # -1 modulo 10
        (1, [0, 9], 1),  # -9 modulo 10
        (1, [1, 2, 2], 0),  # -0.5: a tie, to 0
        (2, [5], 0),
        (2, [1, 9, 4], 8),
        (3, [0] * 9, 9),
    ],
)
def test_worked_examples(operation, digits, expected):
    assert label(operation, digits) == expected == slow_label(operation, digits)


def test_operations_and_lengths_are_uniform():
    data = lr.generate(36_000, seed=1)
    assert (
        np.abs(np.bincount(data.tokens[:, 0], minlength=14)[10:] / 9000 - 1).max() < 0.05
    )  # 4 sigma
    assert np.abs(np.bincount(data.lengths)[2:] / 4000 - 1).max() < 0.07  # 4 sigma


def test_seeds_and_splits():
    assert np.array_equal(
        lr.generate(20, 7).tokens,
        lr.generate(20, 7).tokens,
    )
    assert not np.array_equal(
        lr.generate(20, 7).tokens,
        lr.generate(20, 8).tokens,
    )
    train, valid = lr.splits(30, 20, seed=2)
    assert (len(train), len(valid)) == (30, 20)
    assert not np.array_equal(train.tokens[:20], valid.tokens)


@given(st.integers(1, 40), SEEDS, st.data())
def test_a_sequence_is_pumped_token_by_token(n, seed, draw):
    data = lr.generate(n, seed)
    ids = np.array(
        draw.draw(
            st.lists(
                st.integers(0, n - 1),
                min_size=1,
                max_size=12,
            )
        )
    )
    sequences = lr.Sequences(data, hidden=3)
    assert isinstance(sequences, Instances) and len(sequences) == n
    messages = sequences.gather(ids)
    assert set(messages) == {"tokens", "h0", "label"}
    tokens = messages["tokens"]
    expected = []
    for position, i in enumerate(ids):
        for t in range(data.lengths[i]):
            expected.append(
                (
                    position,
                    t,
                    int(data.lengths[i]),
                    int(data.tokens[i, t]),
                )
            )
    columns = (
        tokens.instance,
        tokens.fields["t"],
        tokens.fields["length"],
        tokens.payload,
    )
    assert [tuple(map(int, row)) for row in zip(*columns, strict=True)] == expected
    assert tokens.payload.dtype == np.int32 and tokens.sizes is None
    h0 = messages["h0"]
    assert (
        h0.payload.shape == (len(ids), 3)
        and h0.payload.dtype == np.float32
        and not h0.payload.any()
    )
    assert h0.fields["t"] == 0 and np.array_equal(
        h0.fields["length"],
        data.lengths[ids],
    )
    assert (
        np.array_equal(messages["label"].payload, data.labels[ids]) and not messages["label"].fields
    )
    assert h0.instance.tolist() == messages["label"].instance.tolist() == list(range(len(ids)))


@given(st.integers(1, 40), SEEDS)
def test_pumped_whole_the_rows_are_the_same(n, seed):
    data = lr.generate(n, seed)
    ids = np.arange(n)[::-1]
    for one, whole in (
        (lr.Sequences(data, 2), lr.Sequences(data, 2, whole=True)),
        (
            lr.Buckets(data, 4, 2),
            lr.Buckets(
                data,
                4,
                2,
                whole=True,
            ),
        ),
    ):
        ids = np.arange(len(one))[::-1]
        steps = one.gather(ids)["tokens"]
        group = whole.gather(ids)["tokens"]
        assert np.array_equal(steps.payload, group.payload)
        assert group.instance.tolist() == list(range(len(ids)))
        assert set(group.fields) == {"length"}
        assert np.array_equal(group.sizes, group.fields["length"])
        assert np.array_equal(group.sizes, np.bincount(steps.instance))


@given(
    st.integers(1, 60),
    st.integers(1, 9),
    SEEDS,
)
def test_every_sequence_is_in_one_bucket_of_its_length(n, batch_size, seed):
    data = lr.generate(n, seed)
    buckets = lr.Buckets(data, batch_size, hidden=2).reshuffle(np.random.default_rng(seed))
    assert isinstance(buckets, Instances)
    ids = np.random.default_rng(seed).permutation(len(buckets))
    messages = buckets.gather(ids)
    tokens = messages["tokens"]
    labels = messages["label"]
    h0 = messages["h0"]
    assert tokens.payload.dtype == np.int32 and labels.payload.dtype == np.int32
    assert h0.payload.shape == (len(ids), batch_size, 2)
    assert labels.payload.shape == (
        len(ids),
        batch_size,
    )
    got = []
    for position in range(len(ids)):
        mine = tokens.instance == position
        length = int(h0.fields["length"][position])
        assert tokens.fields["t"][mine].tolist() == list(range(length))
        assert set(tokens.fields["length"][mine].tolist()) == {length}
        rows = tokens.payload[mine]  # [length, batch_size]
        counted = labels.payload[position] >= 0
        assert counted[0] and np.array_equal(
            rows[:, ~counted],
            np.repeat(
                rows[:, :1],
                (~counted).sum(),
                axis=1,
            ),
        )
        got += [
            (
                *rows[:, b].tolist(),
                int(labels.payload[position, b]),
            )
            for b in np.flatnonzero(counted)
        ]
    expected = [
        (*row[:length].tolist(), int(c))
        for row, length, c in zip(data.tokens, data.lengths, data.labels, strict=True)
    ]
    assert sorted(got) == sorted(expected)


def test_buckets_are_full_but_for_the_last_of_each_length():
    data = lr.generate(2000, 0)
    labels = lr.Buckets(data, 100, 2)
    counts = np.bincount(data.lengths)[2:]
    assert len(labels) == sum(-(-c // 100) for c in counts)
    assert (labels.gather(np.arange(len(labels)))["label"].payload < 0).sum() == sum(
        -c % 100 for c in counts
    )


def test_reshuffling_leaves_the_old_buckets_as_they_are():
    buckets = lr.Buckets(lr.generate(300, 0), 10, 2)
    ids = np.arange(len(buckets))
    before = buckets.gather(ids)["label"].payload
    after = buckets.reshuffle(np.random.default_rng(0)).gather(ids)["label"].payload
    assert np.array_equal(buckets.gather(ids)["label"].payload, before)
    assert not np.array_equal(before, after)


DATA = lr.generate(3, 0)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: lr.generate(0), r"generate, `n`: expected at least 1, got 0\."),
        (lambda: lr.splits(1, 0), r"generate, `n`: expected at least 1, got 0\."),
        (
            lambda: lr.Sequences(DATA, hidden=0),
            r"Sequences, `hidden`: expected at least 1, got 0\.",
        ),
        (
            lambda: lr.Buckets(DATA, batch_size=0),
            r"Buckets, `batch_size`: expected at least 1, got 0\. Give a positive number\.",
        ),
        (lambda: lr.Buckets(DATA, hidden=-1), r"Buckets, `hidden`: expected at least 1, got -1\."),
    ],
)
def test_settings_are_checked(call, text):
    with pytest.raises(SettingsError, match=text):
        call()


def test_columns_must_agree():
    with pytest.raises(
        DataError,
        match=r"ListReduction: expected tokens of shape \(2, 10\) and 2 lengths for 2 labels, got tokens of shape \(3, 10\)",
    ):
        lr.ListReduction(DATA.tokens, DATA.lengths, DATA.labels[:2])
