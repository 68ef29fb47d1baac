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


class SavedVocabulary(NamedTuple):
    """A vocabulary as it is saved.

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


def damaged(folder: str | Path, expected: str, got: str) -> TableError:
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
        encoded = [text.encode("utf-8", "surrogatepass") for text in saved.texts]
        sizes = np.array([len(text) for text in encoded], np.int64)
        arrays += [sizes, np.frombuffer(b"".join(encoded), np.uint8)]
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
        raise damaged(folder, "settings and counts", "something else")
    _, arrays = table_files.read_arrays(folder, facts)
    types = [(array.ndim, str(array.dtype)) for array in arrays]
    wanted = [(2, "int64"), (1, "int64"), (2, "int64")]
    if settings.get("strings"):
        wanted += [(1, "int64"), (1, "uint8")]
    if types != wanted:
        raise damaged(folder, f"arrays {wanted}", f"{types}")
    texts = _split_texts(folder, *arrays[3:]) if settings.get("strings") else None
    known, free, candidates = arrays[:3]
    saved = SavedVocabulary(settings, counts, known, free, candidates, texts)
    table_files.sweep(folder)
    return saved


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
    known = saved.known
    candidates = saved.candidates
    if known.shape[1] != _WIDTH or candidates.shape[1] != _WIDTH:
        raise damaged(folder, f"{_WIDTH} columns", f"{known.shape[1]} and {candidates.shape[1]}")
    used = np.concatenate([known[:, 0], saved.free])
    if len(used) > most or (np.sort(used) != np.arange(len(used))).any():
        raise damaged(folder, f"each of at most {most} rows once", "others")
    ids = np.concatenate([known[:, 1], candidates[:, 1]])
    if len(np.unique(ids)) != len(ids):
        raise damaged(folder, "each id once", "an id that is there twice")
    if saved.texts is not None:
        _check_numbers(folder, saved.texts, ids)
    for table in (known, candidates):
        _, _, counts, seen = table.T
        in_order = (np.diff(seen) >= 0).all()
        if not in_order or (seen < 1).any() or (seen > calls).any() or (counts < 1).any():
            raise damaged(folder, f"ids in the order of {calls} calls", "another order")


def _check_numbers(
    folder: str | Path,
    texts: list[str],
    numbers: np.ndarray,
) -> None:
    """Checks that strings have their numbers."""
    if len({*texts}) != len(texts) or sorted(numbers.tolist()) != [*range(len(texts))]:
        raise damaged(folder, "a string for each id", "others")


def _split_texts(
    folder: str | Path,
    sizes: np.ndarray,
    joined: np.ndarray,
) -> list[str]:
    """Cuts joined strings apart."""
    ends = np.cumsum(sizes)
    if (sizes < 0).any() or (ends[-1] if len(ends) else 0) != len(joined):
        raise damaged(folder, "sizes of strings", "others")
    encoded = joined.tobytes()
    texts = []
    try:
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True):
            texts.append(encoded[end - size : end].decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError as error:
        raise damaged(folder, "strings in UTF-8", f"{error}") from error
    return texts
