"""The dynamic networks: ours against the same network in plain JAX, in minibatches."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.console import Console

from experiments.bench.common import Entry, Result, compare
from experiments.bench.ours import EXPERIMENTS

HERE = "experiments.bench"
THREADS = {"NPROC": None, "JAX_NUM_CPU_DEVICES": "1"}


@dataclass(frozen=True, kw_only=True)
class NetworkBench:
    """Training and inference throughput, medians, programs in turn. Fields of an experiment's own are options of all its programs.

    Args:
      passes: Measured passes of each program.
      n_train: Training instances in a pass; 0 takes all.
      max_active_keys: Ours: instances in flight; one program for each number.
      batch: The peer's: instances in a minibatch; one program for each number.
      to_target: Train each program up to this validation accuracy (QM9: error) first, in the experiment's epochs at most, and measure the time.
      synthetic: Generated data.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each program.
    """

    experiment: ClassVar[str]
    peer: ClassVar[tuple[str, str]]
    metric: ClassVar[str] = "accuracy"
    passes: int = 5
    n_train: int = 1000
    max_active_keys: tuple[int, ...] = (16, 64)
    batch: tuple[int, ...] = (32,)
    to_target: float | None = None
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None

    def entries(self) -> list[Entry]:
        """Ours, then peers."""
        own = {f.name for f in fields(self)} - {f.name for f in fields(NetworkBench)}
        data: dict[str, Any] = {
            **{name: getattr(self, name) for name in sorted(own)},
            "n_train": self.n_train,
            "synthetic": self.synthetic,
            "data_dir": str(self.data_dir) if self.data_dir else None,
        }
        name, make = self.peer
        of = {"experiment": self.experiment}
        ours = [
            Entry("ampjax", f"max_active_keys {n}", f"{HERE}.ours:Ours", {**data, **of, "max_active_keys": n}, THREADS)
            for n in self.max_active_keys
        ]
        peers = [Entry(name, f"batch {n}", f"{HERE}.peers.{make}", {**data, "batch": n}, THREADS) for n in self.batch]
        return [*ours, *peers]


@dataclass(frozen=True, kw_only=True)
class SentimentBench(NetworkBench):
    """Sentiment: ours against plain JAX level by level. Training and inference throughput, medians, programs in turn.

    Args:
      cell: `fold` or `tai`.
      embedding: Features of a word vector.
      hidden: Features of a node's state; by default the cell's.
    """

    experiment = "sentiment"
    peer = ("jax levels", "sentiment_jax:Model")
    batch: tuple[int, ...] = (25, 64)
    cell: Literal["fold", "tai"] = "tai"
    embedding: int = 300
    hidden: int | None = None


@dataclass(frozen=True, kw_only=True)
class WikinerBench(NetworkBench):
    """WikiNER: ours against plain JAX, padded. Training and inference throughput, medians, programs in turn.

    Args:
      n_valid: Validation sentences.
    """

    experiment = "wikiner"
    peer = ("jax padded", "wikiner_jax:Model")
    max_active_keys: tuple[int, ...] = (32,)
    batch: tuple[int, ...] = (4, 32)
    n_valid: int = 500


@dataclass(frozen=True, kw_only=True)
class Qm9Bench(NetworkBench):
    """QM9: ours against plain JAX, graphs side by side. Training and inference throughput, medians, programs in turn.

    Args:
      n_valid: Validation molecules.
      hidden: Features of an atom's state.
    """

    experiment = "qm9"
    peer = ("jax segments", "ggnn_jax:qm9")
    metric = "error"
    max_active_keys: tuple[int, ...] = (32,)
    batch: tuple[int, ...] = (20,)
    n_valid: int = 1500
    hidden: int = 100


@dataclass(frozen=True, kw_only=True)
class Babi15Bench(NetworkBench):
    """Task 15 of bAbI: ours against plain JAX, graphs side by side. Training and inference throughput, medians, programs in turn.

    Args:
      nodes: 54: generated graphs. 8: graphs from files.
      n_valid: Validation questions.
    """

    experiment = "babi15"
    peer = ("jax segments", "ggnn_jax:babi15")
    n_train: int = 100
    max_active_keys: tuple[int, ...] = (16,)
    batch: tuple[int, ...] = (10,)
    nodes: Literal[54, 8] = 54
    n_valid: int = 1000


def main(options: NetworkBench, console: Console | None = None) -> list[Result]:
    """Prints the comparison.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    name, metric = options.experiment, options.metric
    _, kind = EXPERIMENTS[name]
    goal = options.to_target
    return compare(name, options.entries(), options.passes, goal, kind.epochs, options.json, console, metric)
