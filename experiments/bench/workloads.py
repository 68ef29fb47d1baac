"""The workloads: which programs each is compared with, and at which settings ours runs best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console

from experiments.bench.dispatches import dispatch_statistics, dispatch_table
from experiments.bench.program import Entry
from experiments.bench.workload import HERE, SPREAD, Workload


@dataclass(frozen=True, kw_only=True)
class SentimentBench(Workload):
    """Sentiment: trees level by level, one by one, and the floor of their flops. Throughput, medians, programs in turn.

    Args:
      cell: `fold` or `tai`.
      embedding: Features of a word vector.
      hidden: Features of a node's state; by default the cell's.
    """

    experiment = "sentiment"
    max_active_keys: tuple[int, ...] = (64, 16, 128)
    batch: tuple[int, ...] = (25, 64, 100)
    cell: Literal["fold", "tai"] = "tai"
    embedding: int = 300
    hidden: int | None = None

    def best(self) -> dict[str, Any]:
        """Trees enter and leave together; branches update as often as minibatches of 64 trees would, with about 18 branches each."""
        return {"policy": "wavefront", "min_admission": 64, "min_update_interval": 1150}

    def spread(self) -> bool:
        """They are, from about 64 trees in flight on."""
        return True

    def peers(self) -> Iterable[Entry]:
        """Levels in JAX and PyTorch, PyTorch tree by tree, DyNet, and the floor."""
        for n in self.batch:
            yield self.jax("jax levels", f"batch {n}", "sentiment_jax:Model", batch=n)
        for n in self.batch:
            yield self.torch("torch levels", f"batch {n}", "sentiment_torch:levels", batch=n)
        yield self.torch("torch compile", f"cells, batch {n}", "sentiment_torch:compiled", batch=n)
        for n in (1, 25):
            yield self.torch(
                "torch eager", f"one by one, batch {n}", "sentiment_torch:eager", slow=True, batch=n
            )
        dynet = f"{HERE}.peers.sentiment_dynet:Model", {**self.data(), "batch": self.batch[0]}
        yield Entry("dynet", f"autobatching, batch {self.batch[0]}", *dynet, needs="dynet")
        product = f"{HERE}.floor:Floor", self.data(), SPREAD
        yield Entry("flop floor", "branch product, 256 rows", *product, to_target=False)


@dataclass(frozen=True, kw_only=True)
class ListReductionBench(Workload):
    """List reduction in buckets of 100, or in single sequences. Throughput, medians, programs in turn.

    Args:
      single: Single sequences in place of buckets.
      n_valid: Validation sequences.
    """

    experiment = "list-reduction"
    n_train: int = 20_000
    max_active_keys: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()
    single: bool = False
    n_valid: int = 10_000

    def __post_init__(self) -> None:
        if not self.max_active_keys:
            object.__setattr__(
                self,
                "max_active_keys",
                (128,) if self.single else (16, 4, 1),
            )
        if not self.batch:
            object.__setattr__(
                self,
                "batch",
                (128,) if self.single else (100,),
            )

    def spread(self) -> bool:
        """Those of many buckets are; to a target dispatches are small, so that gradients are not stale."""
        return not self.single and self.to_target is None

    def best(self) -> dict[str, Any]:
        """Buckets: dispatches as large as they come, while their rows stay in the cache; to a target, as the experiment. Single sequences: of one length, in step."""
        if self.single:
            in_step = {
                "min_admission": 128,
                "group_by_size": 128,
                "max_dispatch_size": 1024,
                "policy": "wavefront",
            }
            return {"single": True, **in_step}
        if self.to_target is not None:
            return {}
        return {"policy": "largest", "max_dispatch_size": 8}

    def data(
        self,
        n_train: int | None = None,
    ) -> dict[str, Any]:
        """Numbers of sequences: all data are generated."""
        return {"n_train": self.n_train if n_train is None else n_train, "n_valid": self.n_valid}

    def peers(self) -> Iterable[Entry]:
        """Minibatches padded and by length, in JAX and PyTorch, and PyTorch one by one."""
        for n in self.batch:
            yield self.jax("jax jit padded", f"batch {n}", "list_reduction_jax:padded", batch=n)
            yield self.jax(
                "jax jit bucketed",
                f"batch {n}, by length",
                "list_reduction_jax:per_length",
                batch=n,
            )
            yield self.torch("torch padded", f"batch {n}", "list_reduction_torch:padded", batch=n)
            yield self.torch(
                "torch compile", f"batch {n}, padded", "list_reduction_torch:compiled", batch=n
            )
            yield self.torch(
                "torch eager",
                f"one by one, batch {n}",
                "list_reduction_torch:eager",
                slow=True,
                batch=n,
            )

    def two_workers(self) -> int | None:
        """Of buckets, for throughput: as many for each worker as one alone has."""
        if self.single or self.to_target is not None:
            return None
        return 2 * self.max_active_keys[0]


@dataclass(frozen=True, kw_only=True)
class WikinerBench(Workload):
    """WikiNER: minibatches padded, by length, packed, and sentence by sentence. Throughput, medians, programs in turn.

    Args:
      n_valid: Validation sentences.
      learning_rate: Adam's, of all programs: what batches of 32 learn fastest with.
    """

    experiment = "wikiner"
    max_active_keys: tuple[int, ...] = (64, 256)
    batch: tuple[int, ...] = (4, 32)
    n_valid: int = 500
    learning_rate: float = 3e-3

    def best(self) -> dict[str, Any]:
        """Sentences of about the same length enter together, and so go through the cells in step to the end; an update for 32, as in the larger batches."""
        return {"min_admission": 64, "group_by_size": 64, "max_dispatch_size": 2048, "batch": 32}

    def peers(self) -> Iterable[Entry]:
        """Padded and bucketed in JAX; packed, and sentence by sentence, in PyTorch."""
        for n in self.batch:
            yield self.jax(
                "jax jit padded", f"batch {n}", "wikiner_jax:Model", batch=n, bucketed=False
            )
            yield self.jax(
                "jax jit bucketed", f"batch {n}, by length", "wikiner_jax:Model", batch=n
            )
            yield self.torch("torch packed", f"batch {n}", "wikiner_torch:packed", batch=n)
        yield self.torch("torch eager", "one by one", "wikiner_torch:eager", slow=True)


@dataclass(frozen=True, kw_only=True)
class Qm9Bench(Workload):
    """QM9: molecules side by side, in padded batches, and as dense matrices. Throughput, medians, programs in turn.

    Args:
      n_valid: Validation molecules.
      hidden: Features of an atom's state.
    """

    experiment = "qm9"
    metric = "error"
    max_active_keys: tuple[int, ...] = (128, 64)
    batch: tuple[int, ...] = (20,)
    n_valid: int = 1500
    hidden: int = 100

    def best(self) -> dict[str, Any]:
        """Molecules enter many at once and are dispatched by the hundred, so XLA can use all cores; about as many updates as a batch of 64 makes."""
        return {"min_admission": 64, "max_dispatch_size": 2048, "batch": 40}

    def spread(self) -> bool:
        """They are."""
        return True

    def two_workers(self) -> int | None:
        """Molecules of different waves fill each other's dispatches."""
        return 3 * self.max_active_keys[0]

    def peers(self) -> Iterable[Entry]:
        """Side by side, by atoms, padded as jraph does, and dense, in JAX; side by side, and one by one, in PyTorch."""
        for n in self.batch:
            yield self.jax("jax segments", f"batch {n}", "ggnn_jax:qm9", batch=n)
            yield self.jax(
                "jax jit bucketed", f"batch {n}, by atoms", "ggnn_jax:qm9_by_atoms", batch=n
            )
            yield self.torch("torch side by side", f"batch {n}", "ggnn_torch:qm9", batch=n)
        yield self.jax("jax jraph-style 64", "one shape", "ggnn_jax:qm9_one_shape", batch=64)
        yield self.torch("torch side by side", "batch 64", "ggnn_torch:qm9", batch=64)
        yield self.torch(
            "torch compile", "batch 64, one shape", "ggnn_torch:qm9_compiled", batch=64
        )
        yield self.torch(
            "torch eager", "one by one, batch 20", "ggnn_torch:qm9_eager", slow=True, batch=20
        )
        yield self.jax(
            "jax dense", "NH x NH, batch 20", "ggnn_dense:qm9", slow=True, batch=20, n_valid=100
        )


@dataclass(frozen=True, kw_only=True)
class Babi15Bench(Workload):
    """Task 15 of bAbI: graphs side by side. Throughput, medians, programs in turn.

    Args:
      nodes: 54: generated graphs. 8: graphs from files.
      n_valid: Validation questions.
    """

    experiment = "babi15"
    n_train: int = 100
    max_active_keys: tuple[int, ...] = (16,)
    batch: tuple[int, ...] = (10,)
    nodes: Literal[54, 8] = 54
    n_valid: int = 1000

    def peers(self) -> Iterable[Entry]:
        """Side by side, in JAX and PyTorch."""
        for n in self.batch:
            yield self.jax("jax segments", f"batch {n}", "ggnn_jax:babi15", batch=n)
            yield self.torch("torch side by side", f"batch {n}", "ggnn_torch:babi15", batch=n)


@dataclass(frozen=True, kw_only=True)
class MnistBench(Workload):
    """MNIST: the perceptron in one jit, and in PyTorch. Throughput, medians, programs in turn."""

    experiment = "mnist"
    n_train: int = 0
    max_active_keys: tuple[int, ...] = (4, 1)
    batch: tuple[int, ...] = (100,)

    def best(self) -> dict[str, Any]:
        """One worker, whose kernels XLA spreads over the cores."""
        return {"workers": 1}

    def spread(self) -> bool:
        """They are."""
        return True

    def two_workers(self) -> int | None:
        """As many for each worker as one alone has."""
        return 2 * self.max_active_keys[0]

    def peers(self) -> Iterable[Entry]:
        """One jit, and PyTorch eager and compiled."""
        for n in self.batch:
            yield self.jax("jax jit", f"batch {n}", "mnist_jax:Model", batch=n)
            yield self.torch("torch eager", f"batch {n}", "mnist_torch:eager", batch=n)
            yield self.torch("torch compile", f"batch {n}", "mnist_torch:compiled", batch=n)


@dataclass(frozen=True, kw_only=True)
class PermutationBench(Workload):
    """Operations in an order of each instance's own: beside the union of all paths, masked. Throughput, medians, programs in turn.

    Args:
      operations: Operations of an instance, each done once.
      hidden: Features of the state.
    """

    experiment = "permutation"
    n_train: int = 16_384
    max_active_keys: tuple[int, ...] = (8192, 2048, 512)
    batch: tuple[int, ...] = (100, 512)
    operations: int = 8
    hidden: int = 128

    def best(self) -> dict[str, Any]:
        """Instances enter many at once: dispatches are fuller."""
        return {"min_admission": 2048, "max_dispatch_size": 1024}

    def peers(self) -> Iterable[Entry]:
        """All operations at each step, of which a mask keeps one; in JAX and PyTorch."""
        for n in self.batch:
            yield self.jax(
                "jax jit padded", f"batch {n}, union of paths", "permutation_jax:Model", batch=n
            )
            yield self.torch(
                "torch padded", f"batch {n}, union of paths", "permutation_torch:by_mask", batch=n
            )
            yield self.torch(
                "torch by operation",
                f"batch {n}, rows sorted at each step",
                "permutation_torch:by_operation",
                batch=n,
            )

    def after(self, console: Console) -> None:
        """How large our dispatches are, beside what batching by depth finds with as many instances: one in so many is at an operation."""
        keys = self.max_active_keys[0]
        stats = dispatch_statistics(
            self.experiment,
            max_active_keys=keys,
            **{**self.data(), **self.best()},
        )
        by_depth = {}
        for name in stats.stages:
            if name.startswith("operation"):
                by_depth[name] = keys / self.operations
        console.print(dispatch_table(stats, by_depth))
