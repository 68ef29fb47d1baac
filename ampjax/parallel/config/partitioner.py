"""Partitioners: the sparse variables that share one number of partitions, and the numbers allowed (Parallax §4.1).

A partitioner only names leaves by path; the numbers come from the settings or from the partition search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampjax.errors import SettingsError
from ampjax.parallel.config.leaf_paths import matches
from ampjax.utils.setting_checks import at_least


@dataclass(frozen=True)
class Partitioner:
    """Leaves that are partitioned together, with the same number of partitions: the paper's `partitioner()` scope, by path.

    Args:
      pattern: Names in a leaf's path: `embedding` names `encoder/embedding/kernel`. `*` stands for any part of a name, a comma for or.
      min_partitions: Partitions at least; the search stays at or above it.
      max_partitions: Partitions at most; by default as many as the smallest of the variables has rows.

    Raises:
      SettingsError: If the pattern is empty, or a number is no integer or out of order.
    """

    pattern: str = "*"
    min_partitions: int = 1
    max_partitions: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern.strip():
            raise SettingsError(
                "partitioner, `pattern`",
                "names of a leaf's path",
                f"{self.pattern!r}",
                "Write for example `embedding`.",
            )
        at_least("min_partitions", self.min_partitions, 1)
        if self.max_partitions is not None:
            at_least("max_partitions", self.max_partitions, self.min_partitions)

    def names(self, path: str) -> bool:
        """Tells whether the pattern names a leaf.

        Args:
          path: The leaf's path, names with `/` between them.

        Returns:
          True if it does.
        """
        return any(matches(part.strip(), path) for part in self.pattern.split(","))


def as_partitioners(partitioners: Sequence[str | Partitioner]) -> list[Partitioner]:
    """Partitioners of a user's list, in which a pattern stands for a partitioner without bounds.

    Raises:
      SettingsError: If it is no list of these.
    """
    is_list = isinstance(partitioners, Sequence) and not isinstance(partitioners, str)
    if not is_list or not all(isinstance(each, str | Partitioner) for each in partitioners):
        raise SettingsError(
            "partitioners",
            "a list of patterns or partitioners",
            f"{partitioners!r}",
            'Write `["embedding"]`.',
        )
    result = []
    for each in partitioners:
        result.append(Partitioner(each) if isinstance(each, str) else each)
    return result


@dataclass(frozen=True)
class PartitionGroup:
    """Sparse variables that have one number of partitions.

    Args:
      label: The partitioner's pattern.
      paths: The variables.
      low: Partitions at least.
      high: Partitions at most: rows of the smallest variable, or the partitioner's limit.
    """

    label: str
    paths: tuple[str, ...]
    low: int
    high: int


def group_variables(
    partitioners: Sequence[Partitioner],
    n_rows: dict[str, int],
    known: Sequence[str],
) -> list[PartitionGroup]:
    """Groups the variables that are split alike. Variables that no partitioner names are one group, labelled `others`.

    Args:
      partitioners: In the user's order.
      n_rows: The sparse variables and their rows.
      known: All paths: a partitioner may name a variable that turned out to be dense, but not nothing at all.

    Returns:
      The groups that have a variable.

    Raises:
      SettingsError: If a partitioner names no leaf, two name the same variable, or a minimum is more than a variable's rows.
    """
    groups = []
    taken = {}
    for part in partitioners:
        if not any(part.names(path) for path in known):
            raise SettingsError(
                f"partitioner `{part.pattern}`",
                f"a name in one of {list(known)}",
                "none",
                "Write names of one of these paths, for example its last one.",
            )
        named = [path for path in n_rows if part.names(path)]
        for path in named:
            if path in taken:
                raise SettingsError(
                    f"variable `{path}`",
                    "one partitioner at most",
                    f"`{taken[path]}` and `{part.pattern}`",
                    "Make the patterns narrower.",
                )
            taken[path] = part.pattern
        groups += [_group(part, named, n_rows)] if named else []
    others = [path for path in n_rows if path not in taken]
    return groups + ([_group(Partitioner(), others, n_rows, "others")] if others else [])


def _group(
    part: Partitioner,
    paths: list[str],
    n_rows: dict[str, int],
    label: str | None = None,
) -> PartitionGroup:
    smallest = min(paths, key=lambda path: n_rows[path])
    if part.min_partitions > n_rows[smallest]:
        raise SettingsError(
            f"partitioner `{part.pattern}`, `min_partitions`",
            f"at most {n_rows[smallest]}, the rows of `{smallest}`",
            f"{part.min_partitions}",
            "Ask for fewer partitions.",
        )
    if part.max_partitions is None:
        high = n_rows[smallest]
    else:
        high = min(part.max_partitions, n_rows[smallest])
    return PartitionGroup(label or part.pattern, tuple(paths), part.min_partitions, high)
