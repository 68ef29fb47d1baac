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
# # Trees
#
# A sentence's parse is a binary tree, and every sentence has a different one. A Tree-LSTM reads it from the leaves to the root: a word becomes a
# state, and two children's states become their parent's. What is computed is always the same cell; *which two rows it is applied to* differs
# from tree to tree. So a batch of trees is no array, and one usually writes either a loop in Python or a batching of one's own.
#
# In ampjax a tree is no data structure at all. It is a rule about states: **a message knows which node it belongs to, and which node is next**.
#
# ## The data
#
# Trees of random shape whose labels follow from their words, a twin of the Stanford Sentiment Treebank: every node has one of five labels, from
# very negative to very positive. A `not` word turns the phrase on its right around.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.viz import new_figure
from experiments.data import sst  # in a clone of the repository

train, valid = sst.synthetic(n_train=500, n_valid=150, seed=0)
print(train)

# %% [markdown]
# One of them, from the leaves at the bottom to the root. Colours are labels.

# %% tags=["picture"]
COLOURS = ("#D55E00", "#E69F00", "#DDDDDD", "#56B4E9", "#0072B2")  # very negative ... very positive
NAMES = ("very negative", "negative", "neutral", "positive", "very positive")


def places(trees, i):
    """Where a tree's nodes are drawn: leaves side by side, a branch in the middle above its children."""
    nodes = slice(trees.ptr[i], trees.ptr[i + 1])
    parents, sides, words = trees.parents[nodes], trees.sides[nodes], trees.words[nodes]
    x, y, leaves = np.zeros(len(parents)), np.zeros(len(parents)), []
    stack = [len(parents) - 1]
    while stack:  # from the root, left before right
        node = stack.pop()
        children = sorted(np.flatnonzero(parents == node), key=lambda child: sides[child])
        stack.extend(children[::-1])
        leaves += [] if len(children) else [node]
    x[leaves] = np.arange(len(leaves))
    for node in range(len(parents)):  # children come before parents
        children = np.flatnonzero(parents == node)
        if len(children):
            x[node], y[node] = x[children].mean(), y[children].max() + 1
    return x, y, parents, [trees.vocabulary[word] if word >= 0 else "" for word in words]


def draw_tree(axes, trees, i, inside, outside=None):
    """Nodes with the labels `inside` as colours; a ring of the colour `outside` where that is another label."""
    x, y, parents, words = places(trees, i)
    for node, parent in enumerate(parents):
        if parent >= 0:
            axes.plot(
                [x[node], x[parent]], [y[node], y[parent]], color="#888888", linewidth=1, zorder=1
            )
        ring = (
            "#444444"
            if outside is None or outside[node] == inside[node]
            else COLOURS[outside[node]]
        )
        width = 0.8 if ring == "#444444" else 4
        axes.scatter(
            x[node],
            y[node],
            s=260,
            color=COLOURS[inside[node]],
            edgecolors=ring,
            linewidths=width,
            zorder=2,
        )
        axes.annotate(
            words[node],
            (x[node], y[node]),
            (0, -13),
            textcoords="offset points",
            ha="center",
            va="top",
            size=8,
        )
    axes.set_axis_off()
    axes.margins(0.05, 0.18)


def labels_of(trees, i):
    return trees.labels[trees.ptr[i] : trees.ptr[i + 1]]


def legend(figure):
    dots = [
        figure.axes[0].scatter([], [], s=90, color=c, edgecolors="#444444", label=n)
        for c, n in zip(COLOURS, NAMES, strict=True)
    ]
    figure.legend(handles=dots, loc="outside lower center", ncols=5, frameon=False, fontsize=9)


sizes = np.diff(train.ptr)
example = int(np.flatnonzero(sizes == 17)[0])
figure = new_figure(8, 3.6, layout="constrained")
draw_tree(figure.subplots(), train, example, labels_of(train, example))
legend(figure)
figure

# %% [markdown]
# ## The graph
#
# Each word is pumped as a message, each branch too (it carries no numbers: it only says that there is such a branch). All have three state fields:
#
# * `at`: the node that the message belongs to,
# * `up`: that node's parent,
# * `side`: whether it is a left child (0), a right one (1), or the root (2).
#
# When a node has its state, an `isu` swaps `at` and `up`: now the message stands **at its parent**. There the branch cell *joins* what has the
# same `at`: the branch's own message, the left child, the right child. Its result has the branch's own state, so it can go up in its turn. Nothing else is needed,
# and the swap is its own inverse, which brings gradients back down.

# %%
E, H = 32, 32


def linear(n_in, n_out):
    return lambda key: {
        "w": jax.nn.initializers.glorot_uniform()(key, (n_in, n_out)),
        "b": jnp.zeros(n_out),
    }


def leaf(params, x):
    i, j, o = jnp.split(x @ params["w"] + params["b"], 3)
    c = jax.nn.sigmoid(i) * jnp.tanh(j)
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])


def branch(params, _, left, right):
    (h_l, c_l), (h_r, c_r) = jnp.split(left, 2), jnp.split(right, 2)
    i, j, f_l, f_r, o = jnp.split(jnp.concatenate([h_l, h_r]) @ params["w"] + params["b"], 5)
    c = (
        jax.nn.sigmoid(i) * jnp.tanh(j)
        + jax.nn.sigmoid(f_l + 1) * c_l
        + jax.nn.sigmoid(f_r + 1) * c_r
    )
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])


def cross_entropy(logits, label):
    hit = jnp.argmax(logits) == label[0]
    root = {"accuracy": (hit, 1.0), "root_accuracy": (hit * label[1], label[1])}  # sums and counts
    return optax.softmax_cross_entropy_with_integer_labels(logits, label[0]), root


def swap(s):
    return s.replace(at=s.up, up=s.at)


with ag.Graph() as g:
    fields = ("at", "up", "side")
    words = ag.pump("words", (), "int32", fields)
    branches = ag.pump("branches", (), "int32", fields)
    labels = ag.pump("labels", (2,), "int32", fields)
    leaves = ag.ppt("leaf", leaf, params=linear(E, 3 * H))(
        ag.ppt("embed", amp.nn.Embed(len(train.vocabulary), E))(words)
    )
    node = ag.phi("node")  # every node's state [2H], of leaves and branches alike
    left, right, root = ag.cond(node, lambda s: s.side, 3)
    left, right = ag.isu(left, swap, swap), ag.isu(right, swap, swap)
    node.connect(
        leaves,
        ag.ppt("branch", branch, params=linear(2 * H, 5 * H), join=("at",))(branches, left, right),
    )
    ag.sink("root", root)
    logits = ag.ppt("classify", lambda p, state: state[:H] @ p["w"] + p["b"], params=linear(H, 5))(
        node
    )
    ag.sink("logits", logits)
    ag.loss("xent", cross_entropy)(logits, labels)

# %% [markdown]
# The picture shows the recursion as one loop: what leaves `branch` comes back to `node`.

# %% tags=["picture"]
g

# %% [markdown]
# A dozen lines of nodes for every tree there is. Is it right? `verify` compares loss, gradients and predictions with the composed function and its `jax.grad`, which a small
# interpreter of graphs computes one message at a time.

# %%
few = sst.TreeInstances(sst.synthetic(n_train=1, n_valid=1, seed=4)[0])
verdict = amp.verify(g, few)
print(str(verdict).splitlines()[0])
assert verdict

# %% [markdown]
# ## What batching there is
#
# All branches that are ready, of whatever tree and at whatever height, wait in one queue and go through the cell in one compiled call. How many are ready at
# once depends on how many trees are in flight, and on which queue is served first, the *policy*. Counting that needs no numbers, so
# we let `simulate` run the scheduler alone:
#
# * `backward_first` is the paper's: whatever is on its way back goes first.
# * `balanced`, the default, also looks at how many rows are ready.
# * `wavefront` serves stages in the order of the graph, so that trees travel in step; `min_admission` lets them enter together.

# %% tags=["picture"]
data, held_out = sst.TreeInstances(train), sst.TreeInstances(valid)
in_flight = (1, 4, 16, 64)
some = amp.Subset(data, np.random.default_rng(0).permutation(len(data))[:128])
rows = {}
for policy in ("backward_first", "balanced", "wavefront"):
    for n in in_flight:
        admission = {"min_admission": max(1, n // 4)} if policy == "wavefront" else {}
        run = amp.simulate(
            g,
            some,
            policy=policy,
            max_active_keys=n,
            min_update_interval=50,
            max_dispatch_size=512,
            **admission,
        )
        rows.setdefault(policy, []).append(run.stats.stages["branch"].mean_dispatch)

figure = new_figure(6, 3.4, layout="constrained")
axes = figure.subplots()
for (policy, line), style, colour in zip(
    rows.items(), ("o-", "s--", "D-."), ("#0072B2", "#E69F00", "#009E73"), strict=True
):
    axes.plot(in_flight, line, style, color=colour, label=policy)
axes.set_xscale("log", base=2)
axes.set_xticks(in_flight, [str(n) for n in in_flight])
axes.set(
    xlabel="trees in flight (max_active_keys)",
    ylabel="branches in a dispatch, on average",
    ylim=(0, None),
)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure

# %% [markdown]
# One tree alone gives one or two branches at a time: dispatches are small and the machine idles between them. With many in flight the calls get larger, the more so
# where trees travel in step. That is all that "dynamic batching" needs to be here; no code of ours says which nodes go together.

# %%
assert all(line == sorted(line) for line in rows.values()), (
    "more trees in flight, larger dispatches"
)
assert rows["wavefront"][-1] > rows["backward_first"][-1]

# %% [markdown]
# ## Training
#
# A gradient row here is a *node of a tree*, so an interval of 200 is about ten trees. The sum of the rows' gradients, not the mean, is what such models are
# usually trained with, hence `gradient="sum"`.

# %%
trainer = amp.Trainer(
    g,
    optax.adagrad(0.05, initial_accumulator_value=0.1),
    max_active_keys=32,
    min_admission=8,
    min_update_interval=200,
    policy="wavefront",
    max_dispatch_size=32,
    gradient="sum",
)
# Without this, kernels would be compiled in the first epoch, and its clock would show that.
trainer.warm_up(data, held_out, progress=False)
history = trainer.fit(data, held_out, epochs=4, progress=False)
history

# %% tags=["picture"]
from ampjax.viz import convergence

convergence({"all nodes": history.records()}, metric="valid_accuracy")

# %%
most_frequent = np.bincount(valid.labels).max() / valid.n_nodes
print(
    f"always the most frequent label: {most_frequent:.2f}; the model: {history[-1].valid['accuracy']:.2f}"
)
assert history[-1].valid["accuracy"] > most_frequent + 0.1

# %% [markdown]
# ## Where the time went
#
# One more epoch, with a trace. The graph's picture then has times on nodes and messages on wires: of every two messages at `node`, about one is a leaf and one is
# a branch, and every one of them is classified.

# %% tags=["picture"]
from ampjax.viz import draw

trace = amp.Trace()
trainer.fit(data, epochs=1, progress=False, trace=trace)
draw(g, trace=trace)

# %% [markdown]
# ## A tree, predicted
#
# What arrives at a sink keeps its state, so every prediction knows its node. Here is the smallest tree of the validation set with two mistakes or more; a ring shows the right label where
# the prediction is another one.

# %% tags=["picture"]
found = trainer.predict(held_out)["logits"]
predicted = np.zeros(valid.n_nodes, int)
predicted[valid.ptr[found.instance] + found.fields["at"]] = found.payload.argmax(-1)
assert np.mean(predicted == valid.labels) > most_frequent + 0.1
mistakes = np.add.reduceat(predicted != valid.labels, valid.ptr[:-1])
shown = min(np.flatnonzero(mistakes >= 2), key=lambda i: np.diff(valid.ptr)[i], default=0)

figure = new_figure(8.5, 4, layout="constrained")
draw_tree(
    figure.subplots(),
    valid,
    shown,
    predicted[valid.ptr[shown] : valid.ptr[shown + 1]],
    outside=labels_of(valid, shown),
)
legend(figure)
figure

# %% [markdown]
# ## Where to go from here
#
# * `experiments.models.tree_lstm` is this network as a function of one tree, with the papers' two cells and dropout; `python -m experiments sentiment` trains it on the treebank.
# * [The next notebook](03_graphs.py) does the same for graphs, where a node waits for as many messages as it has neighbours.
