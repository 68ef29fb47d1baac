"""Places variables and partitions on servers, evenly by size (Parallax §4.1). Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ampjax.sparse.rows.partition_layout import PartitionLayout, place_evenly


def place_variables(
    sizes: Mapping[str, tuple[int, int]],
    partitions: Mapping[str, int],
    n_servers: int,
    load: Sequence[int] = (),
) -> dict[str, tuple[int, ...]]:
    """For each variable the servers of its partitions.

    Args:
      sizes: By variable, its rows (1 for one that is never split) and the bytes of one.
      partitions: The number of partitions of those that are split.
      n_servers: At least 1.
      load: Bytes that each server holds of what stays where it is; none by default.

    Returns:
      By variable, the server of each of its partitions.

    >>> place_variables({"table": (10, 4), "w": (1, 24)}, {"table": 2}, 2)
    {'table': (1, 1), 'w': (0,)}
    """
    parts = []
    for path, (n_rows, nbytes) in sizes.items():
        for number in range(partitions.get(path, 1)):
            parts.append(
                (
                    path,
                    PartitionLayout(n_rows, partitions.get(path, 1)).size(number) * nbytes,
                )
            )
    servers = place_evenly([size for _, size in parts], n_servers, load)
    result: dict[str, tuple[int, ...]] = {path: () for path in sizes}
    for (path, _), server in zip(parts, servers, strict=True):
        result[path] += (server,)
    return result


def in_turn(
    servers: Sequence[int],
    n_partitions: int,
) -> tuple[int, ...]:
    """For each partition of one table its server, in turn.

    Args:
      servers: The servers' numbers, at least one.
      n_partitions: The number of partitions.

    >>> in_turn((2, 5), 3)
    (2, 5, 2)
    """
    return tuple(servers[partition % len(servers)] for partition in range(n_partitions))
