"""The settings of hybrid training: one frozen object, checked at construction.

Knows names and numbers only; nothing of devices, tables or steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampjax.errors import SettingsError
from ampjax.parallel.config.row_dtypes import RowDtypes, check_row_dtypes
from ampjax.sparse.table.table_or_dense import ALPHA_THRESHOLD, WHAT_ALPHA_DOES
from ampjax.sparse.table.table_sharing import TableSharing
from ampjax.utils.setting_checks import above_zero, at_least, one_interval, one_of

RUN_OPTIONS = ("hybrid", "ar", "ps")
REDUCTIONS = ("mean", "sum")
CHECKS = ("warn", "error", "off")


@dataclass(frozen=True)
class SampleTimes:
    """The timing of one number of partitions in the partition search (Parallax §4.2).

    Args:
      iterations: Steps for each number of partitions.
      discarded: The first steps of these, which don't count: compilation and warm-up.

    Raises:
      SettingsError: If no step is left, or a number is negative or no integer.
    """

    iterations: int = 100
    discarded: int = 50

    def __post_init__(self) -> None:
        at_least("iterations", self.iterations, 1)
        at_least("discarded", self.discarded, 0)
        if self.discarded >= self.iterations:
            raise SettingsError(
                "setting `discarded`",
                f"fewer than `iterations`, {self.iterations}",
                f"{self.discarded}",
                "Lower it, so that a step is left to be timed.",
            )


@dataclass(frozen=True)
class Checkpoints:
    """The times and places of a runner's checkpoints; `Runner.resume` continues from the newest after a crash.

    Args:
      folder: The folder in which a folder `step-N` is made for each checkpoint; a new one is complete before an old one is removed.
      every_steps: Steps between two checkpoints; by default 1000, unless `every_seconds` is given.
      every_seconds: The least number of seconds between two checkpoints. In asynchronous training (`sync=False`) a checkpoint waits for all
        gradients under way, which changes the staleness of those that follow.
      keep: How many of the newest are kept; None for all. Those that they need are kept, too.
      full_every: One in so many checkpoints has all rows of tables. The others have the rows that have changed since the one before
        (`Runner.save(base=...)`), and need it, and those before it up to a full one, to be restored. 1 writes all rows each time.

    Raises:
      SettingsError: If a number is too small, or both intervals are given.
    """

    folder: str | Path
    every_steps: int | None = None
    every_seconds: float | None = None
    keep: int | None = None
    full_every: int = 1

    def __post_init__(self) -> None:
        one_interval("every_steps", self.every_steps, self.every_seconds)
        if self.keep is not None:
            at_least("keep", self.keep, 1)
        at_least("full_every", self.full_every, 1)
        if self.every_steps is None and self.every_seconds is None:
            object.__setattr__(self, "every_steps", 1000)


@dataclass(frozen=True)
class ParallaxConfig:
    """The settings that make a single-device program data-parallel, in one object, each with a default.

    It has more than twelve fields: each is one choice of the user, and has a default.

    Args:
      run_option: `hybrid`: AllReduce for dense variables, servers for sparse ones. `ar`: AllReduce for dense variables,
        AllGatherv of rows for sparse ones. `ps`: servers for all.
      sync: Whether all replicas take each step together. If not, all variables are at servers, whatever their kind, and
        each replica's gradients are applied when they come.
      max_staleness: The most updates by other replicas between a replica's pull and its push, if `sync` is False.
      average_dense: `mean` or `sum` of the replicas' gradients of dense variables.
      average_sparse: The same for sparse variables, including those that are kept dense.
      local_aggregation: Whether the replicas of a machine pull and push together: a row that several of them touch travels once.
      boundary_among_servers: Whether numbers that depend on the aggregated gradients of several variables (such as a global norm) are computed
        in parts where the gradients are, so that scalars travel between servers in place of gradients (+OPAU).
      boundary_between_workers_and_servers: Whether casts and slices that the program applies to rows are done at the server
        where that makes fewer bytes travel (+OPSW).
      search_partitions: Whether the number of partitions is searched for in the first steps. A runner that continues from a
        checkpoint with as many machines takes the number that was found before.
      sample: How a number of partitions is timed.
      partitions: The number of partitions of sparse variables that no partitioner names; without a search, of all sparse variables.
        By default one for each machine. A group of tables gets the nearest number that it may have (see `Partitioner`).
      alpha_threshold: A sparse variable is kept dense if a worker touches this share of its rows in a step, or more. A touched row at a
        server costs about two and a half times as much as a row of a dense update, so at 0.4 both take as long (two CPU replicas, a
        table of 100,000 × 64: at 0.3 a table is faster by a half, at 0.5 the dense update by nearly as much). A variable that would not
        fit into the device's memory with its gradient is a table in any case. With a number above 1 every sparse variable is one.
      shared: Patterns (see `Partitioner`) of leaves of the batch that all replicas need whole, such as negatives, a queue or weights of classes.
        They have no axis of examples and are not cut; the loss is that of one device. In `Parts` each part has the same.
      keep_dense: Patterns (see `Partitioner`) of variables that are kept dense even if they could be sparse, for optimizers that are not
        row-wise.
      table_mode: `faithful`: rows that a step does not touch still follow the optimizer (momentum, Adam), so training equals
        the dense program; a step costs an update of all rows, which are made in turn. `lazy`: they stay as they are, and cost nothing.
      wire_dtype: The dtype in which rows and their gradients travel: `float32` or `bfloat16`.
      row_dtype: How tables keep float32 rows in eight bits, with a scale for each row: `int8`, `float8_e4m3fn` or `float8_e5m2`, for all tables or
        by pattern (see `Partitioner`; the first one that fits counts). Rows are read and updated as float32, and rounded at random, so that small
        updates count in the mean. `runner.params` and `runner.export` give float32. With optimizers that move rows without a gradient
        `table_mode="lazy"` is needed. None: rows stay as they are.
      folder: The folder for tables as memory-mapped files; None keeps them in memory.
      table_sharing: How runners in several processes of this machine share the tables in `folder`, each of which has a folder there. Each runner
        trains on its own batches and keeps its own dense variables; the first one writes the tables' rows, the others go on with those that are
        there. None: tables are this runner's.
      server_processes: Whether each server is a process of its own on this machine, and not a part of this process. The training is
        the same, bit for bit. The processes hold sparse variables' rows; dense variables of `ps` stay in this process. They end with
        `runner.close()`, or with the runner.
      check_finite: Whether a gradient that is not finite stops the step before anything is changed. If not, the optimizer gets all
        gradients as they are: `optax.apply_if_finite` skips such a step for dense variables and tables together, `optax.zero_nans` replaces
        numbers. A table still refuses new rows that are not finite.
      check_equivalence: What to do if a batch's joined loss differs from the replicas' losses by more than rounding, or if all replicas share
        a random key: `warn` (`EquivalenceWarning`, once), `error` (`EquivalenceError`, before anything changes), or `off`, which compares
        nothing. The first batch is compared. A later one is compared too, at the cost of two forward passes, unless the program proves
        that both losses are equal: it takes a mean over examples, and what it divides by is the same for all replicas. `runner.explain()`
        shows the first batch's losses, and what is proved.
      checkpoint: When and where to save; None leaves it to `runner.save`.
      seed: The seed of `runner.keys`, the replicas' random keys, and of the random numbers by which rows in eight bits are rounded.

    Raises:
      SettingsError: If a setting is out of its range, or two settings exclude each other.
    """

    run_option: str = "hybrid"
    sync: bool = True
    max_staleness: int = 4
    average_dense: str = "mean"
    average_sparse: str = "mean"
    local_aggregation: bool = True
    boundary_among_servers: bool = True
    boundary_between_workers_and_servers: bool = True
    search_partitions: bool = False
    sample: SampleTimes = SampleTimes()
    partitions: int | None = None
    alpha_threshold: float = ALPHA_THRESHOLD
    shared: tuple[str, ...] = ()
    keep_dense: tuple[str, ...] = ()
    table_mode: str = "faithful"
    wire_dtype: str = "float32"
    row_dtype: RowDtypes = None
    folder: str | Path | None = None
    table_sharing: TableSharing | None = None
    server_processes: bool = False
    check_finite: bool = True
    check_equivalence: str = "warn"
    checkpoint: Checkpoints | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("run_option", self.run_option, RUN_OPTIONS)
        one_of("average_dense", self.average_dense, REDUCTIONS)
        one_of("average_sparse", self.average_sparse, REDUCTIONS)
        one_of("table_mode", self.table_mode, ("faithful", "lazy"))
        one_of("check_equivalence", self.check_equivalence, CHECKS)
        one_of("wire_dtype", self.wire_dtype, ("float32", "bfloat16"))
        check_row_dtypes(self.row_dtype)
        for name in _SWITCHES:
            _instance(name, getattr(self, name), bool)
        at_least("max_staleness", self.max_staleness, 0)
        at_least("seed", self.seed, 0)
        if self.partitions is not None:
            at_least("partitions", self.partitions, 1)
        _instance("sample", self.sample, SampleTimes)
        _instance("checkpoint", self.checkpoint, Checkpoints | None)
        above_zero("alpha_threshold", self.alpha_threshold, WHAT_ALPHA_DOES)
        _patterns("keep_dense", self.keep_dense)
        _patterns("shared", self.shared)
        if not self.sync and self.run_option == "ar":
            raise SettingsError(
                "setting `sync`",
                "True where run_option is `ar`",
                "False",
                "An AllReduce waits for all replicas: choose `ps`, or train synchronously.",
            )

        _instance("table_sharing", self.table_sharing, TableSharing | None)
        if self.table_sharing is not None:
            self._check_sharing()
        if self.server_processes and self.run_option == "ar":
            raise SettingsError(
                "setting `server_processes`",
                "False where run_option is `ar`",
                "True",
                "`ar` has no servers: choose `hybrid`.",
            )

    def _check_sharing(self) -> None:
        """Checks the settings that go with shared tables."""
        where = "where `table_sharing` is given"
        if self.folder is None:
            fix = "Name one, in /dev/shm for rows in memory."
            raise SettingsError("setting `folder`", f"a folder {where}", "None", fix)
        if self.run_option == "ar":
            fix = "`ar` has a table for each machine: choose `hybrid`."
            raise SettingsError("setting `run_option`", f"`hybrid` or `ps` {where}", "`ar`", fix)
        for name in ("server_processes", "search_partitions"):
            if getattr(self, name):
                fix = "Shared tables have no servers, and keep their partitions: leave it out."
                raise SettingsError(f"setting `{name}`", f"False {where}", "True", fix)

    @property
    def dense_at_servers(self) -> bool:
        """Tells whether dense variables live at servers too."""
        return self.run_option == "ps" or not self.sync


_SWITCHES = (
    "sync",
    "local_aggregation",
    "boundary_among_servers",
    "boundary_between_workers_and_servers",
    "search_partitions",
    "server_processes",
    "check_finite",
)


def _instance(name: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        wanted = kind.__name__ if isinstance(kind, type) else f"{kind.__args__[0].__name__} or None"
        fix = f"Pass a {wanted}, or leave `{name}` out."
        raise SettingsError(f"setting `{name}`", f"a {wanted}", f"{value!r}", fix)


def _patterns(name: str, value: Any) -> None:
    if not isinstance(value, tuple | list) or not all(
        isinstance(pattern, str) and pattern for pattern in value
    ):
        raise SettingsError(
            f"setting `{name}`", "a tuple of patterns", f"{value!r}", 'Write `("embedding",)`.'
        )
