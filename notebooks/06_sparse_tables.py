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
# # Sparse tables
#
# Models of words, users or items have tables with a row for each, far larger than all else, and a batch touches a few of the rows. Training such a model on several devices as if the table were an ordinary
# variable sends all of it round after every step. **Parallax** (Kim et al., EuroSys 2019) treats the two kinds differently: dense variables are kept together by AllReduce; sparse ones live in a sharded table, of which a worker
# pulls the rows that it reads and pushes their gradients.
#
# `ampjax.parallel` does that to a *single-device* program: you give a loss function, parameters and an optax transform, as you would train them on one device. It finds out what is sparse. Here we watch it do so,
# check that the result is the single-device program's, count bytes, and look for a good number of partitions. Then a table becomes part of an AMP graph: both papers in one run.

# %%
import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")  # before JAX starts: four devices on one CPU

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax.parallel as px
from ampjax.viz import new_figure
from experiments.data import zipf  # in a clone of the repository

# %% [markdown]
# ## A single-device program
#
# Texts of 12 words; each word belongs to one of 8 topics, and the model has to tell which topic most words are of. Words follow Zipf's law, as they do in language: few are frequent, most are rare.

# %%
WORDS, DIM, TOPICS, LENGTH, BATCH = 20_000, 32, 8, 12, 64
topic_of = np.random.default_rng(0).integers(0, TOPICS, WORDS)


def batches(n, seed):
    """Batches of texts with their topics."""
    ids = zipf.tokens(n * BATCH * LENGTH, WORDS, alpha=1.0, seed=seed).reshape(n, BATCH, LENGTH)
    counts = (topic_of[ids][..., None] == np.arange(TOPICS)).sum(2)
    return [
        {"ids": i, "topic": t} for i, t in zip(ids, counts.argmax(-1).astype(np.int32), strict=True)
    ]


def loss_fn(params, batch):
    x = params["words"][batch["ids"]].mean(axis=1)
    h = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    logits = h @ params["out"]
    hits = jnp.mean(logits.argmax(-1) == batch["topic"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["topic"]).mean(), {
        "accuracy": hits
    }


def start():
    rng = np.random.default_rng(1)
    normal = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
    words = rng.normal(size=(WORDS, DIM)).astype(np.float32)
    return {
        "words": words,
        "hidden": {"w": normal(DIM, 64), "b": np.zeros(64, np.float32)},
        "out": normal(64, TOPICS),
    }


tx = optax.adam(2e-2)
train = batches(120, seed=0)

# %% [markdown]
# ## What is sparse?
#
# The loss is traced once and its operations are followed. A parameter is sparse when all its uses read whole rows, by ids that are known before the step. Nothing is computed, and no name or annotation is needed.

# %%
from ampjax.sparse import find_sparse

found = find_sparse(loss_fn, start(), train[0])
found


# %% [markdown]
# What would make the table dense? Any use as a whole. A model that ties its output layer to the table multiplies by all of it, and is told so, with the line that did it:


# %%
def tied(params, batch):
    x = params["words"][batch["ids"]].mean(axis=1)
    return jnp.mean(jax.nn.logsumexp(x @ params["words"].T, axis=-1))


print(find_sparse(tied, start(), train[0])["['words']"].reason)
assert found["['words']"].sparse and not find_sparse(tied, start(), train[0])["['words']"].sparse

# %% [markdown]
# ## Four machines
#
# Four devices, each taken for a machine of its own. On one computer the machines lie in one process, and what would travel between them is counted.

# %%
cpus = jax.devices("cpu")[:4]
resources = px.Resources(
    tuple(px.Machine(name, (cpu,)) for name, cpu in zip("abcd", cpus, strict=True))
)
runner = px.get_runner(loss_fn, start(), tx, resources)
metrics = [runner.run(batch) for batch in train]
metrics[-1]

# %% [markdown]
# `explain` says what became of each variable: `alpha` is the share of its rows that a replica touches in a step; AR and PS are the bytes that the paper's table 3 predicts for AllReduce (or AllGatherv of
# rows) and for servers; beside them what was measured, and where the variable lives.

# %%
runner.explain()

# %% [markdown]
# ## Is it the same training?
#
# The law that the library is held to: a step over all replicas equals the single-device step on the joined batch. That includes Adam's moments of rows which a step did *not* touch: under plain Adam they go on moving, so the table lets them catch up
# when they are read again.

# %%
value_and_grad = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))
params, state = start(), tx.init(start())
update = jax.jit(tx.update)
single = []
for batch in train:
    (loss, _), grads = value_and_grad(params, batch)
    updates, state = update(grads, state, params)
    params = optax.apply_updates(params, updates)
    single.append(float(loss))

hybrid = [m.loss for m in metrics]
apart = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), runner.params, params)
print("largest difference of a loss:", max(abs(a - b) for a, b in zip(single, hybrid, strict=True)))
print("largest difference of a parameter:", apart)
np.testing.assert_allclose(hybrid, single, atol=1e-4)
# after 120 steps of rounding in another order; Adam's steps are 2e-2
assert max(jax.tree.leaves(apart)) < 4e-3

# %% tags=["picture"]
figure = new_figure(6, 3.2, layout="constrained")
axes = figure.subplots()
axes.plot(single, color="#E69F00", linewidth=4, alpha=0.6, label="one device, plain optax")
axes.plot(hybrid, color="#0072B2", linewidth=1.2, label="four machines, hybrid")
axes.set(xlabel="step", ylabel="loss [nats]", ylim=(0, None))
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure

# %% [markdown]
# ## Bytes
#
# The same model in three architectures: `hybrid`, AllReduce alone (`ar`, where the rows that were read are gathered on every machine), servers alone (`ps`). Bars are what a machine sends and receives in a step, by
# variable. For comparison: the table as an ordinary variable, reduced as a whole.

# %% tags=["picture"]

sent = {}
for option in ("hybrid", "ar", "ps"):
    one = px.get_runner(loss_fn, start(), tx, resources, px.ParallaxConfig(run_option=option))
    for batch in train[:3]:
        one.run(batch)
    sent[option] = {v.path: v.measured for v in one.explain().variables}


def all_reduce_bytes(w, n):
    """Bytes of an AllReduce of `w` bytes on `n` machines, for each machine."""
    return 4 * w * (n - 1) / n


dense = sum(all_reduce_bytes(leaf.nbytes, len(cpus)) for leaf in jax.tree.leaves(start()))

figure = new_figure(7, 2.8, layout="constrained")
axes = figure.subplots()
left = np.zeros(len(sent))
for path, colour in zip(sent["hybrid"], ("#009E73", "#56B4E9", "#0072B2", "#E69F00"), strict=True):
    part = np.array([own[path] / 1e3 for own in sent.values()])
    axes.barh(list(sent), part, left=left, color=colour, label=path)
    left += part
for y, total in enumerate(left):
    axes.annotate(
        f"{total:,.0f} kB", (total, y), (4, 0), textcoords="offset points", va="center", size=9
    )
axes.invert_yaxis()
axes.set(xlabel="sent and received by a machine in a step [kB]", xlim=(0, 1.12 * left.max()))
axes.set_title(
    f"the table as an ordinary variable would make it {dense / 1e3:,.0f} kB",
    fontsize=10,
    loc="left",
)
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside right upper", frameon=False, fontsize=9)
figure

# %% [markdown]
# Dense variables cost the same bytes either way, 4·w·(N−1)/N for N machines; AllReduce spreads them evenly by itself. Here w are the variable's bytes, and α is the part of its rows that a step reads. Rows at servers cost 4·α·w·(N−1)/N; gathered everywhere 2·α·w·(N−1), more the more machines there are, and as often as they occur: the bar of `ar` is longer than the formula says, since nobody merges rows that occur twice.

# %%
totals = {option: sum(own.values()) for option, own in sent.items()}
assert totals["hybrid"] < totals["ar"] < dense / 10
assert totals["hybrid"] < 1.05 * totals["ps"]

# %% [markdown]
# How much a table of a given size costs on given machines depends on alpha alone. Alpha grows with the batch, and slowly, since frequent words repeat: a row that several examples (or several replicas of a machine) read travels to and from its server once. Above `alpha_threshold` the runner keeps a table dense.

# %% tags=["picture"]
n_words = 2 ** np.arange(6, 19)
figure = new_figure(9, 3.4, layout="constrained")
touched, cost = figure.subplots(1, 2)
for exponent, colour, marker in zip(
    (0.0, 0.7, 1.0, 1.3), ("#0072B2", "#E69F00", "#009E73", "#D55E00"), "osD^", strict=True
):
    text = zipf.tokens(int(n_words[-1]), WORDS, alpha=exponent, seed=0)
    alphas = [len(np.unique(text[:n])) / WORDS for n in n_words]
    touched.plot(n_words, alphas, color=colour, marker=marker, markersize=4, label=f"{exponent:g}")
touched.set(
    xscale="log", xlabel="words in a replica's batch", ylabel="alpha: share of rows touched"
)
touched.legend(title="Zipf's exponent", frameon=False, fontsize=8)
alphas = np.linspace(0, 1, 50)
w = WORDS * DIM * 4
for n, style in ((2, "-"), (8, "--")):
    cost.plot(
        alphas,
        alphas * all_reduce_bytes(w, n) / 1e6,
        style,
        color="#E69F00",
        label=f"table at servers, {n} machines",
    )
    cost.axhline(
        all_reduce_bytes(w, n) / 1e6,
        linestyle=style,
        color="#0072B2",
        label=f"AllReduce, {n} machines",
    )
cost.set(
    xlabel="alpha",
    ylabel="bytes of a machine in a step [MB]",
    ylim=(0, 1.5 * all_reduce_bytes(w, 8) / 1e6),
)
cost.legend(loc="upper left", ncols=2, frameon=False, fontsize=7.5)
for axes in (touched, cost):
    axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# ## How many partitions?
#
# A table can be split: parts are updated in parallel, and each part costs something. Parallax models a step's time as θ₀ + θ₁/P + θ₂·P, tries a few numbers while training goes on, fits the three and takes the best. Times here are those of the machine that runs this
# notebook, where parts have few cores to share, so it will hardly want many.

# %% tags=["picture"]
from ampjax.viz import partition_search

searching = px.ParallaxConfig(
    search_partitions=True, sample=px.SampleTimes(iterations=12, discarded=6)
)
searcher = px.get_runner(loss_fn, start(), tx, resources, searching)
steps = 0
while not searcher.searches:
    searcher.run(train[steps % len(train)])
    steps += 1
print(f"after {steps} steps: {searcher.searches[0]}")
partition_search(searcher.searches)

# %% [markdown]
# ## The table by itself
#
# `ampjax.sparse.Table` can be used alone: `pull` rows, `push` gradients. Its two modes differ in what becomes of rows that nobody touches. With Adam, plain optax moves *all* rows after every step, as long as their momentum lasts. `faithful` rows do the same, only later: they catch up when they
# are next read. `lazy` rows stay where they are, as in other frameworks' sparse optimizers. A row that is touched at the steps 0 and 20:

# %% tags=["picture"]
from ampjax.sparse import Table

adam = optax.adam(0.1)
tables = {
    mode: Table(np.ones((8, 1), np.float32), adam, mode=mode) for mode in ("faithful", "lazy")
}
rows, moments = jnp.ones((8, 1)), adam.init(jnp.ones((8, 1)))
seen = {"plain optax, dense": [], "faithful": [], "lazy": []}
for step in range(40):
    ids = [3] if step in (0, 20) else [5]
    for mode, table in tables.items():
        table.push(ids, np.ones((1, 1), np.float32))
        seen[mode].append(float(table.pull([3])[0, 0]))
    updates, moments = adam.update(jnp.zeros((8, 1)).at[ids[0]].set(1.0), moments, rows)
    rows = optax.apply_updates(rows, updates)
    seen["plain optax, dense"].append(float(rows[3, 0]))

figure = new_figure(6.5, 3.2, layout="constrained")
axes = figure.subplots()
axes.plot(
    seen["plain optax, dense"], color="#E69F00", linewidth=5, alpha=0.6, label="plain optax, dense"
)
axes.plot(seen["faithful"], color="#0072B2", linewidth=1.4, label="faithful")
axes.plot(seen["lazy"], color="#D55E00", linestyle="--", linewidth=1.4, label="lazy")
axes.set(xlabel="step", ylabel="the row's value")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure

# %%
np.testing.assert_allclose(seen["faithful"], seen["plain optax, dense"], atol=1e-5)
assert abs(seen["lazy"][-1] - seen["faithful"][-1]) > 0.05

# %% [markdown]
# ## Both papers in one run
#
# So far every text had 12 words, so that a batch was an array. In an AMP graph texts may have any length: each is a message, workers compute what has arrived, and nodes update by themselves (notebooks 1 to 4). A node of such a graph may have a table
# for its parameters. `TableEmbed` pulls the rows that its messages ask for, and pushes their gradients when the node's update is due.
#
# `ag.replicate` copies the whole network, each copy on a worker of its own. So one run is both: dense layers in copies that are averaged, asynchronous training in between, and one table in host memory whose rows all copies pull. (Here the two workers share a device, so that kernels are compiled once.)

# %%
import ampjax as amp
import ampjax.graphs as ag

text_rows = np.random.default_rng(1).normal(size=(WORDS, DIM)).astype(np.float32)


def texts(n, seed):
    """Texts of 4 to 20 words, with their topics."""
    lengths = np.random.default_rng(seed).integers(4, 21, n)
    ids = np.split(
        zipf.tokens(int(lengths.sum()), WORDS, alpha=1.0, seed=seed), np.cumsum(lengths)[:-1]
    )
    topics = [np.bincount(topic_of[words], minlength=TOPICS).argmax() for words in ids]
    return [
        {"text": words, "topic": np.int32(topic)} for words, topic in zip(ids, topics, strict=True)
    ]


def mean(rows, segment_ids, n):
    counts = jax.ops.segment_sum(jnp.ones(len(rows)), segment_ids, n)
    return jax.ops.segment_sum(rows, segment_ids, n) / jnp.maximum(counts, 1)[:, None]


def cross_entropy(logits, topic):
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, topic)
    return loss, {"accuracy": logits.argmax() == topic}


INTERVAL = 8
hidden, out = amp.nn.Linear(DIM, 64), amp.nn.Linear(64, TOPICS)


def copies(table, n):
    """Several whole networks whose words are rows of one table."""
    embed = amp.nn.TableEmbed(table)

    def network(text, topic):
        # Twelve words make a text, on average: words and layers update about as often.
        rows = ag.ppt("words", embed, min_update_interval=12 * INTERVAL)(text)
        h = ag.ppt("hidden", hidden, min_update_interval=INTERVAL)(ag.reduce("mean", mean, rows))
        logits = ag.ppt("out", out, min_update_interval=INTERVAL)(ag.npt("relu", jax.nn.relu)(h))
        ag.loss("cross_entropy", cross_entropy)(logits, topic)

    with ag.Graph() as graph:
        text = ag.pump("text", dtype="int32", ragged=True)
        ag.replicate(network, n)(text, ag.pump("topic", dtype="int32"))
    return graph


# %% tags=["picture"]
words = Table(text_rows, optax.adagrad(0.3), partitions=4)
copied = copies(words, 2)
copied

# %% [markdown]
# The table has an optimizer of its own, Adagrad on the rows that are touched. The layers' optimizer is the trainer's. `explain` says what became of the parameters. Staleness counts versions: of the table, whose updates come from both copies, and of each copy of a layer.

# %%
some = texts(600, seed=0)
small = {"workers": 2, "devices": jax.devices()[:1], "max_dispatch_size": 8}
trainer = amp.Trainer(copied, optax.adam(5e-3), max_active_keys=32, **small)
history = trainer.fit(some, epochs=4, progress=False)
print(
    f"accuracy in epoch 1: {history[0].train['accuracy']:.2f}, in epoch 4: {history[-1].train['accuracy']:.2f}"
)
trainer.explain()

# %%
parts = trainer.explain()
assert (
    parts["words"].in_host_memory and parts["words"].copies == 1 and len(parts["words"].nodes) == 2
)
assert parts["hidden"].copies == 2 and parts["hidden"].workers == (0, 1)
assert parts["words"].staleness_mean > parts["hidden"].staleness_mean
assert trainer.device_bytes["params"] < words.dense().nbytes / 100  # layers alone are on devices
assert history[-1].train["accuracy"] > history[0].train["accuracy"] + 0.1

# %% [markdown]
# A copy's layers and its loss run as one kernel, forward and backward: nothing can happen in between, so their gradients are fresh. Rows of the table are pulled when a text enters and updated when its gradient is back. By then both copies may have updated them. The more texts are in flight, the staler their gradients get. A simulation,
# which computes nothing, counts it for other numbers of texts, and for one network in place of two:

# %% tags=["picture"]
in_flight = (1, 4, 16, 64)
figure = new_figure(6, 3.2, layout="constrained")
axes = figure.subplots()
for n, colour, marker in ((1, "#0072B2", "s"), (2, "#E69F00", "o")):
    stale = []
    for most in in_flight:
        run = amp.simulate(copies(words, n), some[:300], workers=n, max_active_keys=most)
        stale.append(run.stats.nodes["words" if n == 1 else "words/0"].staleness_mean)
    axes.plot(
        in_flight,
        stale,
        marker=marker,
        color=colour,
        label="two copies" if n == 2 else "one network",
    )
    assert stale[0] == 0 and stale == sorted(stale)
axes.set(xlabel="texts in flight", ylabel="mean staleness of rows [versions]", ylim=(0, None))
axes.set_xscale("log", base=2)
axes.set_xticks(in_flight, [str(most) for most in in_flight])
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure

# %% [markdown]
# How many texts are in flight matters more than how many copies share the rows.
#
# And synchronously? In the mode `pipeline` all nodes are updated after a round, and `("every_k", 1)` gives both copies the same step each time. Then nothing is stale, and the two copies train as a single program does. With plain SGD on sums, a round moves each layer by the learning rate times the gradient of all texts, whichever copy computed them,
# and the table by the sum of all rows' gradients:

# %%
few, rounds = texts(16, seed=3), 5
shared = Table(text_rows, optax.sgd(0.3))
together = amp.Trainer(
    copies(shared, 2),
    optax.sgd(0.02),
    mode="pipeline",
    max_active_keys=len(few),
    gradient="sum",
    replica_sync=("every_k", 1),
    **small,
)
layers = {name: together.params[f"{name}/0"] for name in ("hidden", "out")}
together.fit(few, epochs=rounds, progress=False)

ids = np.zeros((len(few), 20), np.int32)  # the same texts, padded
n_words = np.array([len(one["text"]) for one in few])
for row, one in zip(ids, few, strict=True):
    row[: len(one["text"])] = one["text"]
is_word = np.arange(20) < n_words[:, None]
topics = np.array([one["topic"] for one in few])


def total(params):
    """The sum of the losses, in plain JAX."""
    linear = lambda name, x: x @ params[name]["w"] + params[name]["b"]
    x = jnp.sum(params["words"][ids] * is_word[..., None], axis=1) / n_words[:, None]
    logits = linear("out", jax.nn.relu(linear("hidden", x)))
    return optax.softmax_cross_entropy_with_integer_labels(logits, topics).sum()


plain, gradient = {"words": jnp.asarray(text_rows), **layers}, jax.jit(jax.grad(total))
rates = {"words": 0.3, "hidden": 0.02, "out": 0.02}
for _ in range(rounds):
    grads = gradient(plain)
    plain = {
        name: jax.tree.map(lambda p, g, r=rates[name]: p - r * g, plain[name], grads[name])
        for name in plain
    }

moved = float(np.abs(shared.dense() - text_rows).max())
apart = float(np.abs(shared.dense() - plain["words"]).max())
print(
    f"after {rounds} rounds rows have moved by up to {moved:.2f}; largest difference to the single program: {apart:.1e}"
)
assert moved > 0.1 and apart < 1e-5
for name in layers:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        together.params[f"{name}/1"],
        plain[name],
    )
assert shared.version == rounds and together.explain()["words"].staleness_max == 0

# %% [markdown]
# ## Saving and going on
#
# `save` writes all parameters, tables and optimizer state, with checksums; `restore` checks them before anything changes. The runner that goes on here has its servers in processes of their own: the numbers are the same.

# %%
with tempfile.TemporaryDirectory() as folder:
    runner.save(Path(folder) / "model")
    with px.get_runner(
        loss_fn, start(), tx, resources, px.ParallaxConfig(server_processes=True)
    ) as other:
        other.restore(Path(folder) / "model")
        again = [other.run(batch).loss for batch in train[:5]]
assert again == [runner.run(batch).loss for batch in train[:5]]
print("five steps after the restore, bit for bit:", again)

# %% [markdown]
# ## A flax.nnx model
#
# A module is split before it is handed over, so that only what has gradients is a parameter; the rest (random states, batch statistics) is closed over. What was trained goes back into the module.

# %%
from flax import nnx


class Topics(nnx.Module):
    """The linear part of the model as a module."""

    def __init__(self, rngs):
        self.words = nnx.Embed(WORDS, DIM, rngs=rngs)
        self.out = nnx.Linear(DIM, TOPICS, rngs=rngs)

    def __call__(self, ids):
        return self.out(self.words(ids).mean(axis=1))


model = Topics(nnx.Rngs(0))
graphdef, variables, rest = nnx.split(model, nnx.Param, ...)


def module_loss(params, batch):
    logits = nnx.merge(graphdef, params, rest)(batch["ids"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["topic"]).mean()


module_runner = px.get_runner(module_loss, variables, tx, resources)
print(module_runner.run(train[0]))
nnx.update(model, module_runner.params)
module_runner.explain()

# %%
unseen = batches(10, seed=99)
params = runner.params
accuracy = np.mean([value_and_grad(params, batch)[0][1]["accuracy"] for batch in unseen])
print(f"accuracy on new texts: {accuracy:.2f}; guessing: {1 / TOPICS:.2f}")
assert accuracy > 0.35

# %% [markdown]
# ## Where to go from here
#
# * `ParallaxConfig` has the rest: bounded staleness (`sync=False`), bfloat16 on the wire, tables larger than memory, checkpoints.
# * `experiments.models` has the language model and the translation models of the Parallax paper as single-device programs.
# * [The last notebook](07_bring_your_own_model.py) goes back to messages.
