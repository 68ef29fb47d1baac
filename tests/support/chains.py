"""Graphs in which a distribute, what happens over edges, and a collect can become one stage."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import ampjax.graphs as ag

FEATURES = 2


def scale(p, x):
    return x * p


def curved(p, x):
    """Its adjoint needs what it computed."""
    return jnp.tanh(x * p)


def update(p, a, h):
    return jnp.tanh(a + p * h)


def one():
    return np.ones(FEATURES, np.float32)


@functools.cache
def propagation(
    kinds=2,
    steps=2,
    edge=scale,
    join=("instance", "t"),
    **options,
):
    """Rows are sent over edges of some kinds, added up, and meet the rows they came from; a few times, then a sum.

    `options` are those of the first edge node.
    """
    with ag.Graph() as g:
        rows = ag.pump(
            "rows",
            (FEATURES,),
            fields=("t",),
            ragged=True,
        )
        edges = ag.topology("edges")
        label = ag.pump("label", (FEATURES,))
        h = ag.phi("h")
        wires = ag.distribute(h, edges, kinds, name="out")
        bodies = []
        for k in range(kinds):
            bodies.append(
                ag.ppt(
                    f"edge{k}",
                    edge,
                    params=one(),
                    **(options if k == 0 else {}),
                )
            )
        a = ag.collect(
            [body(wire) for body, wire in zip(bodies, wires, strict=True)],
            edges,
            name="in",
        )
        new = ag.ppt(
            "update",
            update,
            params=0.5 * one(),
            join=join,
        )(
            a,
            h,
        )
        new = ag.isu(
            new,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = ag.cond(new, lambda s: s.t < steps)
        h.connect(
            ag.ppt("encode", scale, params=one())(rows),
            more,
        )
        total = ag.reduce("sum", jax.ops.segment_sum, done)
        ag.sink("total", total)
        ag.loss(
            "loss",
            lambda v, y: jnp.sum((v - y) ** 2),
            join=("instance",),
        )(
            total,
            label,
        )
    return g


def instance(rng, n_rows, n_edges, kinds=2):
    """Random rows and edges."""
    if n_rows:
        ends = rng.integers(
            0,
            max(n_rows, 1),
            (2, n_edges),
        )
    else:
        ends = np.zeros((2, 0), np.int64)
    of = rng.integers(0, kinds, ends.shape[1])
    return {
        "rows": ag.messages(
            rng.normal(size=(n_rows, FEATURES)).astype(np.float32),
            sizes=[n_rows],
            t=0,
        ),
        "edges": ag.Topology.from_edges(*ends, of, n_rows, kinds),
        "label": rng.normal(size=FEATURES).astype(np.float32),
    }


def odd_instances(kinds=2):
    """A row alone; no rows at all; rows without edges; a single edge; one kind only; many edges; a large one."""
    rng = np.random.default_rng(0)
    shapes = [
        (1, 0),
        (0, 0),
        (4, 0),
        (2, 1),
        (3, 5),
        (2, 9),
        (6, 12),
    ]
    found = [instance(rng, *shape, kinds) for shape in shapes]
    found[4]["edges"] = ag.Topology.from_edges(
        [0, 1, 2],
        [1, 1, 0],
        [0, 0, 0],
        3,
        kinds,
    )
    return found
