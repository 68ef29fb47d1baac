"""A vocabulary: rows for ids, admission, eviction, growth, mistakes and files."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import ampjax.parallel as px
from ampjax.errors import DataError, SettingsError, TableError
from ampjax.sparse import Table
from ampjax.sparse.table import table_files
from ampjax.sparse.vocabulary.growing_vocabulary import VocabularyCounts


def rows_of(vocabulary, *ids):
    rows, _ = vocabulary.admit(np.array(ids))
    return rows.tolist()


def listed(*arrays):
    return [array.tolist() for array in arrays]


def test_an_id_reads_the_unknown_row_until_it_has_been_seen_often_enough():
    vocabulary = px.Vocabulary(4, admit_after=3)
    assert rows_of(vocabulary, 7, 8, 7) == [0, 0, 0]
    rows, changes = vocabulary.admit(np.array([8, 7]))
    assert rows.tolist() == [0, 1]
    assert listed(changes.ids, changes.rows) == [[7], [1]]
    assert changes.unknown == 1
    counts = VocabularyCounts(calls=2, reads=5, unknown=4, admitted=1)
    assert vocabulary.counts == counts


def test_the_oldest_id_loses_its_row_but_none_of_the_same_batch_does():
    vocabulary = px.Vocabulary(3)
    assert rows_of(vocabulary, 1, 2) == [1, 2]
    assert rows_of(vocabulary, 1) == [1]
    rows, changes = vocabulary.admit(np.array([3, 1, 4]))
    assert rows.tolist() == [2, 1, 0], "id 3 has the row of id 2; id 1 is of this batch"
    assert listed(changes.evicted_ids, changes.evicted_rows) == [[2], [2]]
    assert vocabulary.counts.refused == 1


def test_the_rarest_id_loses_its_row():
    vocabulary = px.Vocabulary(3, evict="frequency")
    rows_of(vocabulary, 1, 1, 2)
    rows_of(vocabulary, 2, 2)
    assert rows_of(vocabulary, 3) == [1], "id 1 was seen twice"
    assert rows_of(vocabulary, 4) == [1], "id 3 was seen once"
    vocabulary = px.Vocabulary(3, evict="frequency")
    rows_of(vocabulary, 1)
    rows_of(vocabulary, 2)
    rows_of(vocabulary, 2, 1, 1)
    rows_of(vocabulary, 2)
    assert rows_of(vocabulary, 3) == [1], "of ids seen equally often, the one seen longest ago"


def test_ids_that_come_no_more_lose_their_rows():
    vocabulary = px.Vocabulary(9, max_age=2)
    rows_of(vocabulary, 5)
    for _ in range(2):
        assert not len(vocabulary.admit([])[1].evicted_ids)
    _, changes = vocabulary.admit(np.zeros(0))
    assert changes.evicted_ids.tolist() == [5]
    assert vocabulary.rows([5]).tolist() == [0]


def test_without_eviction_a_full_vocabulary_takes_nobody_in():
    vocabulary = px.Vocabulary(2, evict=None)
    assert rows_of(vocabulary, 1) == [1]
    assert rows_of(vocabulary, 2) == [0]
    assert (len(vocabulary), vocabulary.counts.refused) == (1, 1)


def test_it_doubles_before_anybody_loses_a_row():
    vocabulary = px.Vocabulary(2, 7)
    sizes = []
    for each in range(8):
        _, changes = vocabulary.admit([each])
        sizes.append(changes.n_rows)
    assert sizes == [2, 4, 4, 7, 7, 7, 7, 7]
    assert (vocabulary.counts.admitted, vocabulary.counts.evicted) == (8, 2)
    assert repr(vocabulary) == "Vocabulary(6 integers, 7 of at most 7 rows)"


def test_ids_have_any_shape_and_integer_dtype():
    vocabulary = px.Vocabulary(9)
    ids = np.array(
        [3, -1, 3, 7],
        np.int8,
    ).reshape(
        2,
        2,
    )
    rows, _ = vocabulary.admit(ids)
    assert rows.reshape(-1).tolist() == [1, 2, 1, 3]
    assert vocabulary.rows(jnp.array(7)) == 3
    turned = ids.T.astype(np.int64)
    assert (vocabulary.rows(turned) == rows.T).all()
    largest = np.array([7, 2**63 - 1], np.uint64)
    assert vocabulary.rows(largest).tolist() == [3, 0]


def test_strings_may_be_of_any_kind_that_numpy_has():
    vocabulary = px.Vocabulary(9, strings=True)
    rows, _ = vocabulary.admit([["b", "a"], ["b", ""]])
    assert rows.tolist() == [[1, 2], [1, 3]]
    fixed = np.array(["a", "c"])
    assert vocabulary.rows(fixed).tolist() == [2, 0]
    objects = np.array(["a", np.str_("b")], object)
    assert vocabulary.rows(objects).tolist() == [2, 1]
    ids, rows = vocabulary.ids()
    assert listed(ids, rows) == [["b", "a", ""], [1, 2, 3]]


MISTAKES = [
    (
        False,
        [0.5],
        "vocabulary, ids: expected integers of 64 bits, got float64. Cast them; a vocabulary of strings is made with `strings=True`.",
    ),
    (False, ["a"], "vocabulary, ids: expected integers of 64 bits, got <U1."),
    (False, [[1], [2, 3]], "vocabulary, ids: expected an array, got lists of unequal lengths."),
    (False, np.ma.array([1]), "vocabulary, ids: expected an array without a mask, got a masked"),
    (False, [True], "vocabulary, ids: expected integers of 64 bits, got bool."),
    (False, [2**64], "vocabulary, ids: expected integers of 64 bits, got object."),
    (
        False,
        [2**63],
        "vocabulary, ids: expected integers up to 9223372036854775807, got 9223372036854775808. Hash them to 63 bits",
    ),
    (True, [1], "vocabulary, ids: expected strings, got int. Decode bytes with `np.char.decode`"),
    (True, np.array([b"a"]), "vocabulary, ids: expected strings, got bytes."),
    (True, ["a", None], "vocabulary, ids: expected strings, got NoneType."),
]


@pytest.mark.parametrize(("strings", "ids", "text"), MISTAKES)
def test_ids_of_another_kind_are_refused_and_change_nothing(strings, ids, text):
    vocabulary = px.Vocabulary(4, strings=strings)
    for call in (vocabulary.admit, vocabulary.rows):
        with pytest.raises(DataError, match=re.escape(text)):
            call(ids)
    assert vocabulary.counts == VocabularyCounts()


SETTINGS = [
    ({"n_rows": 1}, "setting `n_rows`: expected an integer of at least 2, got 1."),
    ({"max_rows": 3}, "setting `max_rows`: expected an integer of at least 4, got 3."),
    (
        {"max_rows": 2**31},
        "setting `max_rows`: expected at most 2147483647, since row numbers are int32, got 2147483648.",
    ),
    ({"admit_after": 0}, "setting `admit_after`: expected an integer of at least 1, got 0."),
    (
        {"evict": "random"},
        "setting `evict`: expected one of ['age', 'frequency', None], got 'random'.",
    ),
    ({"max_age": 0}, "setting `max_age`: expected an integer of at least 1, got 0."),
    (
        {"admit_after": 2, "max_candidates": 0},
        "setting `max_candidates`: expected an integer of at least 1, got 0.",
    ),
    ({"strings": "yes"}, "setting `strings`: expected one of [False, True], got 'yes'."),
]


@pytest.mark.parametrize(("options", "text"), SETTINGS)
def test_settings_that_cannot_be_are_refused(options, text):
    with pytest.raises(SettingsError, match=re.escape(text)):
        px.Vocabulary(**{"n_rows": 4} | options)


# ---- files -----------------------------------------------------------------------------------------------------------


def used(strings):
    """A vocabulary with known ids, candidates and free rows."""
    vocabulary = px.Vocabulary(3, 8, admit_after=2, max_age=2, strings=strings)
    for digits in ("11223", "344", "4566", "7489"):
        vocabulary.admit(ids_of(digits, strings))
    return vocabulary


def ids_of(digits, strings):
    return np.array([*digits]).astype(str if strings else np.int64)


@pytest.mark.parametrize("strings", [False, True])
def test_a_loaded_vocabulary_goes_on_as_the_one_that_was_saved(strings, tmp_path):
    first = used(strings)
    first.save(tmp_path / "v")
    second = px.Vocabulary.load(tmp_path / "v")
    assert repr(second) == repr(first)
    assert second.counts == first.counts
    for digits in ("773", "0022", "5596", "118844"):
        rows, changes = first.admit(ids_of(digits, strings))
        again, others = second.admit(ids_of(digits, strings))
        assert rows.tolist() == again.tolist()
        assert listed(changes.evicted_ids) == listed(others.evicted_ids)
    first.save(tmp_path / "v")  # replaces the one before
    assert px.Vocabulary.load(tmp_path / "v").counts == second.counts


@pytest.mark.parametrize("strings", [False, True])
def test_a_changed_byte_is_found_wherever_it_is(strings, tmp_path):
    used(strings).save(tmp_path)
    files = sorted(tmp_path.glob("*"))
    assert len(files) == 4 + 2 * strings
    for path in files:
        content = path.read_bytes()
        for place in range(0, len(content), 37):
            changed = bytearray(content)
            changed[place] ^= 1
            path.write_bytes(changed)
            with pytest.raises(TableError, match=re.escape(str(tmp_path))):
                px.Vocabulary.load(tmp_path)
        path.write_bytes(content[:-1])
        with pytest.raises(TableError, match=re.escape(str(tmp_path))):
            px.Vocabulary.load(tmp_path)
        path.write_bytes(content)
    px.Vocabulary.load(tmp_path)


def test_files_of_something_else_are_refused(tmp_path):
    with pytest.raises(TableError, match="expected a saved table, got no such file"):
        px.Vocabulary.load(tmp_path / "none")
    import optax

    table = Table(
        np.ones((3, 2), np.float32),
        optax.sgd(0.1),
    )
    table.save(tmp_path / "table")
    text = "expected a saved vocabulary, got a saved table. Give the folder that `Vocabulary.save` wrote."
    with pytest.raises(TableError, match=re.escape(text)):
        px.Vocabulary.load(tmp_path / "table")


def forge(folder, change):
    """Writes the saved vocabulary of a folder with other arrays or facts, and right checksums."""
    facts = table_files.read_manifest(folder)
    _, arrays = table_files.read_arrays(folder, facts)
    arrays = [np.array(each) for each in arrays]
    arrays = change(facts, arrays) or arrays
    kept = {name: facts[name] for name in ("kind", "vocabulary", "counts")}
    kept = json.loads(json.dumps(kept))
    table_files.save(folder, kept, iter([]), arrays)


def same_row_twice(facts, arrays):
    arrays[0][0, 0] = arrays[0][-1, 0]


def same_id_twice(facts, arrays):
    arrays[2][0, 1] = arrays[0][0, 1]


def too_many_rows(facts, arrays):
    facts["vocabulary"]["max_rows"] = 3


def another_order(facts, arrays):
    arrays[2][:] = arrays[2][::-1]


def never_seen(facts, arrays):
    arrays[0][0, 2] = 0


def wrong_setting(facts, arrays):
    facts["vocabulary"]["admit_after"] = 0


def unknown_setting(facts, arrays):
    facts["vocabulary"]["colour"] = 1


def no_counts(facts, arrays):
    facts["counts"] = None


def array_missing(facts, arrays):
    return arrays[:2]


def columns_missing(facts, arrays):
    arrays[0] = np.ascontiguousarray(arrays[0][:, :3])


FORGERIES = [
    (same_row_twice, "expected each of at most 7 rows once, got others"),
    (same_id_twice, "expected each id once, got an id that is there twice"),
    (too_many_rows, "expected each of at most 2 rows once, got others"),
    (another_order, "expected ids in the order of 4 calls, got another order"),
    (never_seen, "expected ids in the order of 4 calls, got another order"),
    (wrong_setting, "expected settings and counts, got setting `admit_after`"),
    (unknown_setting, "expected settings and counts, got"),
    (no_counts, "expected settings and counts, got something else"),
    (array_missing, "expected arrays [(2, 'int64')"),
    (columns_missing, "expected 4 columns, got 3"),
]


@pytest.mark.parametrize(
    ("change", "text"),
    FORGERIES,
    ids=[f.__name__ for f, _ in FORGERIES],
)
def test_files_that_contradict_themselves_are_refused(change, text, tmp_path):
    vocabulary = px.Vocabulary(3, 8, admit_after=2)
    for digits in ("11223", "4334", "45", "7"):
        vocabulary.admit(ids_of(digits, False))
    vocabulary.save(tmp_path)
    px.Vocabulary.load(tmp_path)
    forge(tmp_path, change)
    with pytest.raises(TableError, match=re.escape(text)):
        px.Vocabulary.load(tmp_path)


def wrong_sizes(facts, arrays):
    arrays[3][0] += 1


def not_utf8(facts, arrays):
    arrays[4][0] = 0xFF


def same_text_twice(facts, arrays):
    arrays[4][1] = arrays[4][0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (wrong_sizes, "expected sizes of strings, got others"),
        (not_utf8, "expected strings in UTF-8, got"),
        (same_text_twice, "expected a string for each id, got others"),
    ],
)
def test_strings_that_contradict_themselves_are_refused(change, text, tmp_path):
    used(True).save(tmp_path)
    forge(tmp_path, change)
    with pytest.raises(TableError, match=re.escape(text)):
        px.Vocabulary.load(tmp_path)
