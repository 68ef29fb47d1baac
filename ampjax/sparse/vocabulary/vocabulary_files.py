"""A vocabulary in files, as tables are: arrays, and a manifest with their checksums, which is replaced in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ampjax.errors import TableError
from ampjax.sparse.table import table_files

_KIND = "vocabulary"
_WIDTH = 4
"""Columns of a saved id: its entry, the id, how often it was seen, and in which call last."""

_INTEGERS = [
    (2, "int64"),
    (1, "int64"),
    (2, "int64"),
]
_TEXTS = [
    (1, "int64"),
    (1, "uint8"),
]
"""Axes and dtypes of the arrays: of all vocabularies, and further ones of strings."""


class SavedVocabulary(NamedTuple):
    """The contents of a saved vocabulary.

    Args:
      settings: Its settings, in JSON's types.
      counts: What it has done so far, in JSON's types.
      known: `[n, 4]` int64: entry, id, count and last call of each id that has a row, the oldest first. Strings are numbered.
      free: `[k]` int64, the free entries, the one that is used next last.
      candidates: `[m, 4]` int64, as `known`, of ids that have no row.
      texts: The strings of `known`, then those of `candidates`; None where ids are integers.
    """

    settings: dict[str, Any]
    counts: dict[str, Any]
    known: np.ndarray
    free: np.ndarray
    candidates: np.ndarray
    texts: list[str] | None


def damage_error(folder: str | Path, expected: str, got: str) -> TableError:
    """The error for files that hold something else than a vocabulary.

    Args:
      folder: Where they are.
      expected: What should be there.
      got: What is there.
    """
    return TableError(f"{folder}", expected, got, "Load another copy, or start anew.")


def save(folder: str | Path, saved: SavedVocabulary) -> None:
    """Writes a vocabulary; the folder's earlier save stays valid until all is written.

    Args:
      folder: Made if it is missing.
      saved: The vocabulary.
    """
    facts = {
        "kind": _KIND,
        "vocabulary": saved.settings,
        "counts": saved.counts,
    }
    arrays = [saved.known, saved.free, saved.candidates]
    if saved.texts is not None:
        # JSON would need six bytes for a letter that is not ASCII, and is read in one piece.
        encoded = []
        for text in saved.texts:
            encoded.append(text.encode("utf-8", "surrogatepass"))
        sizes = [len(text) for text in encoded]
        arrays.append(np.array(sizes, np.int64))
        arrays.append(np.frombuffer(b"".join(encoded), np.uint8))
    table_files.save(folder, facts, iter([]), arrays)


def load(folder: str | Path) -> SavedVocabulary:
    """Reads a vocabulary, after a check of every byte.

    Args:
      folder: What `save` wrote.

    Returns:
      What was saved.

    Raises:
      TableError: If files are missing, cut off or altered, or are of something else.
    """
    facts = table_files.read_manifest(folder)
    if facts.get("kind") != _KIND:
        fix = "Give the folder that `Vocabulary.save` wrote."
        raise TableError(f"{folder}", "a saved vocabulary", "a saved table", fix)
    settings = facts.get("vocabulary")
    counts = facts.get("counts")
    if not isinstance(settings, dict) or not isinstance(counts, dict):
        raise damage_error(folder, "settings and counts", "something else")
    _, arrays = table_files.read_arrays(folder, facts)
    has_texts = bool(settings.get("strings"))
    wanted = _INTEGERS + (_TEXTS if has_texts else [])
    types = [(array.ndim, str(array.dtype)) for array in arrays]
    if types != wanted:
        raise damage_error(folder, f"arrays {wanted}", f"{types}")
    texts = None
    if has_texts:
        texts = _split_texts(folder, *arrays[3:])
    table_files.sweep(folder)
    known, free, candidates = arrays[:3]
    return SavedVocabulary(
        settings,
        counts,
        known,
        free,
        candidates,
        texts,
    )


def check(
    folder: str | Path,
    saved: SavedVocabulary,
    most: int,
    calls: int,
) -> None:
    """Checks that saved arrays can be a vocabulary's.

    Args:
      folder: Where they were, for errors.
      saved: The arrays.
      most: How many entries may be used.
      calls: How many calls there were.

    Raises:
      TableError: If they can't.
    """
    tables = (saved.known, saved.candidates)
    for table in tables:
        if table.shape[1] != _WIDTH:
            raise damage_error(folder, f"{_WIDTH} columns", f"{table.shape[1]}")
    used = np.concatenate([saved.known[:, 0], saved.free])
    used.sort()
    if len(used) > most or (used != np.arange(len(used))).any():
        raise damage_error(folder, f"each of at most {most} rows once", "others")
    ids = np.concatenate([table[:, 1] for table in tables])
    if len(np.unique(ids)) != len(ids):
        raise damage_error(folder, "each id once", "an id that is there twice")
    if saved.texts is not None:
        _check_numbers(folder, saved.texts, ids)
    for table in tables:
        if not _are_in_order(table, calls):
            raise damage_error(folder, f"ids in the order of {calls} calls", "another order")


def _are_in_order(table: np.ndarray, calls: int) -> bool:
    """Tells whether ids were seen in earlier calls, the oldest first."""
    if not len(table):
        return True
    seen = table[:, 3]
    rises = bool((np.diff(seen) >= 0).all())
    return rises and seen[0] >= 1 and seen[-1] <= calls and table[:, 2].min() >= 1


def _check_numbers(
    folder: str | Path,
    texts: list[str],
    numbers: np.ndarray,
) -> None:
    """Checks that strings have their numbers."""
    in_order = np.sort(numbers)
    is_numbered = np.array_equal(in_order, np.arange(len(texts)))
    if not is_numbered or len(set(texts)) != len(texts):
        raise damage_error(folder, "a string for each id", "others")


def _split_texts(
    folder: str | Path,
    sizes: np.ndarray,
    joined: np.ndarray,
) -> list[str]:
    """Cuts joined strings apart."""
    if (sizes < 0).any() or sizes.sum() != len(joined):
        raise damage_error(folder, "sizes of strings", "others")
    encoded = joined.tobytes()
    texts = []
    start = 0
    try:
        for size in sizes.tolist():
            end = start + size
            texts.append(encoded[start:end].decode("utf-8", "surrogatepass"))
            start = end
    except UnicodeDecodeError as error:
        raise damage_error(folder, "strings in UTF-8", f"{error}") from error
    return texts
