"""A recurrent network with adaptive computation time, by hand: two nested loops; `experiments.models.act` has the cells.

The end of the outer loop is read from the state. The end of the inner one depends on payloads, so a `route_by` reads the decision to go on back
to the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList
from experiments.models.act import Ponder
from experiments.models.layers.losses import labelled_cross_entropy


def act_rnn(ponder: Ponder, replicas: int = 1) -> Graph:
    """Makes a classifier of sequences that ponders every input.

    Pumps: `x` `[E]` for each place of the sequence, with the fields `t` and `length`; `s0` `[H]`, the first state, with `t` 0, `length`,
    `step` 0 and `more` 0; `label` `()` int32.

    Args:
      ponder: The sizes.
      replicas: The number of copies of `step`, each for some instances.

    Returns:
      The graph, with the parameterised nodes `step` (or `step/0` ...) and `classify`, the losses `xent` (metric `accuracy`) and `cost`
      (metric `ponder`: `N + R` of an input on average), and the sink `logits`.
    """
    most = ponder.max_steps
    with ag.Graph() as graph:
        x = ag.pump(
            "x",
            (ponder.n_in,),
            fields=("t", "length"),
        )
        s0 = ag.pump(
            "s0",
            (ponder.hidden,),
            fields=("t", "length", "step", "more"),
        )
        label = ag.pump("label", (), "int32")
        state = ag.phi("state")
        start = ag.npt("begin", ponder.begin, join=("instance", "t"))(
            state,
            x,
        )
        pondering = ag.phi("pondering")
        step = ag.ppt(
            "step",
            ponder.step,
            params=ponder.init_step,
            outputs=2,
        )
        row, more = ag.replicate(step, replicas)(pondering)
        row = ag.route_by(
            row,
            more,
            "more",
            assume=lambda s: s.step < (s.t + 1) * (most - 1),
            name="more",
        )
        again, ended = ag.cond(
            row,
            lambda s: s.more == 1,
            name="again",
        )
        again = ag.isu(
            again,
            lambda s: s.replace(step=s.step + 1),
            lambda s: s.replace(step=s.step - 1),
        )
        pondering.connect(start, again)
        mean, cost = ag.npt("end", ponder.end, outputs=2)(ended)
        ag.loss("cost", ponder.cost)(cost)
        mean = ag.isu(
            mean,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        onwards, done = ag.cond(
            mean,
            lambda s: s.t < s.length,
            name="onwards",
        )
        state.connect(s0, onwards)
        logits = ag.ppt("classify", amp.nn.Linear(ponder.hidden, ponder.n_out))(done)
        ag.sink("logits", logits)
        ag.loss("xent", labelled_cross_entropy, join=("instance",))(logits, label)
    return graph


def act_messages(
    plain: Sequence[Mapping[str, Any]],
    hidden: int,
) -> InstanceList:
    """Makes the instances of `act_rnn`.

    Args:
      plain: Instances as `experiments.models.act` takes them: `x` `[t, E]` and `label`.
      hidden: Features of the state.
    """

    def columns(one: Mapping[str, Any]) -> Any:
        n = len(one["x"])
        zero = np.zeros(1, np.int64)
        start = ag.messages(
            np.zeros((1, hidden), np.float32),
            t=zero,
            length=[n],
            step=zero,
            more=zero,
        )
        return {
            "x": ag.messages(
                one["x"],
                t=np.arange(n),
                length=np.full(n, n),
            ),
            "s0": start,
            "label": one["label"],
        }

    return InstanceList([columns(one) for one in plain])
