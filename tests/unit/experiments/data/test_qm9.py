"""QM9: features of known molecules, the split, and every way in which the file can be wrong."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampjax.errors import DataError, SettingsError
from experiments.data import qm9

GOOD: dict[str, Any] = {
    "mu": np.array([1.5, 9.0, 0.5], np.float32),
    "uncharacterized": np.array([0, 1, 0], np.uint8),
    "atom_ptr": np.array([0, 3, 4, 8]),  # hydrogen cyanide, a lone oxygen, acetylene
    "atomic_number": np.array(
        [1, 6, 7, 8, 1, 6, 6, 1],
        np.uint8,
    ),
    "bond_ptr": np.array([0, 2, 2, 5]),
    "bond_index": np.array(
        [
            [0, 1],
            [1, 2],
            [0, 1],
            [1, 2],
            [2, 3],
        ],
        np.uint8,
    ),
    "bond_type": np.array(
        [1, 3, 1, 3, 1],
        np.uint8,
    ),
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "qm9_graphs.npz"
    arrays = {}
    for name, array in {**GOOD, **changes}.items():
        if array is not None:
            arrays[name] = array
    np.savez(path, **arrays)
    return path


def changed(
    name: str,
    row: Any,
    value: Any,
) -> dict[str, Any]:
    array = GOOD[name].copy()
    array[row] = value
    return {name: array}


def test_molecules_as_columns(tmp_path: Path) -> None:
    write(tmp_path)
    molecules = qm9.load(tmp_path)
    assert repr(molecules) == "Molecules(2 molecules, 7 atoms, 5 bonds)"
    assert molecules.mu.tolist() == [1.5, 0.5]
    assert molecules.graphs.node_ptr.tolist() == [0, 3, 7]
    assert molecules.graphs.receivers.tolist() == [1, 2, 0, 1, 1, 2, 0, 3, 1, 2]
    assert molecules.graphs.kinds.tolist() == [0, 2, 0, 2, 0, 2, 0, 0, 2, 0]
    hydrogen, carbon, nitrogen = molecules.features[:3].tolist()
    assert hydrogen == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert carbon == [0, 1, 0, 0, 0, 6, 0, 1, 0, 0, 1]
    assert nitrogen == [0, 0, 1, 0, 0, 7, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("types", "aromatic", "hybridisation"),
    [
        ((1, 1), 0, [0, 0, 1]),
        ((2, 1), 0, [0, 1, 0]),
        ((2, 2), 0, [1, 0, 0]),
        ((4, 4), 1, [0, 1, 0]),
    ],
)
def test_hybridisation_goes_by_bonds(
    tmp_path: Path, types: Any, aromatic: int, hybridisation: list[int]
) -> None:
    arrays = {
        "mu": np.ones(1, np.float32),
        "uncharacterized": np.zeros(1, np.uint8),
        "atom_ptr": np.array([0, 3]),
    }
    arrays |= {
        "atomic_number": np.array([6, 6, 8]),
        "bond_ptr": np.array([0, 2]),
        "bond_type": np.array(types),
    }
    molecules = qm9.read(
        write(
            tmp_path,
            **arrays,
            bond_index=np.array([[0, 1], [1, 2]]),
        )
    )
    assert molecules.features[1, 6:10].tolist() == [aromatic, *hybridisation]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"bond_type": None},
            "array `bond_type`: expected an array of integers, got no such array",
        ),
        (
            {"mu": np.array([1, 2, 3])},
            "array `mu`: expected floats with 1 axes, got int64 of shape (3,)",
        ),
        ({"bond_index": np.zeros(10, int)}, "array `bond_index`: expected integers with 2 axes"),
        (
            {"bond_index": np.zeros((5, 3), int)},
            "array `bond_index`: expected shape (5, 2), a row for each of `bond_type`",
        ),
        (
            {"uncharacterized": np.zeros(2, int)},
            "array `uncharacterized`: expected 3 rows, one for each of `mu`, got 2",
        ),
        (
            {"atom_ptr": np.array([0, 3, 8])},
            "array `atom_ptr`: expected 4 rows, one more than `mu`, got 3",
        ),
        (
            changed("atom_ptr", 2, 3),
            "array `atom_ptr`, row 2: expected at least 1 more than the row before, got 3",
        ),
        (
            changed("atom_ptr", 3, 7),
            "array `atom_ptr`: expected 0 first and 8 last, the rows of `atomic_number`, got 0 and 7",
        ),
        (
            changed("bond_ptr", 1, 3),
            "array `bond_ptr`, row 2: expected at least 0 more than the row before, got 2",
        ),
        (
            changed("bond_ptr", 0, 1),
            "array `bond_ptr`: expected 0 first and 5 last, the rows of `bond_type`, got 1 and 5",
        ),
        (
            changed("atomic_number", 6, 16),
            "array `atomic_number`, row 6: expected one of [1, 6, 7, 8, 9], got 16",
        ),
        (
            changed("bond_index", (1, 1), 3),
            "array `bond_index`, row 1: expected two different atoms of the bond's molecule",
        ),
        (
            changed("bond_index", (4, 0), 3),
            "array `bond_index`, row 4: expected two different atoms",
        ),
        (
            changed("bond_index", 3, (1, 0)),
            "array `bond_index`, row 3: expected each bond once, got [1, 0]",
        ),
        (changed("bond_type", 3, 5), "array `bond_type`, row 3: expected 1 to 4, got 5"),
        (changed("bond_type", 0, 0), "array `bond_type`, row 0: expected 1 to 4, got 0"),
        (changed("mu", 2, np.nan), "array `mu`, row 2: expected a finite number, got nan"),
        (
            {"mu": np.array([1, 2, 1e300])},
            "array `mu`, row 2: expected a finite number, got 1e+300",
        ),
        (
            {"uncharacterized": np.ones(3, int)},
            "array `uncharacterized`: expected a 0 for at least one molecule, got none",
        ),
    ],
)
def test_a_damaged_file_is_told_by_array_and_row(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(DataError) as error:
        qm9.read(path)
    assert str(error.value).startswith(
        f"file {path}, {expected}"
    ) and "get it from https://" in str(error.value)


def test_files_that_are_missing_or_no_archive(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data set `qm9`: expected the file qm9_graphs\.npz"):
        qm9.load(tmp_path)
    path = write(tmp_path)
    content = path.read_bytes()
    for damaged in (b"", b"text", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"expected a readable \.npz archive of arrays"):
            qm9.read(path)
    np.savez(path, mu=np.array([None]))
    with pytest.raises(DataError, match=r"expected a readable \.npz archive of arrays"):
        qm9.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mu.npy", "no array")
    with pytest.raises(
        DataError, match="array `mu`: expected an array of floats, got something else"
    ):
        qm9.read(path)


def test_the_split_is_seeded_and_standardised() -> None:
    molecules = qm9.synthetic(50)
    split, same, other = (qm9.split(molecules, 10, seed) for seed in (1, 1, 2))
    assert np.array_equal(split.train.ids, same.train.ids)
    assert not np.array_equal(split.train.ids, other.train.ids)
    assert sorted([*split.train.ids, *split.valid.ids]) == list(range(50))
    target = split.train.targets["target"][split.train.ids]
    assert target.mean() == pytest.approx(0, abs=1e-5)
    assert target.std() == pytest.approx(1, abs=1e-5)
    assert split.std == pytest.approx(
        molecules.mu[split.train.ids].std(),
        rel=1e-5,
    )
    small = qm9.split(molecules, 10, 1, n_train=5)
    assert np.array_equal(small.valid.ids, split.valid.ids)
    assert len(small.train) == 5
    for wrong in (
        {"n_valid": 50},
        {"n_train": 0},
        {
            "n_valid": 45,
            "n_train": 6,
        },
    ):
        with pytest.raises(SettingsError):
            qm9.split(molecules, **wrong)
    with pytest.raises(DataError, match="training molecules of different mu"):
        qm9.split(molecules, 49)


def test_synthetic_molecules_follow_from_their_seed_and_their_bonds() -> None:
    a = qm9.synthetic(40, 1)
    b = qm9.synthetic(40, 1)
    c = qm9.synthetic(40, 2)
    assert np.array_equal(
        a.mu,
        b.mu,
    ) and not np.array_equal(a.mu, c.mu)
    assert 1 in np.diff(a.graphs.node_ptr)
    order = np.array([1, 2, 3, 1.5])
    for i in range(len(a)):
        first, end = a.graphs.node_ptr[i : i + 2]
        edges = slice(
            a.graphs.out_ptr[first],
            a.graphs.out_ptr[end],
        )
        number = a.features[first:end, 5]
        difference = np.abs(number[a.graphs.senders[edges]] - number[a.graphs.receivers[edges]])
        assert a.mu[i] == pytest.approx(
            (order[a.graphs.kinds[edges]] * difference).sum() / 20,
            abs=1e-5,
        )
    with pytest.raises(SettingsError, match="`n`"):
        qm9.synthetic(0)


@pytest.mark.skipif(
    "AMPJAX_DATA" not in os.environ,
    reason="the real file is only read where AMPJAX_DATA names its folder",
)
def test_the_real_molecules() -> None:
    molecules = qm9.load()
    assert len(molecules) >= 18_520
    assert np.diff(molecules.graphs.node_ptr).max() <= 29
    assert molecules.features[:, :5].sum(axis=1).tolist() == [1] * len(molecules.features)
    split = qm9.split(molecules)
    assert len(split.train) == len(molecules) - 1500
    assert split.mean == pytest.approx(2.68, abs=0.05) and split.std == pytest.approx(1.5, abs=0.05)
