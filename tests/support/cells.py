"""What a case of `unit/experiments/models/test_cells.py` is: a layer or cell, its formula in NumPy, and inputs of a given size.

Each case runs at `PAIRS`, where each hidden size and each number of rows occurs, the largest of both together; linear layers, the LSTM and the gated
unit run at all 16 pairs (`CROSS`). What is composed of cells that are cases themselves, and compiles for a second, runs at two sizes (`COMPOSED`).
Convolutions (`IMAGES`: channels and images) are smaller, since NumPy computes them slowly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import ampjax.graphs as ag

CROSS = tuple(
    product(
        (5, 64, 150, 300),
        (1, 7, 64, 512),
    )
)
PAIRS = (
    (5, 7),
    (64, 1),
    (150, 64),
    (300, 512),
)
COMPOSED = ((64, 64), (300, 7))
IMAGES = ((5, 7), (16, 3))


@dataclass(frozen=True)
class Problem:
    """A function, its formula, and the arguments of both: pytrees of float32 arrays, by all of which they are differentiated."""

    tested: Callable[..., Any]
    formula: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """What is covered, by names below `ampjax` and `experiments.models`, and a problem of `hidden` features and `rows` rows."""

    covers: tuple[str, ...]
    make: Callable[[int, int, "Inputs"], Problem]
    sizes: Sequence[tuple[int, int]] = PAIRS

    def __str__(self) -> str:
        return self.make.__name__


class Inputs:
    """Random inputs of a seed."""

    def __init__(self, *seed: int):
        self.rng = np.random.default_rng(seed)
        self.integers = self.rng.integers

    def normal(
        self,
        *shape: int,
        scale: float = 1.0,
    ) -> np.ndarray:
        return (scale * self.rng.normal(size=shape)).astype(np.float32)

    def like(self, tree: Any) -> Any:
        """Values for parameters: matrices that keep the size of what they multiply, vectors within about 1."""
        return jax.tree.map(
            lambda leaf: self.normal(
                *leaf.shape,
                scale=0.5 if leaf.ndim < 2 else float(np.prod(leaf.shape[:-1])) ** -0.5,
            ),
            tree,
        )

    def params(self, layer: Any) -> Any:
        """Values for the parameters that `init` gives, where `layer` is a layer or an `init`."""
        return self.like(
            jax.eval_shape(
                getattr(layer, "init", layer),
                jax.random.key(0),
            )
        )

    def module(
        self,
        make: Callable[[nnx.Rngs], nnx.Module],
    ) -> tuple[Callable[..., Any], Any, Any]:
        """A flax module: from its variables (parameters, then averages) to itself; parameters; averages."""
        built = nnx.eval_shape(lambda: make(nnx.Rngs(jax.random.key(0))))
        graph, params, averages = nnx.split(built, nnx.Param, nnx.BatchStat)
        shapes = nnx.to_pure_dict(averages)
        positive = jax.tree.map(
            lambda leaf: np.abs(self.normal(*leaf.shape)) + np.float32(0.5),
            shapes,
        )

        def merged(params: Any, averages: Any = positive) -> Any:
            return nnx.merge(
                graph,
                nnx.State(params),
                nnx.State(jax.tree.map(jnp.asarray, averages)),
            )

        return merged, self.like(nnx.to_pure_dict(params)), positive


def mapped(body: Callable[..., Any]) -> Callable[..., Any]:
    """A body on the rows of a batch, as the engine maps it: parameters are shared."""
    return lambda params, *rows: jax.vmap(lambda *row: body(params, *row))(*rows)


def body(
    graph: ag.Graph,
    node: str,
) -> Callable[..., Any]:
    """What a node of a model computes: `apply(params, *inputs)`, or a reduction."""
    op = graph.nodes[node].op
    return op.function if hasattr(op, "function") else op.body.apply


class Cases(list[Case]):
    """Cases in a row, each made by a decorated function."""

    def add(
        self,
        *covers: str,
        sizes: Sequence[tuple[int, int]] = PAIRS,
    ) -> Callable[[Any], Any]:
        """Decorates the function that makes a case's problem."""

        def added(make: Callable[[int, int, Inputs], Problem]) -> Callable[..., Problem]:
            self.append(Case(covers, make, sizes))
            return make

        return added
