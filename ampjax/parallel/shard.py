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
from ampjax.devices.host_arrays import host_array, require_32_bits
from ampjax.devices.random_keys import data_of, is_key
from ampjax.errors import DataError, SettingsError
from ampjax.jaxprs.primitives import shape_text
from ampjax.parallel.bag import BagWidths, arrange_bags, has_bags
from ampjax.parallel.config.leaf_paths import by_path, matches
from ampjax.sparse.detection.loss_jaxpr import abstract
from ampjax.utils.setting_checks import at_least

Tree = Any


@dataclass(frozen=True)
class Parts:
    """The batches of one step, one for each replica; `runner.run` takes this in place of a joined batch.

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
        return itertools.islice(
            iter(self.source),
            self.index,
            None,
            self.count,
        )


@dataclass(frozen=True)
class _Dealt:
    """An iterable's elements dealt out to replicas in turn. One pass over the source serves all replicas."""

    source: Iterable[Any]
    count: int
    skip: int = 0

    def __iter__(self) -> Iterator[Parts]:
        elements = itertools.islice(
            iter(self.source),
            self.skip * self.count,
            None,
        )
        while len(hand := tuple(itertools.islice(elements, self.count))) == self.count:
            yield Parts(hand)


def shard(
    data: Any,
    resource_info: str | Path | Resources | None = None,
    *,
    index: int | None = None,
    count: int | None = None,
    skip: int = 0,
    shared: Sequence[str] = (),
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
      shared: Of arrays, patterns (see `Partitioner`) of those that all replicas get whole; the runner is told in `ParallaxConfig(shared=...)`.

    Returns:
      `Parts` for arrays, else something to iterate that gives `Parts`; with `index`, that replica's part in the data's own kind.

    Raises:
      SettingsError: If `count` is no integer above 0 or `index` none below `count`, arrays have fewer rows than there are replicas or
        differ in them, or the data can't be iterated.
    """
    if count is None:
        n = len(find_resources(resource_info).devices)
    else:
        n = count
    at_least("count", n, 1)
    at_least("skip", skip, 0)
    if index is not None:
        at_least("index", index, 0)
        if index >= n:
            raise SettingsError(
                "shard",
                "0 <= index < count",
                f"index {index}, count {n}",
                "Number the replicas from 0.",
            )
    if _is_arrays(data):
        if skip:
            raise SettingsError(
                "shard, `skip`",
                "0 for arrays, which are one step",
                f"{skip}",
                "Skip whole batches.",
            )
        batches = tuple(_rows(data, i, n, shared) for i in range(n))
        return Parts(batches) if index is None else batches[index]
    if _is_sliceable(data):
        views = tuple(data[i + skip * n :: n] for i in range(n))
        return ShardedData(views) if index is None else views[index]
    if not isinstance(data, Iterable):
        raise SettingsError(
            "shard",
            "arrays, a data set or an iterable",
            f"{type(data).__name__}",
            "Pass what gives batches.",
        )
    if index is None:
        return _Dealt(data, n, skip)
    return _Strided(data, index + skip * n, n)


def split_batch(
    batch: Tree | Parts,
    n: int,
    shared: Sequence[str] = (),
    widths: BagWidths | None = None,
) -> tuple[Tree, ...]:
    """Each replica's part of one step's batch: contiguous rows of every array; scalars, a single random key and shared leaves go to all.

    Numbers of Python and tensors become arrays, for what is compiled for a batch knows arrays only. Bags are cut between bags.

    Args:
      batch: A pytree of arrays with one leading size, or `Parts`. Arrays of random keys may have another leading size.
      n: Number of replicas.
      shared: Patterns of leaves that all replicas get whole.
      widths: The widths of bags so far; None for those of this batch.

    Returns:
      n pytrees.

    Raises:
      SettingsError: If n does not divide a leading size, the batch is a packed one, leaves differ in it, there are not n parts alike, or no leaf is named so.
      DataError: If there is no leaf, one is nothing that JAX takes, or replicas have unlike shared leaves.
    """
    widths = widths or BagWidths()
    if isinstance(batch, Parts):
        parts = tuple(_arrays(part) for part in batch.batches)
        return _check_parts(
            Parts(arrange_bags(parts, 1, widths)),
            n,
            shared,
        )
    is_packed = not has_rows(batch)
    if n > 1 and is_packed:
        expected = f"`px.Parts` of {n} batches"
        fix = f"Pack with `parts={n}`, and pass `px.Parts(batch.parts)`."
        raise SettingsError("batch", expected, "a packed batch, which can't be cut", fix)
    (batch,) = arrange_bags((_arrays(batch),), n, widths)
    are_cut = [not is_shared for is_shared in are_shared(batch, shared)]
    if not is_packed:
        _check_cuts(batch, are_cut, n)
    leaves, structure = jax.tree.flatten(batch)
    return cut_leaves(leaves, are_cut, structure, n)


def cut_leaves(
    leaves: Sequence[Any],
    are_cut: Sequence[bool],
    structure: Any,
    n: int,
) -> tuple[Tree, ...]:
    """Each replica's part of a batch that can be cut.

    Args:
      leaves: The batch's arrays.
      are_cut: Which of them are cut; the others go to all replicas.
      structure: The batch's structure.
      n: Number of replicas.

    Returns:
      n pytrees.
    """
    if n == 1:
        return (jax.tree.unflatten(structure, leaves),)
    each = []
    for i in range(n):
        each.append(
            [
                _part(leaf, i, n) if is_cut else leaf
                for leaf, is_cut in zip(leaves, are_cut, strict=True)
            ]
        )
    return tuple(jax.tree.unflatten(structure, part) for part in each)


def has_rows(batch: Tree) -> bool:
    """Whether a batch can be cut into rows: not if some part says so, as in batches of `amp.vmap`, in which rows refer to each other.

    Args:
      batch: A batch, or a part of one.
    """
    is_whole = lambda part: not getattr(part, "has_rows", True)
    return not any(map(is_whole, jax.tree.leaves(batch, is_leaf=is_whole)))


def are_shared(batch: Tree, shared: Sequence[str]) -> list[bool]:
    """Tells for each leaf of a batch whether all replicas get the whole leaf.

    Args:
      batch: A batch, or a part of one.
      shared: Patterns of the leaves that they get whole (see `leaf_paths.matches`).

    Raises:
      SettingsError: If no leaf is named so.
    """
    if not shared:
        return [False] * len(jax.tree.leaves(batch))
    paths = list(by_path(batch))
    for pattern in shared:
        if not any(matches(pattern, path) for path in paths):
            where = f"setting `shared`, `{pattern}`"
            raise SettingsError(
                where,
                f"a leaf of the batch, one of {paths}",
                "no match",
                "Write one of these paths, or leave it out.",
            )
    return [any(matches(pattern, path) for pattern in shared) for path in paths]


def joined_batch(
    batch: Tree | Parts,
    shared: Sequence[str] = (),
) -> Tree:
    """Joins one step's parts to the single-device program's batch.

    Args:
      batch: A pytree of arrays, or `Parts`.
      shared: Patterns of leaves that all replicas get whole.

    Returns:
      The pytree. Of parts, arrays are put together, and scalars, single random keys and shared leaves are the first part's.

    Raises:
      DataError: If there is no leaf, one is nothing that JAX takes, or parts differ in a scalar or in a single random key.
    """
    if not isinstance(batch, Parts):
        return _arrays(batch)
    parts = arrange_bags(tuple(_arrays(part) for part in batch.batches), 1, BagWidths())
    flat = [by_path(part) for part in parts]
    leaves = []
    for (path, first), is_shared in zip(
        flat[0].items(),
        are_shared(
            parts[0],
            shared,
        ),
        strict=True,
    ):
        each = [part[path] for part in flat]
        if np.ndim(first) and not is_shared:
            leaves.append(
                jnp.concatenate(each)
                if is_key(first)
                else np.concatenate([np.asarray(leaf) for leaf in each])
            )
            continue
        data = [np.asarray(data_of(leaf)) for leaf in each]
        if any((own != data[0]).any() for own in data):
            fix = "Give each replica the same one, or one for each example."
            raise DataError(f"batch, leaf `{path}`", "the same value in all parts", "others", fix)
        leaves.append(first)
    return jax.tree.unflatten(
        jax.tree.structure(parts[0]),
        leaves,
    )


def _arrays(batch: Tree) -> Tree:
    """A batch with arrays in place of Python's numbers, and of tensors of other libraries.

    Raises:
      DataError: If there is no leaf, or one is nothing that JAX takes, or does not hold as it is.
    """
    leaves, structure = jax.tree.flatten(batch)
    if not leaves:
        raise DataError(
            "batch",
            "a pytree of arrays",
            f"{batch!r}, without any",
            "Pass what the loss function takes.",
        )
    arrays = []
    for path, leaf in by_path(batch, "batch, leaf").items():
        where = f"batch, leaf `{path}`"
        array = host_array(leaf, where)
        if not is_key(array) and array.dtype.kind in "OUSMm":
            fix = "Leave out what JAX can't trace, or encode it as numbers."
            raise DataError(where, "numbers", f"{array.dtype}", fix)
        require_32_bits(array, where)
        arrays.append(array)
    return jax.tree.unflatten(structure, arrays)


def _part(leaf: Any, index: int, n: int) -> Any:
    if not np.ndim(leaf):
        return leaf
    each = leaf.shape[0] // n
    return leaf[index * each : (index + 1) * each]


def _check_cuts(
    batch: Tree,
    are_cut: Sequence[bool],
    n: int,
) -> None:
    """Checks that the leaves that are cut have one leading size, which n divides."""
    cut = {}
    for (path, leaf), is_own in zip(by_path(batch).items(), are_cut, strict=True):
        if is_own:
            cut[path] = leaf
    sizes = {}
    for path, leaf in cut.items():
        if np.ndim(leaf) and not is_key(leaf):
            sizes[path] = leaf.shape[0]
    _equal_sizes("batch", sizes)
    for path, leaf in cut.items():
        _check_leaf(path, leaf, n)


def _check_leaf(path: str, leaf: Any, n: int) -> None:
    if np.ndim(leaf) and (leaf.shape[0] % n or not leaf.shape[0]):
        raise SettingsError(
            f"batch, leaf `{path}`",
            f"a leading size above 0 that {n} replicas divide",
            f"{leaf.shape[0]}",
            "Drop or add examples, or use fewer replicas.",
        )


def _check_parts(
    parts: Parts,
    n: int,
    shared: Sequence[str],
) -> tuple[Tree, ...]:
    if len(parts) != n:
        raise SettingsError(
            "batch",
            f"{n} parts, one for each replica",
            f"{len(parts)}",
            "Shard the data with the runner's resources.",
        )
    leaves = [by_path(abstract(part)) for part in parts.batches]
    kinds = []
    for part in leaves:
        kinds.append({path: (leaf.shape, leaf.dtype) for path, leaf in part.items()})
    for number, part in enumerate(kinds):
        if part != kinds[0]:
            first, other = (
                {path: shape_text(leaf) for path, leaf in leaves[i].items()} for i in (0, number)
            )
            raise SettingsError(
                f"batch, part {number}",
                f"the shapes and dtypes of part 0, {first}",
                f"{other}",
                "Give replicas batches of one kind.",
            )
    _check_shared(parts.batches, shared)
    return parts.batches


def _check_shared(batches: Sequence[Tree], shared: Sequence[str]) -> None:
    first, *others = (by_path(batch) for batch in batches)
    for path, is_shared in zip(first, are_shared(batches[0], shared), strict=True):
        for replica, leaves in enumerate(others, start=1):
            if is_shared and not _is_same(leaves[path], first[path]):
                got = f"another one in part {replica}"
                fix = (
                    "Give all replicas the same, or don't name it in `ParallaxConfig(shared=...)`."
                )
                raise DataError(
                    f"batch, leaf `{path}`", "the leaf of part 0, since it is shared", got, fix
                )


def _is_same(first: Any, second: Any) -> bool:
    return first is second or np.array_equal(data_of(first), data_of(second))


def _is_arrays(data: Any) -> bool:
    if isinstance(data, Iterator):  # JAX refuses to look for leaves in one
        return False
    leaves = jax.tree.leaves(data)
    in_memory = all(
        hasattr(leaf, "__dlpack__") for leaf in leaves
    )  # of any library, but no data set on a disk
    return bool(leaves) and in_memory and not isinstance(data, list)


def _is_sliceable(data: Any) -> bool:
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return True
    # grain's MapDataset and data sets like it are no Sequences, but have a length and take slices.
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and hasattr(data, "slice")


def _rows(
    data: Tree,
    index: int,
    n: int,
    shared: Sequence[str],
) -> Tree:
    if has_bags(data):
        fix = "Pass the batch to `runner.run` as it is, which cuts it between bags."
        raise SettingsError("shard", "arrays with a row for each example", "a `Bag`", fix)
    are_whole = are_shared(data, shared)
    leaves, structure = jax.tree.flatten(data)
    paths = zip(by_path(data).items(), are_whole, strict=True)
    sizes = {}
    for (path, leaf), is_whole in paths:
        if not is_whole:
            sizes[path] = (leaf.shape or (0,))[0]
    _equal_sizes("shard", sizes)
    size = next(iter(sizes.values()), n)
    if size < n:
        raise SettingsError(
            "shard", f"at least {n} rows, one for each replica", f"{size}", "Use fewer replicas."
        )
    rows = slice(index, size - size % n, n)
    parts = []
    for leaf, is_whole in zip(leaves, are_whole, strict=True):
        parts.append(leaf if is_whole else leaf[rows])
    return jax.tree.unflatten(structure, parts)


def _equal_sizes(where: str, sizes: dict[str, int]) -> None:
    first = next(iter(sizes), "")
    fix = "Give all arrays one row for each example" + (
        "; what all replicas need whole is named in `ParallaxConfig(shared=...)`."
        if where == "batch"
        else "."
    )
    for path, size in sizes.items():
        if size != sizes[first]:
            raise SettingsError(
                f"{where}, leaf `{path}`",
                f"the leading size of `{first}`, {sizes[first]}",
                f"{size}",
                fix,
            )
