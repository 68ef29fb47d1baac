# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Graphs
#
# A graph network sends every node's state over its edges, adds up what arrives, updates the states, and repeats. Molecules have different numbers of atoms and bonds,
# and bonds have kinds with a weight matrix each. AMPNet has two ways to write this, one in each version of the paper, and both are here:
#
# * **a whole graph is one message** of as many rows as it has nodes; `distribute` copies rows to the wires of their edges' kinds, `collect` adds
#   them up at the receivers;
# * **every node is a message**; `flatmap` makes one message for each edge, `cond` picks the matrix of its kind, `group` waits until all have arrived.
#
# They are the same mathematics. We build the first, check it, build the second, and see that gradients agree. (You need not build either:
# `experiments.models.ggnn.ggnn_regression` is the same network as a function of one graph, which `amp.compile` makes the first of.)
#
# ## The data
#
# Random molecules whose dipole moment follows from the graph: each bond adds something that depends on its order and on the two elements. (A twin of QM9.)

# %%
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.viz import new_figure
from experiments.data import qm9  # in a clone of the repository
from experiments.models.ggnn import GatedReadout, GatedUnit, Pad

molecules = qm9.synthetic(750, seed=0)
print(molecules)

# %% tags=["picture"]
ELEMENTS = {
    1: ("H", "#FFFFFF"),
    6: ("C", "#BBBBBB"),
    7: ("N", "#56B4E9"),
    8: ("O", "#D55E00"),
    9: ("F", "#F0E442"),
}
STYLES = (("-", 1.3, "single"), ("-", 3.0, "double"), ("-", 5.0, "triple"), ("--", 2.0, "aromatic"))


def atoms_of(i):
    """Elements, and bonds `[b, 3]` (two atoms and the kind, each once), of a molecule."""
    graphs = molecules.graphs
    first, end = graphs.node_ptr[i], graphs.node_ptr[i + 1]
    edges = slice(graphs.out_ptr[first], graphs.out_ptr[end])
    bonds = np.column_stack([graphs.senders[edges], graphs.receivers[edges], graphs.kinds[edges]])
    return molecules.features[first:end, 5].astype(int), bonds[bonds[:, 0] < bonds[:, 1]]


def draw_molecule(axes, i):
    """Atoms as far from each other as there are bonds between them, as well as that goes in the plane."""
    elements, bonds = atoms_of(i)
    hops = np.where(np.eye(len(elements), dtype=bool), 0.0, 99.0)
    hops[bonds[:, 0], bonds[:, 1]] = hops[bonds[:, 1], bonds[:, 0]] = 1
    for middle in range(len(elements)):
        hops = np.minimum(hops, hops[:, [middle]] + hops[[middle]])
    at = np.random.default_rng(2).normal(size=(len(elements), 2))
    for _ in range(500):
        apart = at[:, None] - at[None]
        distance = np.linalg.norm(apart, axis=-1) + 1e-9
        at += 0.05 * (
            ((hops - distance) / (distance * np.maximum(hops, 1)))[..., None] * apart
        ).sum(1)
    for a, b, kind in bonds:
        style, width, _ = STYLES[kind]
        axes.plot(*at[[a, b]].T, style, color="#666666", linewidth=width, zorder=1)
    for place, element in zip(at, elements, strict=True):
        name, colour = ELEMENTS[element]
        axes.scatter(*place, s=230, color=colour, edgecolors="#444444", zorder=2)
        axes.annotate(name, place, ha="center", va="center", size=9)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.15)
    axes.set_title(f"dipole moment {molecules.mu[i]:.2f}", fontsize=10)


figure = new_figure(9, 3.2, layout="constrained")
largest = np.argsort(-np.diff(molecules.graphs.node_ptr), kind="stable")
for axes, i in zip(figure.subplots(1, 3), largest[[0, 5, 6]], strict=True):
    draw_molecule(axes, int(i))
lines = [
    figure.axes[0].plot([], [], s, color="#666666", linewidth=w, label=n)[0] for s, w, n in STYLES
]
figure.legend(handles=lines, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
figure

# %% [markdown]
# ## A graph is one message
#
# A *ragged* message holds any number of rows and counts as one for the control plane. Which row goes over which edge is said by a `Topology`: two integer maps for each
# kind of edge, pumped beside the rows. It never leaves the host.
#
# `t` counts the steps, as in a recurrent network: `isu` adds one, `cond` sends the states round again or out.

# %%
F, H, T, KINDS = qm9.N_FEATURES, 24, 3, qm9.N_KINDS


def square(prediction, target):
    difference = prediction[0] - target
    return 0.5 * difference**2, {"error": jnp.abs(difference)}


def whole_graphs(interval=lambda node: None):
    """The network whose messages are whole graphs; `interval` gives a node's min_update_interval."""
    with ag.Graph() as graph:
        x = ag.pump("x", (F,), fields=("t",), ragged=True)
        edges = ag.topology("edges")
        target = ag.pump("target")
        h = ag.phi("h")
        over = ag.distribute(h, edges, KINDS)  # a wire for each kind: the senders' rows
        names = [f"edge{kind}" for kind in range(KINDS)]
        sent = [
            ag.ppt(name, amp.nn.Linear(H, H), min_update_interval=interval(name))(wire)
            for name, wire in zip(names, over, strict=True)
        ]
        arrived = ag.collect(sent, edges)  # the sum at each receiver
        new = ag.ppt("update", GatedUnit(H), min_update_interval=interval("update"))(arrived, h)
        new = ag.isu(new, lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1))
        more, done = ag.cond(new, lambda s: s.t < T)
        h.connect(ag.npt("pad", Pad(H))(x), more)
        rows = ag.ppt(
            "readout",
            GatedReadout(H, F),
            join=("instance",),
            min_update_interval=interval("readout"),
        )(done, x)
        prediction = ag.reduce("sum", jax.ops.segment_sum, rows)
        ag.sink("prediction", prediction)
        ag.loss("square", square, join=("instance",))(prediction, target)
    return graph


# %% tags=["picture"]
one_message = whole_graphs()
one_message

# %% [markdown]
# `GatedUnit`, `GatedReadout` and `Pad` are plain functions of one row with parameters; the engine maps them over rows.

# %%
sizes = np.diff(molecules.graphs.node_ptr)
some = qm9.split(molecules, n_valid=150, seed=0).train
few = amp.Subset(some, np.flatnonzero(sizes[some.ids] == 4)[:2])
verdict = amp.verify(one_message, few)
print(str(verdict).splitlines()[0])
assert verdict

# %% [markdown]
# ## A node is a message
#
# The same network in the other encoding. Here states do all the work: `flatmap` looks up in a table how many edges a node sends, and the `i`-th copy gets the
# receiver as its `node` and the edge's number; `cond` reads the edge's kind; `group` waits for as many messages as the receiver has incoming edges. Its own state opens the
# group, so that an atom without bonds does not wait for ever.

# %%
tables = molecules.graphs


def over_edge(s, i):
    edge = tables.out_ptr[s.first + s.node] + i
    return s.replace(node=tables.receivers[edge], edge=edge)


with ag.Graph() as each_node:
    # `first`: the number of the graph's first node in the tables
    x = ag.pump("x", (F,), fields=("first", "node", "t"))
    target = ag.pump("target")
    h = ag.phi("h")
    sent = ag.flatmap(h, lambda s: tables.out_degree[s.first + s.node], over_edge, name="senders")
    over = ag.cond(sent, lambda s: tables.kinds[s.edge], KINDS, name="kind")
    sent = ag.phi(
        "arrived",
        *(ag.ppt(f"edge{kind}", amp.nn.Linear(H, H))(wire) for kind, wire in enumerate(over)),
    )
    received = ag.group(
        sent,
        by=("node", "t"),
        size=lambda s: tables.in_degree[s.first + s.node],
        opener=h,
        name="receivers",
    )
    arrived = ag.reduce("arrivals", jax.ops.segment_sum, received)
    new = ag.ppt("update", GatedUnit(H), join=("node", "t"))(arrived, h)
    new = ag.isu(new, lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1))
    more, done = ag.cond(new, lambda s: s.t < T)
    h.connect(ag.npt("pad", Pad(H))(x), more)
    rows = ag.ppt("readout", GatedReadout(H, F), join=("node",))(done, x)
    together = ag.group(rows, size=lambda s: tables.sizes[s.first + s.node], name="nodes")
    prediction = ag.reduce("sum", jax.ops.segment_sum, together)
    ag.sink("prediction", prediction)
    ag.loss("square", square, join=("instance",))(prediction, target)

# %% tags=["picture"]
each_node

# %% [markdown]
# Both graphs have nodes of the same names with the same parameters. With these frozen, the summed gradients of six molecules must agree.

# %%
NEVER = 10**9
start = amp.Trainer(one_message, optax.sgd(0.1)).params
sums = {}
for name, graph, encoding in (
    ("a message a graph", one_message, "collect"),
    ("a message a node", each_node, "flatmap"),
):
    trainer = amp.Trainer(graph, optax.sgd(0.1), params=start, min_update_interval=NEVER)
    loss = trainer.accumulate(
        qm9.split(molecules, n_valid=1, seed=2, n_train=6, encoding=encoding).train
    )["loss_sum"]
    sums[name] = SimpleNamespace(loss=loss, gradients=trainer.gradients, stats=trainer.statistics)
    print(
        f"{name}: loss {loss:.6f}, {trainer.statistics.messages} messages, {trainer.statistics.dispatches} dispatches"
    )

one, other = sums.values()
for node, (tree, n) in one.gradients.items():
    theirs, m = other.gradients[node]
    difference = max(
        jax.tree.leaves(jax.tree.map(lambda a, b: abs(a - b).max() / abs(a).max(), tree, theirs))
    )
    print(f"  {node:8} {n:4} gradient rows, largest difference {difference:.1e}")
    assert n == m and difference < 1e-4

# %% [markdown]
# The same gradients, from very different numbers of messages. Rows are what is computed; messages are what the host has to route, and there it pays to
# move a graph as one. The picture counts both for each stage; on the left `distribute`, the edges' maps, `collect` and `update` run as one kernel.

# %% tags=["picture"]
figure = new_figure(9, 3.4, layout="constrained")
for axes, (name, found) in zip(figure.subplots(1, 2, sharex=True), sums.items(), strict=True):
    stages = {
        stage if "+" not in stage else "edges, update": s
        for stage, s in found.stats.stages.items()
        if s.forward
    }
    y = np.arange(len(stages))
    axes.barh(
        y - 0.2,
        [s.forward + s.backward for s in stages.values()],
        0.4,
        color="#0072B2",
        label="messages",
    )
    axes.barh(y + 0.2, [s.rows for s in stages.values()], 0.4, color="#E69F00", label="rows")
    axes.set_yticks(y, list(stages))
    axes.invert_yaxis()
    axes.set(xlabel="of 6 molecules, forth and back", xscale="log", xlim=(1, 500))
    axes.set_title(f"{name}: {found.stats.messages:,} messages", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
assert one.stats.messages < other.stats.messages / 5
figure

# %% [markdown]
# ## Training
#
# Nodes of this graph see different numbers of gradient rows: `update` one for each atom and step, `edge2` one for each triple bond, direction and step, `readout` one for
# each atom. With one interval for all, some would update long before others. So each waits for as many as 10 molecules bring on average; a run of the scheduler alone counts them.

# %%
data = qm9.split(molecules, n_valid=150, seed=0)
counted = amp.simulate(whole_graphs(), data.train, min_update_interval=NEVER).stats.nodes
per_molecule = {name: node.gradients / len(data.train) for name, node in counted.items()}
print({name: round(rows, 1) for name, rows in per_molecule.items()})

graph = whole_graphs(lambda name: max(1, round(10 * per_molecule[name])))
trainer = amp.Trainer(graph, optax.adam(5e-3), max_active_keys=16, max_dispatch_size=64)
trainer.warm_up(data.train, data.valid, progress=False)
history = trainer.fit(data.train, data.valid, epochs=16, progress=False)
history

# %% tags=["picture"]
from ampjax.viz import convergence

convergence(
    {"mean absolute error, in standard deviations": history.records()}, metric="valid_error"
)

# %% [markdown]
# Predicted against true dipole moments of molecules that it has never seen.

# %% tags=["picture"]
predicted = data.mean + data.std * trainer.predict(data.valid)["prediction"].payload[:, 0]
true = molecules.mu[data.valid.ids]

figure = new_figure(4.2, 4.0, layout="constrained")
axes = figure.subplots()
axes.scatter(true, predicted, s=14, color="#0072B2", alpha=0.7)
axes.axline((0, 0), slope=1, color="#D55E00", linewidth=1, linestyle="--")
axes.set(xlabel="true dipole moment", ylabel="predicted", aspect="equal")
axes.spines[["top", "right"]].set_visible(False)
figure

# %%
always_the_mean = np.abs(true - data.mean).mean()
error = np.abs(true - predicted).mean()
print(f"mean absolute error {error:.2f}; always predicting the mean: {always_the_mean:.2f}")
assert error < 0.7 * always_the_mean

# %% [markdown]
# ## Where to go from here
#
# * `python -m experiments qm9` trains it on real molecules, `babi15` on questions about graphs, both in either encoding.
# * `python -m experiments appendix-c` puts the gated unit's parts on workers of their own, as in the paper's figure 7.
# * [The next notebook](04_asynchrony_and_staleness.py) asks what it costs that nodes update themselves whenever they like.
