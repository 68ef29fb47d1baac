"""Each replica's own part of the data: of iterables, of arrays, and of grain data sets; and of one joined batch.

Knows pytrees of arrays and iterables; nothing of devices or steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.cluster.hosts.resources import Resources, find_resources
from ampjax.devices.random_keys import data_of, is_key
from ampjax.errors import DataError, SettingsError
from ampjax.jaxprs.primitives import shape_text
from ampjax.parallel.config.leaf_paths import by_path
from ampjax.sparse.detection.loss_jaxpr import abstract
from ampjax.utils.setting_checks import at_least

Tree = Any


@dataclass(frozen=True)
class Parts:
    """The batches of one step, one for each replica; `runner.run` takes it in place of a joined batch.

    Args:
      batches: Pytrees of equal structure, shapes and dtypes, in the order of replicas.
    """

    batches: tuple[Tree, ...]

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True)
class ShardedData:
    """Replicas' views of a data set; iterating gives the replicas' next elements together, as `Parts`.

    Ends when a replica has none left: elements that are not enough for all replicas are dropped.

    Args:
      views: An iterable for each replica.
    """

    views: tuple[Iterable[Any], ...]

    def __iter__(self) -> Iterator[Parts]:
        return (Parts(batches) for batches in zip(*self.views, strict=False))

    def __len__(self) -> int:
        return min(len(view) for view in self.views)  # type: ignore[arg-type] - slices of what has a length


@dataclass(frozen=True)
class _Strided:
    """Every n-th element of an iterable: element `index`, `index + count`, ...; can be iterated as often as its source."""

    source: Iterable[Any]
    index: int
    count: int

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.source), self.index, None, self.count)


@dataclass(frozen=True)
class _Dealt:
    """An iterable's elements dealt out to replicas in turn. One pass over the source serves them all."""

    source: Iterable[Any]
    count: int
    skip: int = 0

    def __iter__(self) -> Iterator[Parts]:
        elements = itertools.islice(iter(self.source), self.skip * self.count, None)
        while len(hand := tuple(itertools.islice(elements, self.count))) == self.count:
            yield Parts(hand)


def shard(
    data: Any,
    resource_info: str | Path | Resources | None = None,
    *,
    index: int | None = None,
    count: int | None = None,
    skip: int = 0,
) -> Any:
    """Gives each replica its own part of a data set: element i goes to replica i mod n (the paper's `shard`).

    * An array, or a pytree of arrays with one leading size: `Parts` of every n-th row; surplus rows are dropped.
    * A grain `MapDataset`, or anything with a length that can be sliced by a step: each replica gets a slice of it.
    * Any other iterable (a generator, a grain `IterDataset`, a loader): its elements go to the replicas in turn, in one pass.

    Args:
      data: The data set. An element of an iterable is one replica's batch.
      resource_info: The replicas, as `get_runner` takes them.
      index: With `count`: return this replica's part alone, for programs that feed replicas themselves.
      count: Number of replicas; by default those of `resource_info`.
      skip: The number of steps to leave out, for a program that continues after a crash: `runner.steps`, or its remainder after whole
        epochs (`divmod(runner.steps, len(shard(data)))`). Arrays are a single step, so nothing can be skipped. The skipped elements of an
        iterable are read and dropped.

    Returns:
      `Parts` for arrays, else something to iterate that gives `Parts`; with `index`, that replica's part in the data's own kind.

    Raises:
      SettingsError: If `count` is no integer above 0 or `index` none below `count`, arrays have fewer rows than there are replicas or
        differ in them, or the data can't be iterated.
    """
    n = len(find_resources(resource_info).devices) if count is None else count
    at_least("count", n, 1)
    at_least("skip", skip, 0)
    if index is not None:
        at_least("index", index, 0)
        if index >= n:
            raise SettingsError(
                "shard", "0 <= index < count", f"index {index}, count {n}", "Number the replicas from 0."
            )
    if _is_arrays(data):
        if skip:
            raise SettingsError("shard, `skip`", "0 for arrays, which are one step", f"{skip}", "Skip whole batches.")
        batches = tuple(_rows(data, i, n) for i in range(n))
        return Parts(batches) if index is None else batches[index]
    if _is_sliceable(data):
        views = tuple(data[i + skip * n :: n] for i in range(n))
        return ShardedData(views) if index is None else views[index]
    if not isinstance(data, Iterable):
        raise SettingsError(
            "shard", "arrays, a data set or an iterable", f"{type(data).__name__}", "Pass what gives batches."
        )
    return _Dealt(data, n, skip) if index is None else _Strided(data, index + skip * n, n)


def split_batch(batch: Tree | Parts, n: int) -> tuple[Tree, ...]:
    """Each replica's part of one step's batch: contiguous rows of every array; scalars and a single random key go to all.

    Numbers of Python become arrays, for what is compiled for a batch knows arrays only.

    Args:
      batch: A pytree of arrays with one leading size, or `Parts`. Arrays of random keys may have another leading size.
      n: Number of replicas.

    Returns:
      n pytrees.

    Raises:
      SettingsError: If n does not divide a leading size, leaves differ in it, or there are not n parts alike.
      DataError: If there is no leaf, or one is nothing that JAX takes.
    """
    if isinstance(batch, Parts):
        return _checked(Parts(tuple(_arrays(part) for part in batch.batches)), n)
    batch = _arrays(batch)
    leaves = by_path(batch)
    for path, leaf in leaves.items():
        _check_leaf(path, leaf, n)
    _equal_sizes("batch", {path: leaf.shape[0] for path, leaf in leaves.items() if np.ndim(leaf) and not is_key(leaf)})
    return tuple(jax.tree.map(lambda leaf, i=i: _part(leaf, i, n), batch) for i in range(n))


def joined_batch(batch: Tree | Parts) -> Tree:
    """One step's batch as the single-device program takes it.

    Args:
      batch: A pytree of arrays, or `Parts`.

    Returns:
      The pytree. Of parts, arrays are put together, and scalars and single random keys are the first part's.

    Raises:
      DataError: If there is no leaf, one is nothing that JAX takes, or parts differ in a scalar or in a single random key.
    """
    if not isinstance(batch, Parts):
        return _arrays(batch)
    parts = [_arrays(part) for part in batch.batches]
    flat = [by_path(part) for part in parts]
    leaves = []
    for path, first in flat[0].items():
        each = [part[path] for part in flat]
        if np.ndim(first):
            leaves.append(
                jnp.concatenate(each) if is_key(first) else np.concatenate([np.asarray(leaf) for leaf in each])
            )
            continue
        data = [np.asarray(data_of(leaf)) for leaf in each]
        if any((own != data[0]).any() for own in data):
            fix = "Give each replica the same one, or one for each example."
            raise DataError(f"batch, leaf `{path}`", "the same value in all parts", "others", fix)
        leaves.append(first)
    return jax.tree.unflatten(jax.tree.structure(parts[0]), leaves)


def _arrays(batch: Tree) -> Tree:
    """A batch with arrays in place of Python's numbers.

    Raises:
      DataError: If there is no leaf, or one is nothing that JAX takes.
    """
    batch = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else np.asarray(leaf), batch)
    leaves = by_path(batch)
    if not leaves:
        raise DataError("batch", "a pytree of arrays", f"{batch!r}, without any", "Pass what the loss function takes.")
    for path, leaf in leaves.items():
        if not is_key(leaf) and leaf.dtype.kind in "OUSMm":
            fix = "Leave out what JAX can't trace, or encode it as numbers."
            raise DataError(f"batch, leaf `{path}`", "numbers", f"{leaf.dtype}", fix)
    return batch


def _part(leaf: Any, index: int, n: int) -> Any:
    if not np.ndim(leaf):
        return leaf
    each = leaf.shape[0] // n
    return leaf[index * each : (index + 1) * each]


def _check_leaf(path: str, leaf: Any, n: int) -> None:
    if np.ndim(leaf) and (leaf.shape[0] % n or not leaf.shape[0]):
        raise SettingsError(
            f"batch, leaf `{path}`",
            f"a leading size above 0 that {n} replicas divide",
            f"{leaf.shape[0]}",
            "Drop or add examples, or use fewer replicas.",
        )


def _checked(parts: Parts, n: int) -> tuple[Tree, ...]:
    if len(parts) != n:
        raise SettingsError(
            "batch", f"{n} parts, one for each replica", f"{len(parts)}", "Shard the data with the runner's resources."
        )
    leaves = [by_path(abstract(part)) for part in parts.batches]
    kinds = [{path: (leaf.shape, leaf.dtype) for path, leaf in part.items()} for part in leaves]
    for number, part in enumerate(kinds):
        if part != kinds[0]:
            first, other = ({path: shape_text(leaf) for path, leaf in leaves[i].items()} for i in (0, number))
            raise SettingsError(
                f"batch, part {number}",
                f"the shapes and dtypes of part 0, {first}",
                f"{other}",
                "Give replicas batches of one kind.",
            )
    return parts.batches


def _is_arrays(data: Any) -> bool:
    if isinstance(data, Iterator):  # JAX refuses to look for leaves in one
        return False
    leaves = jax.tree.leaves(data)
    return (
        bool(leaves) and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves) and not isinstance(data, list)
    )


def _is_sliceable(data: Any) -> bool:
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return True
    # grain's MapDataset and data sets like it are no Sequences, but have a length and take slices.
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and hasattr(data, "slice")


def _rows(data: Tree, index: int, n: int) -> Tree:
    sizes = {path: (leaf.shape or (0,))[0] for path, leaf in by_path(data).items()}
    _equal_sizes("shard", sizes)
    size = next(iter(sizes.values()))
    if size < n:
        raise SettingsError("shard", f"at least {n} rows, one for each replica", f"{size}", "Use fewer replicas.")
    return jax.tree.map(lambda leaf: leaf[index : size - size % n : n], data)


def _equal_sizes(where: str, sizes: dict[str, int]) -> None:
    first = next(iter(sizes), "")
    for path, size in sizes.items():
        if size != sizes[first]:
            raise SettingsError(
                f"{where}, leaf `{path}`",
                f"the leading size of `{first}`, {sizes[first]}",
                f"{size}",
                "Give all arrays one row for each example.",
            )
