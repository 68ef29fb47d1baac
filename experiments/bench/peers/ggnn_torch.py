"""The gated graph networks in PyTorch: graphs side by side, padded to one shape and compiled, and graph by graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from ampjax.train.initial_params import initial_params
from experiments.bench.ours import set_up
from experiments.bench.peers.ggnn_batches import Batch, counts, examples, joined, one_shape
from experiments.bench.peers.torch_program import Parts, Tensor, Torch, cosine, linear, tensors
from experiments.data.graphs import GraphInstances


def states(params: Any, batch: Batch, steps: int) -> Tensor:
    """The nodes' states `[n, H]` after all steps; padding's receivers are one row beyond, which is cut off."""
    x = batch["x"]
    senders = batch["senders"]
    receivers = batch["receivers"]
    hidden = params["update"]["candidate"]["b"].numel()
    h = F.pad(
        x,
        (0, hidden - x.shape[1]),
    )
    for _ in range(steps):
        sent = []
        for kind, rows in enumerate(senders):
            sent.append(linear(params[f"edge{kind}"], h[rows]))
        arrived = torch.zeros(len(x) + 1, hidden).index_add(0, receivers, torch.cat(sent))[:-1]
        h = gated(params["update"], arrived, h)
    return h


def gated(params: Any, a: Tensor, h: Tensor) -> Tensor:
    """The gated unit (`experiments.models.ggnn.GatedUnit`)."""
    z, r = torch.sigmoid(linear(params["gates"], torch.cat([a, h], 1))).chunk(
        2,
        1,
    )
    return (1 - z) * h + z * torch.tanh(linear(params["candidate"], torch.cat([a, r * h], 1)))


def predictions(params: Any, batch: Batch, steps: int) -> Tensor:
    """A number for each graph `[b]`; padding's nodes belong to one graph beyond."""
    h = states(params, batch, steps)
    own = params["readout"]
    i, j = torch.relu(linear(own["hidden"], torch.cat([h, batch["x"]], 1))).chunk(
        2,
        1,
    )
    rows = torch.sigmoid(linear(own["gate"], i)) * linear(own["value"], j)
    n = len(batch["target"])
    return torch.zeros(n + 1).index_add(0, batch["graph"], rows[:, 0])[:n]


def scores(params: Any, batch: Batch, steps: int) -> Tensor:
    """A score for each node `[n]` (`experiments.models.ggnn.Score`)."""
    own = params["score"]
    rows = torch.cat(
        [states(params, batch, steps), batch["x"]],
        1,
    )
    return (
        linear(
            own["out"],
            torch.tanh(linear(own["hidden"], rows)),
        )
        * torch.sigmoid(linear(own["gate"], rows))
    )[:, 0]


def regression(
    params: Any,
    batch: Batch,
    steps: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The summed loss of a batch's graphs, and their summed error; graphs that are not there have neither."""
    difference = predictions(params, batch, steps) - batch["target"]
    return 0.5 * (difference**2).sum(), scale * difference.abs().sum()


def selection(
    params: Any,
    batch: Batch,
    steps: int,
    nodes: int,
) -> tuple[Tensor, Tensor]:
    """The summed loss of a batch's graphs of `nodes` nodes each, and hits."""
    own, answer = (
        rows.reshape(-1, nodes) for rows in (scores(params, batch, steps), batch["answer"])
    )
    chosen = answer.argmax(1)
    others = own.masked_fill(answer > 0, -torch.inf).max(1).values
    return F.cross_entropy(own, chosen, reduction="sum"), (
        own.gather(1, chosen[:, None])[:, 0] > others
    ).sum()


def side_by_side(data: GraphInstances, ids: np.ndarray) -> Batch:
    """The graphs `ids`, without padding."""
    return as_tensors(joined(data, ids, len(ids), counts(data, ids).sum(axis=0)[None]))


def as_tensors(batch: Batch) -> Batch:
    """A minibatch in tensors."""

    def convert(a):
        if a.dtype.kind == "i":
            return torch.as_tensor(a).long()
        return torch.as_tensor(a)

    return jax.tree.map(convert, batch)


def one_by_one(
    of: Any,
    params: Any,
    batches: Any,
) -> tuple[Tensor, Tensor]:
    """The same sums, a graph at a time."""
    pairs = [of(params, batch) for batch in batches]
    return tuple(torch.stack(part).sum() for part in zip(*pairs, strict=True))  # type: ignore[return-value]


def unpadded(
    data: GraphInstances,
    batch: int,
    order: np.ndarray,
) -> Iterator[Batch]:
    """Graphs in this order, side by side."""
    return (side_by_side(data, order[i : i + batch]) for i in range(0, len(order), batch))


def singly(
    data: GraphInstances,
    batch: int,
    order: np.ndarray,
) -> Iterator[list[Batch]]:
    """Graphs in this order, a minibatch's in a list."""
    for i in range(0, len(order), batch):
        yield [side_by_side(data, order[[j]]) for j in range(i, min(i + batch, len(order)))]


def padded(
    data: GraphInstances,
    batch: int,
    order: np.ndarray,
) -> Iterator[Batch]:
    """Graphs in this order, side by side and padded to one shape."""
    layout = one_shape(data, batch)
    return (as_tensors(layout.joined(ids)) for ids in layout.groups(order))


def program(
    experiment: str,
    batch: int = 0,
    lay_out: Callable[[GraphInstances, int, np.ndarray], Iterator[Any]] = unpadded,
    through: Callable[[Any], Any] = lambda of: of,
    seed: int = 0,
    threads: int | None = None,
    **arguments: Any,
) -> Torch:
    """Trains on minibatches of graphs, an Adam step for each.

    Args:
      experiment: `qm9` or `babi15`.
      batch: Graphs in a minibatch; 0 for the experiment's choice.
      lay_out: From graphs, their number in a minibatch and an order to minibatches.
      through: What becomes of the function from parameters and a minibatch to loss and score: it may be compiled.
      seed: Of the order. Data and initial parameters are those of the experiment's seed 0.
      threads: Of PyTorch.
      **arguments: Further ones of `experiments.bench.ours.set_up`.
    """
    options, task = set_up(experiment, **arguments)
    train, valid, scale = examples(experiment, options)
    supply = cast(GraphInstances, getattr(train, "supply", train))
    n = len(train)
    batch = batch or options.batch
    params = tensors(initial_params(task.graph, {}, 0))
    if experiment == "qm9":
        of = partial(regression, steps=options.steps, scale=scale)
    else:
        of = partial(
            selection,
            steps=options.steps,
            nodes=int(supply.graphs.sizes[0]),
        )
    sums = through(of)
    adam = torch.optim.Adam(
        jax.tree.leaves(params),
        options.learning_rate,
    )
    parts = Parts(
        lambda each: sums(params, each)[0] / batch,
        lambda each: sums(params, each)[1],
        [adam],
        lambda rng: lay_out(
            supply,
            batch,
            rng.choice(len(supply), n, replace=False),
        ),
        lambda: lay_out(valid, batch, np.arange(len(valid))),
        n,
        len(valid),
        len(valid),
        [cosine(adam, -(-n // batch) * options.epochs)] if experiment == "qm9" else [],
    )
    return Torch(parts, seed, threads)


qm9 = partial(program, "qm9")
babi15 = partial(program, "babi15")
qm9_compiled = partial(program, "qm9", lay_out=padded, through=torch.compile)
qm9_eager = partial(
    program,
    "qm9",
    lay_out=singly,
    through=lambda of: partial(one_by_one, of),
    threads=1,
)
