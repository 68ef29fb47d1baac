"""The perceptron of AMPNet's B.1, for MNIST."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.wires import Wire
from experiments.models.layers.losses import labelled_cross_entropy


def mlp(
    sizes: Sequence[int] = (784, 784, 784, 784, 10),
    batch: int = 100,
    replicas: int = 1,
    copies: int = 1,
) -> Graph:
    """Makes a perceptron: linear layers with ReLU between them, He initialisation, softmax cross entropy.

    Each layer `linear1`, `linear2`, ... is a node of its own, so the default affinity puts each on a worker of its own if there are
    enough workers. The pumps are those of `experiments.data.mnist.Batches`.

    Args:
      sizes: Features from the input to the classes.
      batch: Images in an instance.
      replicas: The number of copies of every layer but the last, each for some instances (figure 4b).
      copies: The number of copies of the whole network, each for some instances and on a worker of its own.

    Returns:
      The graph, with the loss `xent` and the metric `accuracy`.

    Raises:
      SettingsError: If there is no layer, or a size, `replicas` or `copies` is below 1.
    """
    if len(sizes) < 2 or min(*sizes, batch, replicas, copies) < 1:
        raise SettingsError(
            "mlp, `sizes`, `batch`, `replicas` and `copies`",
            "two sizes or more, all at least 1",
            f"{tuple(sizes)}, {batch}, {replicas} and {copies}",
            "Change them.",
        )
    n_layers = len(sizes) - 1

    def network(x: Wire, label: Wire) -> None:
        for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes), 1):
            linear = ag.ppt(
                f"linear{i}",
                amp.nn.Linear(n_in, n_out, init_scale="he"),
            )
            x = ag.replicate(linear, replicas if i < n_layers else 1)(x)
            if i < n_layers:
                x = ag.npt(f"relu{i}", jax.nn.relu)(x)
        ag.loss("xent", labelled_cross_entropy)(x, label)

    with ag.Graph() as graph:
        image = ag.pump("image", (batch, sizes[0]))
        label = ag.pump("label", (batch,), "int32")
        ag.replicate(network, copies)(image, label)
    return graph
