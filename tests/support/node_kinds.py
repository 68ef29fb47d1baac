"""A node of each kind, in a closed graph. A new kind needs an entry in `KINDS`."""

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.builders.control_builders import bcast
from ampjax.ir.wires import WireType

D = 4
ROW = WireType(
    (D,),
    np.dtype("float32"),
    ("t",),
)
ROWS = WireType(
    (D,),
    np.dtype("float32"),
    ("t",),
    ragged=True,
)


def square(x):
    return 0.5 * jnp.sum(x * x)


def number(s, i):
    return s.replace(i=i)


def of(wire, **changes):
    return WireType(**{**vars(wire), **changes})


# kind: how to build it from an ordinary wire, a ragged wire and a topology; and the types that it should emit.
KINDS = {
    "Pump": (lambda x, r, m: x, (ROW,)),
    "PPT": (
        lambda x, r, m: ag.ppt(
            "node",
            amp.nn.Linear(D, 2),
        )(x),
        (of(ROW, shape=(2,)),),
    ),
    "NPT": (
        lambda x, r, m: ag.npt(
            "node",
            lambda x: (x, x.sum()),
            outputs=2,
        )(x),
        (ROW, of(ROW, shape=())),
    ),
    "Concat": (
        lambda x, r, m: ag.concat(x, x),
        (of(ROW, shape=(2 * D,)),),
    ),
    "Split": (
        lambda x, r, m: ag.split(x, (1, 3)),
        (
            of(ROW, shape=(1,)),
            of(ROW, shape=(3,)),
        ),
    ),
    "RouteBy": (
        lambda x, r, m: ag.route_by(
            x,
            ag.npt("choose", jnp.argmax)(x),
            "way",
            name="node",
        ),
        (of(ROW, fields=("t", "way")),),
    ),
    "Reduce": (
        lambda x, r, m: ag.reduce("node", jax.ops.segment_sum, r),
        (ROW,),
    ),
    "Collect": (
        lambda x, r, m: ag.collect([r, r], m),
        (ROWS,),
    ),
    "Loss": (
        lambda x, r, m: ag.loss("node", square)(x),
        (),
    ),
    "Sink": (lambda x, r, m: ag.sink("node", x), ()),
    "Cond": (
        lambda x, r, m: ag.cond(
            x,
            lambda s: s.t % 3,
            3,
        ),
        (ROW, ROW, ROW),
    ),
    "Phi": (
        lambda x, r, m: ag.phi(
            "node",
            *ag.cond(x, lambda s: s.t > 0),
        ),
        (ROW,),
    ),
    "Isu": (
        lambda x, r, m: ag.isu(
            x,
            lambda s: s.replace(u=s.t),
            lambda s: s.drop("u"),
        ),
        (of(ROW, fields=("t", "u")),),
    ),
    "Relabel": (
        lambda x, r, m: ag.relabel(
            x,
            lambda s: s.replace(u=s.t // 2).drop("t"),
        ),
        (of(ROW, fields=("u",)),),
    ),
    "Bcast": (
        lambda x, r, m: bcast(x, 2),
        (ROW, ROW),
    ),
    "Flatmap": (
        lambda x, r, m: ag.flatmap(x, lambda s: s.t, number),
        (of(ROW, fields=("t", "i")),),
    ),
    "Repeat": (
        lambda x, r, m: ag.repeat(x, lambda s: s.t),
        (ROWS,),
    ),
    "Ungroup": (
        lambda x, r, m: ag.ungroup(r, "i"),
        (of(ROW, fields=("t", "i")),),
    ),
    "Group": (
        lambda x, r, m: ag.group(x, size=lambda s: 1),
        (of(ROWS, fields=()),),
    ),
    "Distribute": (
        lambda x, r, m: ag.distribute(r, m, 2),
        (ROWS, ROWS),
    ),
}


def build(kind):
    """A closed graph with one node of this kind, and that node."""
    make, _ = KINDS[kind]
    with ag.Graph() as g:
        x = ag.pump("x", (D,), fields=("t",))
        make(
            x,
            ag.pump(
                "rows",
                (D,),
                fields=("t",),
                ragged=True,
            ),
            ag.topology("map"),
        )
        for node in list(g.nodes.values()):
            for wire in node.outputs:
                if not wire.consumers:
                    if wire.source.name == "map":
                        empty = ag.pump("empty", (D,), ragged=True)
                        wire = ag.distribute(empty, wire, 1, name="unused")[0]
                    ag.sink(f"end {wire.name}", wire)
    return g, next(node for node in g.nodes.values() if node.kind == kind)
