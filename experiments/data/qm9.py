"""QM9 (Ramakrishnan et al. 2014): small molecules as graphs with explicit hydrogens, and their dipole moment mu in debye.

The file `qm9_graphs.npz` holds, for M molecules, A atoms and B bonds: `mu` [M] (debye), `uncharacterized` [M] (1: failed QM9's consistency
check; left out), `atom_ptr` [M + 1] into `atomic_number` [A] (1, 6, 7, 8, 9), `bond_ptr` [M + 1] into `bond_index` [B, 2] (atoms' numbers
within the molecule, each bond once) and `bond_type` [B] (1 single, 2 double, 3 triple, 4 aromatic). RDKit makes such columns from SMILES.

An atom's features are those of Gilmer et al. 2017, table 1, that follow from such a graph: element (H, C, N, O, F, one-hot), atomic number,
aromatic, hybridisation (sp, sp2, sp3, one-hot; none for hydrogen), number of hydrogens. Acceptor and donor, which need a chemistry library,
are left out. Hybridisation goes by bonds alone: sp for a triple or two double bonds, sp2 for a double or aromatic one, else sp3, which is
approximate for conjugated nitrogen and oxygen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ampjax.errors import DataError, SettingsError
from experiments.data.graphs import GraphInstances, Graphs
from experiments.data.readers.data_checks import at_least_one
from experiments.data.readers.data_files import Remote, find
from experiments.data.readers.npz import Column, read_columns

SOURCE = "https://doi.org/10.6084/m9.figshare.c.978904 (QM9; experiments.data.qm9 says how the columns are made)"
FILE = Remote("qm9", "qm9_graphs.npz", source=SOURCE)

ELEMENTS = np.array([1, 6, 7, 8, 9])
SINGLE = 0
DOUBLE = 1
TRIPLE = 2
AROMATIC = 3
N_KINDS = 4
N_FEATURES = 11
CHEMICAL_ACCURACY = 0.1
"""Debye; errors are reported as multiples of it (Faber et al. 2017)."""

_COLUMNS = {
    "mu": Column("f", 1),
    "uncharacterized": Column("iub", 1),
    "atom_ptr": Column("iu", 1),
    "atomic_number": Column("iu", 1),
    "bond_ptr": Column("iu", 1),
    "bond_index": Column("iu", 2),
    "bond_type": Column("iu", 1),
}
_FIX = f"The file is damaged, or another data set: get it from {SOURCE}."


@dataclass(frozen=True, eq=False)
class Molecules:
    """Molecules as columns.

    Args:
      graphs: Their bonds, each in both directions; kinds 0 to 3 are single, double, triple, aromatic.
      features: `[atoms, 11]` float32.
      mu: `[n]` float32: dipole moments in debye.
    """

    graphs: Graphs
    features: Float[np.ndarray, "atoms 11"]
    mu: Float[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.mu)

    def __repr__(self) -> str:
        return f"Molecules({len(self)} molecules, {len(self.features)} atoms, {len(self.graphs.kinds) // 2} bonds)"


@dataclass(frozen=True, eq=False)
class Split:
    """Training and validation instances with a standardised target.

    Args:
      train: Training instances.
      valid: Validation instances.
      mean: The mean of mu over the training molecules, in debye.
      std: The standard deviation of mu over the training molecules, in debye: an error in the target's unit times this is in debye.
    """

    train: GraphInstances
    valid: GraphInstances
    mean: float
    std: float


def load(data_dir: str | os.PathLike[str] | None = None) -> Molecules:
    """Reads all molecules that passed QM9's consistency check.

    Args:
      data_dir: The folder with `qm9_graphs.npz` (or with a folder `qm9` that holds it); else `AMPJAX_DATA`.

    Returns:
      The molecules as columns.

    Raises:
      DataError: If the file is missing or holds something else than such molecules; names file, array and row.
    """
    return read(find(FILE, data_dir))


def read(path: str | os.PathLike[str]) -> Molecules:
    """Reads the molecules of one file.

    Args:
      path: The file.

    Returns:
      Those that passed QM9's consistency check.

    Raises:
      DataError: As `load`.
    """
    return _Reader(Path(path)).molecules()


def split(
    molecules: Molecules,
    n_valid: int = 1500,
    seed: int = 0,
    n_train: int | None = None,
    encoding: str = "collect",
) -> Split:
    """Draws molecules for training and for validation.

    Args:
      molecules: All molecules.
      n_valid: Validation molecules; the same ones whatever `n_train` is.
      seed: Same seed, same split.
      n_train: Training molecules; by default all others.
      encoding: `collect` or `flatmap`: see `GraphInstances`. Pumps: `x`, rows `[11]`, and `target`, `()`: standardised mu.

    Returns:
      Both, with a standardised target.

    Raises:
      SettingsError: If a count is below 1, or both together exceed what there is.
      DataError: If all training molecules have one mu.
    """
    n_train = len(molecules) - n_valid if n_train is None else n_train
    at_least_one("split", n_valid=n_valid, n_train=n_train)
    if n_train + n_valid > len(molecules):
        raise SettingsError(
            "split, `n_train` and `n_valid`",
            f"{len(molecules)} together at most, as many as there are molecules",
            f"{n_train} + {n_valid}",
            "Lower one of them.",
        )
    order = np.random.default_rng(seed).permutation(len(molecules))
    valid = order[:n_valid]
    train = order[n_valid : n_valid + n_train]
    mean = float(molecules.mu[train].mean())
    std = float(molecules.mu[train].std())
    if not std > 0:
        raise DataError(
            "split",
            "training molecules of different mu",
            f"{mean:g} debye for all",
            "Take more of them.",
        )
    target = ((molecules.mu - mean) / std).astype(np.float32)

    def part(ids: np.ndarray) -> GraphInstances:
        return GraphInstances(
            molecules.graphs,
            ids,
            {"x": molecules.features},
            {"target": target},
            encoding,
        )

    return Split(part(train), part(valid), mean, std)


def synthetic(n: int = 1000, seed: int = 0) -> Molecules:
    """Draws random molecules whose mu follows from the graph: a twin for runs without data.

    A molecule is a random tree of 1 to 12 atoms, sometimes with one bond more. Each bond adds its order (1.5 for an aromatic one) times the
    difference of its atoms' atomic numbers, over 10, to mu.

    Args:
      n: How many.
      seed: Same seed, same molecules.

    Returns:
      `n` molecules.

    Raises:
      SettingsError: If `n` is below 1.
    """
    at_least_one("synthetic", n=n)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 13, n)
    elements = []
    bonds = []
    mu = np.zeros(n, np.float32)
    for i, size in enumerate(sizes.tolist()):
        number = rng.choice(ELEMENTS, size)
        pairs = set()
        for v in range(1, size):
            pairs.add((int(rng.integers(0, v)), v))
        if size > 2 and rng.random() < 0.5:
            pairs.add((0, size - 1))
        for a, b in sorted(pairs):
            kind = int(rng.integers(0, N_KINDS))
            bonds.append((i, a, b, kind))
            mu[i] += (1, 2, 3, 1.5)[kind] * abs(int(number[a]) - int(number[b])) / 10
        elements.append(number)
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    return _molecules(
        ptr,
        np.concatenate(elements),
        np.array(bonds, np.int64).reshape(-1, 4),
        mu,
    )


def _molecules(
    ptr: np.ndarray,
    number: np.ndarray,
    bonds: np.ndarray,
    mu: np.ndarray,
) -> Molecules:
    """From atoms and bonds `[bonds, 4]` (molecule, two atoms, kind), each bond given once."""
    graphs = Graphs.from_edges(
        ptr,
        np.concatenate([bonds, bonds[:, [0, 2, 1, 3]]]),
        N_KINDS,
    )
    return Molecules(
        graphs,
        _features(graphs, number),
        mu.astype(np.float32),
    )


def _features(
    graphs: Graphs,
    number: np.ndarray,
) -> Float[np.ndarray, "atoms 11"]:
    """What a graph tells about its atoms, by counting the bonds of each kind, and the hydrogens, next to each."""
    sender = np.repeat(np.arange(len(number)), graphs.out_degree)
    receiver = sender - graphs.senders + graphs.receivers
    count = np.bincount(sender * N_KINDS + graphs.kinds, minlength=len(number) * N_KINDS).reshape(
        -1, N_KINDS
    )
    hydrogens = np.bincount(
        sender,
        number[receiver] == 1,
        minlength=len(number),
    )
    sp = (count[:, TRIPLE] > 0) | (count[:, DOUBLE] > 1)
    sp2 = ~sp & ((count[:, DOUBLE] > 0) | (count[:, AROMATIC] > 0))
    heavy = number != 1
    columns = [number == element for element in ELEMENTS]
    columns += [
        number,
        count[:, AROMATIC] > 0,
        sp & heavy,
        sp2 & heavy,
        ~sp & ~sp2 & heavy,
        hydrogens,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


class _Reader:
    """One file's arrays, checked."""

    def __init__(self, path: Path):
        self.path = path
        self.arrays = read_columns(path, _COLUMNS, _FIX)

    def molecules(self) -> Molecules:
        arrays = self.arrays
        mu, left_out, number, pairs, kinds = (
            arrays[name]
            for name in ("mu", "uncharacterized", "atomic_number", "bond_index", "bond_type")
        )
        n = len(mu)
        self._lengths("uncharacterized", n, "one for each of `mu`")
        self._pointers("atom_ptr", arrays["atom_ptr"], n, "atomic_number", least=1)
        self._pointers("bond_ptr", arrays["bond_ptr"], n, "bond_type", least=0)
        if pairs.shape != (len(kinds), 2):
            raise self._foreign(
                "bond_index",
                f"shape ({len(kinds)}, 2), a row for each of `bond_type`",
                f"{pairs.shape}",
            )
        self._rows(
            "mu",
            ~(np.abs(mu) <= np.finfo(np.float32).max),
            "a finite number",
            mu,
        )
        self._rows(
            "atomic_number", ~np.isin(number, ELEMENTS), f"one of {ELEMENTS.tolist()}", number
        )
        self._rows(
            "bond_type",
            (kinds < 1) | (kinds > N_KINDS),
            "1 to 4",
            kinds,
        )
        molecule = np.repeat(
            np.arange(n),
            np.diff(arrays["bond_ptr"]),
        )
        sizes = np.diff(arrays["atom_ptr"])
        outside = (pairs < 0) | (pairs >= sizes[molecule][:, None]) | (pairs[:, :1] == pairs[:, 1:])
        self._rows(
            "bond_index", outside.any(axis=1), "two different atoms of the bond's molecule", pairs
        )
        low, high = np.sort(pairs, axis=1).T
        again = np.ones(len(pairs), bool)
        again[
            np.unique(
                (arrays["atom_ptr"][molecule] + low) * sizes.max(initial=1) + high,
                return_index=True,
            )[1]
        ] = False
        self._rows("bond_index", again, "each bond once", pairs)
        kept = left_out == 0
        if not kept.any():
            raise self._foreign("uncharacterized", "a 0 for at least one molecule", "none")
        bonds = np.column_stack([np.cumsum(kept)[molecule] - 1, pairs, kinds - 1])[kept[molecule]]
        ptr = np.concatenate([[0], np.cumsum(sizes[kept])])
        return _molecules(
            ptr,
            number[np.repeat(kept, sizes)],
            bonds,
            mu[kept],
        )

    def _lengths(self, name: str, n: int, why: str) -> None:
        if len(self.arrays[name]) != n:
            raise self._foreign(name, f"{n} rows, {why}", f"{len(self.arrays[name])}")

    def _pointers(
        self,
        name: str,
        ptr: np.ndarray,
        n: int,
        into: str,
        least: int,
    ) -> None:
        self._lengths(name, n + 1, "one more than `mu`")
        end = len(self.arrays[into])
        steps = np.diff(ptr, prepend=ptr[0] - least)
        self._rows(name, steps < least, f"at least {least} more than the row before", ptr)
        if (ptr[0], ptr[-1]) != (0, end):
            raise self._foreign(
                name, f"0 first and {end} last, the rows of `{into}`", f"{ptr[0]} and {ptr[-1]}"
            )

    def _rows(
        self,
        name: str,
        wrong: np.ndarray,
        expected: str,
        values: np.ndarray,
    ) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            raise self._foreign(name, expected, f"{values[rows[0]].tolist()}", f", row {rows[0]}")

    def _foreign(
        self,
        name: str,
        expected: str,
        got: str,
        row: str = "",
    ) -> DataError:
        return DataError(f"file {self.path}, array `{name}`{row}", expected, got, _FIX)
