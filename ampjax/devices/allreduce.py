"""Dense synchronisation of replicas: an AllReduce over their devices (AMPNet §5, "replicas").

Owns the one place where collectives are issued, and the process-wide window that bounds how many are outstanding. Knows
pytrees and devices; nothing of nodes, trainers or when to synchronise.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ampjax.devices.mapped import map_over_devices
from ampjax.errors import ParameterError, SettingsError

Tree = Any
Device = Any  # jax.Device, which type checkers do not take for a type

MAX_OUTSTANDING = 16
"""Collectives in flight in this process at most. On JAX 0.10.2's CPU devices more than 32 hang, and then end the process."""

_AXIS = "replica"
_issue = threading.Lock()
_window: collections.deque[jax.Array] = collections.deque()


def average(
    replicas: Sequence[Tree],
    devices: Sequence[Device] | None = None,
) -> list[Tree]:
    """Averages n replicas' parameters; each replica gets the mean on its device.

    Any number of replicas may share a device: their sum is formed there first. Half-precision leaves are averaged in
    float32. What is averaged are the differences from replica 0, so that the mean of equal replicas is these, to the bit. Leaves that are not floats (counts, ids, PRNG keys) have no mean: each replica keeps its own.
    The function returns as soon as the work is issued, unless `MAX_OUTSTANDING` collectives are waiting.

    Args:
      replicas: n >= 1 pytrees of one structure, with equal shapes and dtypes. Not donated: they stay valid.
      devices: One device for each replica; by default those on which the replicas' arrays lie (the first local
        device for replicas of NumPy arrays).

    Returns:
      n pytrees of the replicas' structure, shapes and dtypes, none sharing a float buffer with another or with the
      arguments, so that each may be donated.

    Raises:
      ParameterError: If there is no replica, structures, shapes or dtypes differ, or a replica lies on several devices.
      SettingsError: If there is not one device for each replica.
    """
    paths, leaves, treedef = _flatten(replicas)
    homes = _devices(paths, leaves, devices)
    dtypes = [jnp.result_type(leaf) for leaf in leaves[0]]
    floats = []
    for i, dtype in enumerate(dtypes):
        if jnp.issubdtype(dtype, jnp.inexact):
            floats.append(i)
    trees = []
    for replica, home in zip(leaves, homes, strict=True):
        trees.append(_put([replica[i] for i in floats], home))
    first = {}
    for home in dict.fromkeys(homes):
        first[home] = _put(trees[0], home)
    sums = all_reduce_sum(
        [_minus(each, first[home]) for each, home in zip(trees, homes, strict=True)],
        homes,
    )
    result = []
    for replica, total, home in zip(leaves, sums, homes, strict=True):
        if floats:
            mean = _plus_mean(first[home], total, len(leaves))
        else:
            mean = []
        others = _put(
            [leaf for i, leaf in enumerate(replica) if i not in floats],
            home,
        )
        merged = dict(zip(floats, mean, strict=True))
        rest = iter(others)
        result.append(
            jax.tree.unflatten(
                treedef,
                [merged[i] if i in merged else next(rest) for i in range(len(replica))],
            )
        )
    return result


def all_reduce_sum(
    trees: Sequence[Tree],
    devices: Sequence[Device],
) -> list[Tree]:
    """Sums n pytrees on n devices; each device gets the sum.

    Trees that share a device are summed there first; then one collective runs over the distinct devices. Collectives are issued one at a
    time, so that all devices see them in the same order.

    Args:
      trees: n >= 1 pytrees of equal structure, shapes and dtypes (`average` checks that), of arrays that add up.
      devices: The n devices; a device may stand there several times.

    Returns:
      n pytrees of sums, half precision widened to float32. Trees on one device get the same arrays.
    """
    if not jax.tree.leaves(trees[0]):
        return list(trees)
    places: dict[Device, list[Tree]] = {}
    for tree, device in zip(trees, devices, strict=True):
        places.setdefault(device, []).append(_put(tree, device))
    local = [_local_sum(*group) for group in places.values()]
    totals = dict(
        zip(
            places,
            _sum_over(tuple(places), local) if len(places) > 1 else local,
            strict=True,
        )
    )
    sums = {device: _drop_axis(total) for device, total in totals.items()}
    return [sums[device] for device in devices]


def _sum_over(
    devices: tuple[Device, ...],
    local: list[Tree],
) -> list[Tree]:
    """The psum of one tree per device, leaves `[1, *shape]`; the same on every device."""
    sharding = NamedSharding(
        Mesh(np.array(devices), (_AXIS,)),
        PartitionSpec(_AXIS),
    )

    def stack(*parts: jax.Array) -> jax.Array:
        return jax.make_array_from_single_device_arrays(
            (len(parts), *parts[0].shape[1:]),
            sharding,
            list(parts),
        )

    stacked = jax.tree.map(stack, *local)
    # All leaves come from one program, so the smallest tells when it has ended, and holds the least memory.
    total = issue_collective(
        _psum(devices),
        stacked,
        token=lambda sums: min(jax.tree.leaves(sums), key=lambda leaf: leaf.size),
    )
    shards = []
    for leaf in jax.tree.leaves(total):
        shards.append({s.device: s.data for s in leaf.addressable_shards})
    treedef = jax.tree.structure(total)
    result = []
    for device in devices:
        result.append(jax.tree.unflatten(treedef, [leaf[device] for leaf in shards]))
    return result


def issue_collective(
    program: Callable[..., Tree],
    *args: Any,
    token: Callable[[Tree], jax.Array],
) -> Tree:
    """Runs a program that holds collectives, when fewer than `MAX_OUTSTANDING` are waiting.

    Programs are issued one at a time, so that all devices see them in one order.

    Args:
      program: A mapped function, compiled or not.
      *args: Its arguments.
      token: From the program's results to an array that tells when it has ended. It is held until then: it must not be donated.

    Returns:
      The program's results, which may still be under way.
    """
    with _issue:
        while len(_window) >= MAX_OUTSTANDING:
            _window.popleft().block_until_ready()
        results = program(*args)
        _window.append(token(results))
    return results


@functools.lru_cache(maxsize=64)
def _psum(devices: tuple[Device, ...]) -> Callable[[Tree], Tree]:
    """Makes the mapped function of a tuple of devices, once: the function holds the compilations."""
    return map_over_devices(
        lambda tree: jax.lax.psum(tree, _AXIS),
        devices,
        _AXIS,
    )


@jax.jit
def _local_sum(*trees: Tree) -> Tree:
    """The sum of the trees of one device with a leading axis of 1, in float32 at least."""

    def add(
        first: jax.Array,
        *rest: jax.Array,
    ) -> jax.Array:
        is_float = jnp.issubdtype(first.dtype, jnp.inexact)
        return functools.reduce(
            jnp.add,
            map(_widen, (first, *rest)) if is_float else (first, *rest),
        )[None]

    return jax.tree.map(add, *trees)


@jax.jit
def _drop_axis(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf[0], tree)


@jax.jit
def _minus(
    leaves: list[jax.Array],
    first: list[jax.Array],
) -> list[jax.Array]:
    """Subtracts the leaves of replica 0 from a replica's leaves, in float32 at least."""
    result = []
    for leaf, base in zip(leaves, first, strict=True):
        # Equal numbers differ by 0, infinities included, whose difference would be NaN.
        result.append(
            jnp.where(
                leaf == base,
                0,
                _widen(leaf) - _widen(base),
            )
        )
    return result


@functools.partial(jax.jit, static_argnums=2)
def _plus_mean(
    first: list[jax.Array],
    total: list[jax.Array],
    n: int,
) -> list[jax.Array]:
    """Computes the mean of n replicas, from the leaves of replica 0 and the sum of all differences from these leaves; differences of 0 keep the leaves."""
    means = []
    for base, leaf in zip(first, total, strict=True):
        # Add the mean difference to replica 0's number, in float32 at least.
        means.append((_widen(base) + leaf / n).astype(base.dtype))
    result = []
    for base, leaf, mean in zip(first, total, means, strict=True):
        # A number without a difference keeps its bits.
        result.append(jnp.where(leaf == 0, base, mean))
    return result


def _widen(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _put(tree: Tree, device: Device) -> Tree:
    """Puts the tree on a device. NumPy arrays are copied first: JAX may alias an array whose owner goes on writing."""
    if all(
        isinstance(leaf, jax.Array) and leaf.committed and leaf.devices() == {device}
        for leaf in jax.tree.leaves(tree)
    ):
        return tree
    return jax.device_put(
        jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, jax.Array) else np.array(leaf),
            tree,
        ),
        device,
    )


# ---- checks ----------------------------------------------------------------------------------------------------------


def _flatten(replicas: Sequence[Tree]) -> tuple[list[str], list[list[Any]], Any]:
    """Paths, each replica's leaves and the structure.

    Raises:
      ParameterError: Names the first replica and path that do not fit replica 0.
    """
    if not replicas:
        raise ParameterError(
            "average", "at least one replica", "none", "Pass the replicas' parameters."
        )
    with_path, treedef = jax.tree_util.tree_flatten_with_path(replicas[0])
    paths = [jax.tree_util.keystr(path) for path, _ in with_path]
    types = [_type(leaf) for _, leaf in with_path]
    leaves = [[leaf for _, leaf in with_path]]
    for number, replica in enumerate(replicas[1:], start=1):
        flat, structure = jax.tree.flatten(replica)
        if structure != treedef or [_type(leaf) for leaf in flat] != types:
            raise _mismatch(number, replicas[0], replica)
        leaves.append(flat)
    return paths, leaves, treedef


def _mismatch(number: int, first: Tree, replica: Tree) -> ParameterError:
    wanted, actual = (_describe_leaves(tree) for tree in (first, replica))
    for path in [*wanted, *actual]:
        if wanted.get(path) != actual.get(path):
            expected = wanted.get(path, "no such leaf")
            got = actual.get(path, "no such leaf")
            return ParameterError(
                f"replica {number}, parameter `{path}`",
                f"{expected}, as in replica 0",
                got,
                "Average replicas of one node.",
            )
    structures = (str(jax.tree.structure(tree)) for tree in (first, replica))
    return ParameterError(
        f"replica {number}",
        f"the structure {next(structures)}, as in replica 0",
        next(structures),
        "Average replicas of one node.",
    )


def _describe_leaves(tree: Tree) -> dict[str, str]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    result = {}
    for path, leaf in leaves:
        result[jax.tree_util.keystr(path)] = "shape {} {}".format(*_type(leaf))
    return result


def _type(leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    if hasattr(leaf, "dtype"):
        return (leaf.shape, leaf.dtype)
    return (np.shape(leaf), jnp.result_type(leaf))


def _devices(
    paths: list[str],
    leaves: list[list[Any]],
    devices: Sequence[Device] | None,
) -> list[Device]:
    if devices is None:
        return [_home(number, paths, replica) for number, replica in enumerate(leaves)]
    if len(devices) != len(leaves):
        raise SettingsError(
            "average, devices",
            f"{len(leaves)} devices, one for each replica",
            f"{len(devices)}",
            "Name a device as often as it holds a replica.",
        )
    return list(devices)


def _home(
    number: int,
    paths: list[str],
    leaves: list[Any],
) -> Device:
    """Finds the one device of a replica's arrays; uncommitted arrays follow the committed ones, as in JAX."""
    arrays = []
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, jax.Array):
            arrays.append((path, leaf))
    arrays = [(path, leaf) for path, leaf in arrays if leaf.committed] or arrays[:1]
    places = {}
    for path, leaf in reversed(arrays):
        for device in leaf.devices():
            places[device] = path
    if len(places) > 1:
        where = ", ".join(f"`{path}` on {device}" for device, path in places.items())
        raise ParameterError(
            f"replica {number}",
            "all its arrays on one device",
            where,
            "Put it on one device, or pass `devices=`.",
        )
    return next(iter(places), jax.local_devices()[0])
