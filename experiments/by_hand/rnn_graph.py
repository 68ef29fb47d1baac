"""The variable-length RNN of AMPNet's figure 2 by hand: counters in the state drive the loop."""

from __future__ import annotations

import jax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.wires import Wire
from experiments.data.list_reduction import N_CLASSES, N_TOKENS
from experiments.models.layers.losses import labelled_cross_entropy


def list_reduction_rnn(
    hidden: int = 128,
    batch: int | None = None,
    replicas: int = 1,
    whole: bool = False,
    copies: int = 1,
) -> Graph:
    """Makes the vanilla RNN `h <- relu(linear1([embed(x_t); h]))` with a classifier on its last state.

    The state fields `t` and `length` drive the loop: an Isu counts `t` up, a Cond leaves the loop when `t` = `length`. The pumps are those
    of `experiments.data.list_reduction.Sequences` (`batch` absent) and `Buckets`.

    Args:
      hidden: Features of the embedding and of the hidden state.
      batch: Sequences in an instance; None pumps single sequences, whose payloads have no batch axis.
      replicas: The number of copies of `linear1`, each for some instances (figure 4b).
      whole: Whether the whole sequence is pumped as one ragged message (figure 2), embedded row by row and ungrouped into its steps.
      copies: The number of copies of the whole network, each for some instances and on a worker of its own. The worker of a copy runs a
        whole step as one kernel, while `replicas` sends each step to another worker and back.

    Returns:
      The graph, with the parameterised nodes `embed`, `linear1` (or `linear1/0` ...) and `linear2`, and the loss `xent`
      with the metric `accuracy`.

    Raises:
      SettingsError: If a size is below 1.
    """
    sizes = {
        "hidden": hidden,
        "batch": 1 if batch is None else batch,
        "replicas": replicas,
        "copies": copies,
    }
    for name, value in sizes.items():
        if value < 1:
            raise SettingsError(
                f"list_reduction_rnn, `{name}`", "at least 1", f"{value}", "Give a positive number."
            )

    def network(tokens: Wire, h0: Wire, label: Wire) -> None:
        x = ag.ppt("embed", amp.nn.Embed(N_TOKENS, hidden))(tokens)
        if whole:
            x = ag.ungroup(x, "t")
        h = ag.phi("h")
        linear1 = ag.ppt(
            "linear1",
            amp.nn.Linear(2 * hidden, hidden, init_scale="he"),
        )
        xh = ag.concat(x, h)
        z = ag.replicate(linear1, replicas)(xh)
        z = ag.npt("relu", jax.nn.relu)(z)
        z = ag.isu(
            z,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = ag.cond(
            z,
            lambda s: s.t < s.length,
        )
        h.connect(h0, more)
        logits = ag.ppt("linear2", amp.nn.Linear(hidden, N_CLASSES))(done)
        ag.loss("xent", labelled_cross_entropy, join=("instance",))(logits, label)

    row = () if batch is None else (batch,)
    with ag.Graph() as graph:
        tokens = ag.pump(
            "tokens",
            row,
            "int32",
            ("length",) if whole else ("t", "length"),
            ragged=whole,
        )
        h0 = ag.pump(
            "h0",
            (*row, hidden),
            fields=("t", "length"),
        )
        label = ag.pump("label", row, "int32")
        ag.replicate(network, copies)(tokens, h0, label)
    return graph
