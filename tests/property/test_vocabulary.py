"""A vocabulary equals a Python dictionary, id by id, under any calls, and after a save and a load."""

from dataclasses import asdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.effort import examples
from support.plain_vocabulary import PlainVocabulary

import ampjax.parallel as px

EXTREMES = [
    -(2**63),
    2**63 - 1,
    -1,
    0,
    2**32,
    -(2**32),
]
TEXTS = ["", "a", "b", "ä", "a\0", "\ud800", "日本", "-1", "0"]
places = st.lists(st.integers(0, 15), max_size=12)
"""Ids by their places in a pool, so that they come again."""


@st.composite
def choices(draw):
    """Settings of a vocabulary."""
    n_rows = draw(st.integers(2, 9))
    admit_after = draw(st.integers(1, 4))
    most = draw(st.integers(n_rows, 14))
    return {
        "n_rows": n_rows,
        "max_rows": most,
        "admit_after": admit_after,
        "evict": draw(st.sampled_from(["age", "frequency", None])),
        "max_age": draw(st.none() | st.integers(1, 5)),
        "max_candidates": draw(st.integers(admit_after > 1, 8)),
    }


def pairs(rows, ids):
    return list(
        zip(
            rows.tolist(),
            ids.tolist(),
            strict=True,
        )
    )


class VocabularyMachine(RuleBasedStateMachine):
    """A vocabulary beside a dictionary."""

    @initialize(
        options=choices(),
        strings=st.booleans(),
        others=st.lists(
            st.integers(
                -(2**63),
                2**63 - 1,
            ),
            min_size=10,
            max_size=10,
            unique=True,
        ).filter(lambda ids: not {*ids} & {*EXTREMES}),
    )
    def start(self, options, strings, others):
        self.plain = PlainVocabulary(**options)
        self.vocabulary = px.Vocabulary(**options, strings=strings)
        if strings:
            self.pool = [*TEXTS, *map(str, range(1, 8))]
            self.dtype = object
        else:
            self.pool = EXTREMES + others
            self.dtype = np.int64

    def batch(self, chosen):
        ids = np.empty(len(chosen), self.dtype)
        ids[:] = [self.pool[place] for place in chosen]
        return ids

    @rule(chosen=places)
    def admit(self, chosen):
        ids = self.batch(chosen)
        rows, changes = self.vocabulary.admit(ids)
        wanted, what = self.plain.admit(ids.tolist())
        assert rows.tolist() == wanted and rows.dtype == np.int32
        assert pairs(changes.rows, changes.ids) == what["admitted"]
        assert pairs(changes.evicted_rows, changes.evicted_ids) == what["evicted"]
        assert changes.unknown == what["unknown"]
        assert changes.n_rows == self.plain.n_rows

    @rule(chosen=places)
    def look_up(self, chosen):
        ids = self.batch(chosen)
        rows = self.vocabulary.rows(ids)
        assert rows.tolist() == [
            *map(
                self.plain.row,
                ids.tolist(),
            )
        ]

    @rule()
    def save_and_load(self):
        folder = self.folder()
        self.vocabulary.save(folder)
        self.vocabulary = px.Vocabulary.load(folder)

    @invariant()
    def both_hold_the_same(self):
        if not hasattr(self, "plain"):
            return
        plain = self.plain
        ids, rows = self.vocabulary.ids()
        by_row = []
        for one, it in plain.known.items():
            by_row.append((it.row, one))
        assert pairs(rows, ids) == sorted(by_row)
        assert len(self.vocabulary) == len(plain.known)
        counts = asdict(self.vocabulary.counts)
        assert counts.pop("calls") == plain.calls
        assert counts == {name: plain.counts[name] for name in counts}
        codes = self.vocabulary._codes
        if codes is not None:
            kept = {*plain.known, *plain.candidates}
            assert {*codes._codes} == kept, "no string is kept for nothing"

    def folder(self):
        raise NotImplementedError


def test_a_vocabulary_is_a_dictionary(tmp_path_factory):
    """A nightly run makes 10,000 operations."""

    class Machine(VocabularyMachine):
        def folder(self):
            return tmp_path_factory.mktemp("vocabulary")

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples(200), stateful_step_count=50)
    )


@given(
    size=st.integers(1, 3000),
    share=st.floats(0.05, 1.0),
    seed=st.integers(0, 2**16),
    evict=st.sampled_from(["age", "frequency"]),
)
@settings(max_examples=examples(30))
def test_large_batches_of_neighbouring_ids(size, share, seed, evict):
    """Ids that follow one another, and multiples of powers of two, fill runs of slots, which are closed when ids go."""
    rng = np.random.default_rng(seed)
    most = max(2, int(size * share))
    plain = PlainVocabulary(2, most, evict=evict, max_age=3)
    vocabulary = px.Vocabulary(2, most, evict=evict, max_age=3)
    for turn in range(6):
        ids = rng.integers(-(size // 2), size, size)
        ids = ids << (turn % 3 * 8)
        rows, changes = vocabulary.admit(ids)
        wanted, what = plain.admit(ids.tolist())
        assert rows.tolist() == wanted
        assert changes.evicted_ids.tolist() == [one for _, one in what["evicted"]]
    assert (vocabulary.rows(ids) == rows).all()
