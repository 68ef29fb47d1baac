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
# # The idea in 15 minutes
#
# Some networks decide while they run: a recurrent network takes as many steps as its sequence is long, a tree network follows the tree.
# Such models are hard to batch. **ampjax** writes the model as a *static* graph of nodes and lets many examples flow through it at once, as
# messages (AMPNet, [arXiv:1705.09786](https://arxiv.org/abs/1705.09786)). Each parameterised node updates itself whenever it has
# gathered enough gradients; nothing waits for a whole batch.
#
# Here we build the recurrent network of the paper's figure 2, look at it, watch a message, train it, and check its gradients.
#
# ## A task: list reduction
#
# A sequence is an operation followed by 1 to 9 digits; the answer is a digit. Token 13 asks for the length of the list.

# %%
import jax
import numpy as np
import optax

import ampjax as amp
from ampjax.data import list_reduction

train, valid = (list_reduction.Sequences(part, hidden=32) for part in list_reduction.splits(3000, 500, seed=0))
for i in range(3):
    length = int(train.data.lengths[i])
    print("tokens", train.data.tokens[i, :length].tolist(), "-> answer", int(train.data.labels[i]))

# %% [markdown]
# ## The graph
#
# A message carries a **payload** (floats, which stay on the device) and a **state** (a few integers, here the step `t` and the `length`).
# Control nodes read states only: `isu` counts `t` up, `cond` sends the message round again or out. Everything is checked when the graph is
# built; a mistake names the node, the port, what was expected, what came, and what to do.

# %% tags=["picture"]
with amp.Graph() as g:
    tokens = amp.pump("tokens", dtype="int32", fields=("t", "length"))
    h0 = amp.pump("h0", shape=(32,), fields=("t", "length"))
    label = amp.pump("label", dtype="int32")
    h = amp.phi("h")  # the loop variable; connected below
    x = amp.ppt("embed", amp.nn.Embed(14, 32))(tokens)
    z = amp.npt("relu", jax.nn.relu)(amp.ppt("linear1", amp.nn.Linear(64, 32))(amp.concat(x, h)))
    z = amp.isu(z, lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1))
    more, done = amp.cond(z, lambda s: s.t < s.length)
    h.connect(h0, more)
    logits = amp.ppt("linear2", amp.nn.Linear(32, 10))(done)
    amp.sink("logits", logits)
    amp.loss("xent", optax.softmax_cross_entropy_with_integer_labels, join=("instance",))(logits, label)

g

# %% [markdown]
# The same as text:

# %%
print(g)

# %% [markdown]
# ## Is the gradient right?
#
# Before training anything, ask. `verify` runs a few examples through the engine under several schedules (one message at a time, many coalesced,
# two workers) and compares loss and every gradient with `jax.grad` of the composed function.

# %%
few = list_reduction.Sequences(list_reduction.generate(6, seed=1), hidden=32)
verdict = amp.verify(g, few)
print(str(verdict).splitlines()[0])
assert verdict

# %% [markdown]
# ## Training
#
# `max_active_keys` examples are in flight at once. A node updates itself after `min_update_interval` gradient rows: no step is global, so a
# gradient may meet parameters that have moved on since its forward pass. That is its *staleness*, counted in updates.

# %%
trainer = amp.Trainer(g, optax.adam(3e-3), max_active_keys=64, min_update_interval=100)
history = trainer.fit(train, valid, epochs=4, progress=False)
history

# %% tags=["picture"]
from ampjax.viz import convergence

convergence({"64 examples in flight": history.records()}, metric="valid_loss")

# %% [markdown]
# What happened, node by node: how many messages went through each stage, how many at a time, how stale the gradients were. A stage is what runs as
# one kernel: `embed`, `concat`, `linear1` and `relu` were fused, because everything between them stays inside.

# %%
trainer.fit(train, epochs=1, progress=False)
print(trainer.statistics)

# %% [markdown]
# And the story of one example, from its first token to its last gradient. Its messages went in dispatches with those of others.

# %%
trainer.accumulate(few)
story = trainer.story(0)  # of all instances that had this number lately: the last one's begins with its last first step
begin = max(i for i, line in enumerate(story) if "forward" in line and "t=0" in line)
print("\n".join(story[begin:]))

# %% [markdown]
# What has it learnt? `predict` gives what arrives at the sinks.

# %%
accuracy = np.mean(trainer.predict(valid)["logits"].payload.argmax(-1) == valid.data.labels)
print(f"validation accuracy after 5 short epochs: {accuracy:.2f}; guessing: 0.10")
assert accuracy > 0.3

# %% [markdown]
# ## Asynchrony, seen
#
# The same scheduler also runs in *virtual time*, on a machine that you don't own: here a perceptron of four layers on four workers, each a device
# of 10¹² operations a second. The charts are the paper's figure 1, on one time axis: forward orange, backward blue; the numbers are batches of examples.
#
# * Synchronous: one batch, then an update of every node. Three workers wait for the fourth.
# * Pipeline: six batches in flight, then an update of every node. Workers wait at both ends of a round.
# * Asynchronous: six batches in flight, and every node updates itself as soon as it has a gradient. Nobody waits for the end of a round.

# %% tags=["picture"]
from ampjax.data.mnist import Batches, synthetic
from ampjax.models import mlp
from ampjax.viz import gantts

layers = mlp((784, 784, 784, 784, 10), 100)
batches = Batches(synthetic(1200, 100)[0], 100)
ways = {
    "Synchronous": {"mode": "sync"},
    "Pipeline": {"mode": "pipeline", "max_active_keys": 6},
    "Asynchronous": {"mode": "async", "max_active_keys": 6},
}
traces = {name: amp.Trace() for name in ways}
runs = {}
for name, way in ways.items():
    runs[name] = amp.simulate(
        layers, batches, workers=4, max_dispatch_size=1, policy="backward_first", trace=traces[name], **way
    )
    print(f"{name}: {runs[name]}")
assert runs["Synchronous"].seconds > runs["Pipeline"].seconds > runs["Asynchronous"].seconds
gantts(traces, title="Twelve batches on four workers")

# %% [markdown]
# ## Where to go from here
#
# * `mode="sync"` and `mode="pipeline"` train the same graph with synchronous updates; compare the accuracy and the speed.
# * `amp.replicate(amp.ppt(...), n=4)` makes four copies of a heavy node that share its work; a function from wires to wires in place of the node copies all that it builds.
# * `group`, `ungroup`, `flatmap`, `distribute` and `collect` build graphs; [the next notebook](02_trees.py) is about trees.
