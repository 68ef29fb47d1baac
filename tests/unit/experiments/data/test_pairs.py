"""Pairs: columns, buckets, and what a batch holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.errors import DataError, SettingsError
from experiments.data.pairs import PairBatches, Pairs, Sentences, plain, plain_sentences
from experiments.data.text import END, START

lengths = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=30,
)


def test_a_batch_by_hand() -> None:
    pairs = Pairs(
        Sentences.of([[7, 8], [9]]),
        Sentences.of([[3], [4, 5]]),
    )
    assert repr(pairs) == "Pairs(2 pairs, 3 and 3 words)"
    batch = PairBatches(pairs, 3, 2, 1).gather(
        np.array([0, 1, -1]),
        2,
    )
    assert batch["source"].tolist() == [[7, 8], [9, 2], [2, 2]]
    assert batch["source_length"].tolist() == [2, 1, 0]
    assert batch["target_in"].tolist() == [[1, 3, 2], [1, 4, 5], [1, 2, 2]]
    assert batch["target_out"].tolist() == [[3, 2, 2], [4, 5, 2], [2, 2, 2]]
    assert batch["target_length"].tolist() == [2, 3, 0]
    assert all(leaf.dtype == np.int32 for leaf in batch.values())


@settings(max_examples=30)
@given(
    lengths,
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 4),
)
def test_every_pair_that_fits_comes_once(
    sizes: list, batch: int, max_length: int, n_buckets: int
) -> None:
    pairs = Pairs(*(Sentences.of([[3] * size[side] for size in sizes]) for side in (0, 1)))
    fit = []
    for i, size in enumerate(sizes):
        if min(size) >= 1 and max(size) <= max_length:
            fit.append(i)
    if not fit:
        with pytest.raises(
            DataError, match=f"expected a pair of 1 to {max_length} words on both sides, got none"
        ):
            PairBatches(pairs, batch, max_length, n_buckets)
        return
    data = PairBatches(pairs, batch, max_length, n_buckets)
    found = list(data.epoch())
    assert len(found) == len(data) and data.n_pairs == len(fit)
    places = np.concatenate([x["pair"] for x in found])
    assert sorted(places[places >= 0].tolist()) == fit
    assert len({x["source"].shape for x in found}) <= n_buckets
    for x in found:
        assert x["target_out"].shape == (
            batch,
            x["source"].shape[1] + 1,
        )
        for row, i in enumerate(x["pair"]):
            if i >= 0:
                expected = (
                    sizes[i][0],
                    sizes[i][1] + 1,
                )
            else:
                expected = (0, 0)
            assert (x["source_length"][row], x["target_length"][row]) == expected


def test_epochs_differ_and_follow_from_the_seed() -> None:
    pairs = Pairs(
        Sentences.of([[3]] * 20),
        Sentences.of([[4]] * 20),
    )

    def order(seed: int, epoch: int) -> list:
        result = []
        for x in PairBatches(pairs, 4, seed=seed).epoch(epoch):
            result.append(x["pair"].tolist())
        return result

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


@settings(max_examples=30)
@given(
    lengths,
    st.integers(1, 8),
    st.integers(0, 8),
)
def test_instances_are_the_sentences_with_their_marks(sizes: list, max_length: int, n: int) -> None:
    sides = ([[3 + k for k in range(pair[side])] for pair in sizes] for side in range(2))
    pairs = Pairs(*(Sentences.of(side) for side in sides))
    short = pairs.up_to(max_length).first(n)
    kept = [i for i, pair in enumerate(sizes) if min(pair) > 0 and max(pair) <= max_length][:n]
    assert [short.source[i].tolist() for i in range(len(short))] == [
        pairs.source[i].tolist() for i in kept
    ]
    for those, instances, names in (
        (pairs, plain(pairs), ("target_in", "target_out")),
        (short, plain(short), ("target_in", "target_out")),
        (pairs, plain_sentences(pairs.target), ("inputs", "targets")),
    ):
        assert len(instances) == len(those)
        for i in range(len(those)):
            instance = instances[i]
            words = those.target[i].tolist()
            assert [instance[name].tolist() for name in names] == [[START, *words], [*words, END]]
            assert (
                "source" not in instance or instance["source"].tolist() == those.source[i].tolist()
            )


def test_mistakes_are_named() -> None:
    with pytest.raises(DataError, match="expected as many sources as targets, got 1 and 2"):
        Pairs(
            Sentences.of([[3]]),
            Sentences.of([[3], [4]]),
        )
    with pytest.raises(
        DataError, match="expected pointers that rise from 0 to 2, got pointers from 0 to 3"
    ):
        Sentences(
            np.array([0, 3]),
            np.array([5, 6]),
        )
    with pytest.raises(SettingsError, match="`n_buckets`: expected at least 1, got 0"):
        PairBatches(
            Pairs(
                Sentences.of([[3]]),
                Sentences.of([[3]]),
            ),
            n_buckets=0,
        )
