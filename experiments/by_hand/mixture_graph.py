"""A sparsely-gated mixture of experts by hand: a RouteBy reads the gate's choices, a Flatmap sends the row to each; `experiments.models.mixture` has the bodies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import ampjax.graphs as ag
from ampjax.ir.graph import Graph
from ampjax.ir.state import State
from experiments.models.layers.losses import labelled_cross_entropy
from experiments.models.mixture import Experts


def mixture_of_experts(experts: Experts, replicas: int = 1) -> Graph:
    """Makes a classifier of rows by a mixture of experts; an instance is a batch of rows.

    Pumps: `x` `[n_in]` and `label` `()` int32, both with the fields `i` (the row's number) and `n` (rows of the instance). The paper's
    second balancing loss, on the load, is left out.

    Args:
      experts: The sizes.
      replicas: The number of copies of the gate and of each expert, each for some instances.

    Returns:
      The graph, with the parameterised nodes `gate` and `expert0`, `expert1`, ... (or `gate/0` ...), the losses `xent` (metric `accuracy`)
      and `importance`, and the sink `logits`.
    """
    names = tuple(f"choice{rank}" for rank in range(experts.top))

    def assume(s: State) -> tuple[np.ndarray, ...]:
        result = []
        for rank in range(experts.top):
            result.append((s.instance + s.i + rank) % experts.n)
        return tuple(result)

    def visit(s: State, rank: np.ndarray) -> State:
        choices = np.stack([getattr(s, name) for name in names])
        return s.replace(
            rank=rank,
            expert=choices[rank, np.arange(len(s))],
        )

    with ag.Graph() as graph:
        x = ag.pump(
            "x",
            (experts.n_in,),
            fields=("i", "n"),
        )
        label = ag.pump("label", (), "int32", ("i", "n"))
        gate = ag.ppt(
            "gate",
            experts.gate,
            params=experts.init_gate,
            outputs=3,
            rng=experts.noisy,
        )
        weights, choice, everywhere = ag.replicate(gate, replicas)(x)
        chosen = ag.route_by(
            x,
            choice,
            *names,
            assume=assume,
            name="choose",
        )
        visits = ag.flatmap(
            chosen,
            lambda s: experts.top,
            visit,
            name="visits",
        )
        branches = ag.cond(
            visits,
            lambda s: s.expert,
            experts.n,
            name="dispatch",
        )
        each = []
        for e in range(experts.n):
            each.append(ag.ppt(f"expert{e}", experts.expert, params=experts.init_expert))
        bodies = []
        for expert, wire in zip(each, branches, strict=True):
            bodies.append(ag.replicate(expert, replicas)(wire))
        results = ag.phi("results", *bodies)
        if experts.top > 1:
            ranked = ag.cond(
                results,
                lambda s: s.rank,
                experts.top,
                name="ranked",
            )
        else:
            ranked = (results,)
        logits = ag.npt("combine", _weighted, join=("instance", "i"))(
            weights,
            *ranked,
        )
        ag.sink("logits", logits)
        ag.loss("xent", labelled_cross_entropy)(logits, label)
        together = ag.group(
            everywhere,
            size=lambda s: s.n,
            name="together",
        )
        ag.loss("importance", experts.importance_loss)(
            ag.reduce("importances", jax.ops.segment_sum, together)
        )
    return graph


def _weighted(
    weights: jax.Array,
    *results: jax.Array,
) -> jax.Array:
    return sum(
        (weight * result for weight, result in zip(weights, results, strict=True)),
        start=jnp.zeros(()),
    )
