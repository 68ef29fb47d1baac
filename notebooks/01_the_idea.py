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
# Such models are hard to batch. With **ampjax** you write the model as a JAX function of *one* example. It becomes a *static* graph of nodes, and
# many examples flow through it at once, as messages (AMPNet, [arXiv:1705.09786](https://arxiv.org/abs/1705.09786)). Each parameterised node updates
# itself whenever it has gathered enough gradients; nothing waits for a whole batch.
#
# Here we write the recurrent network of the paper's figure 2, look at what it becomes, watch a message, train it, and check its gradients.
#
# ## A task: list reduction
#
# A sequence is an operation followed by 1 to 9 digits; the answer is a digit. Token 13 asks for the length of the list.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
from experiments.data import list_reduction  # in a clone of the repository


def examples(data):
    return [
        {"tokens": tokens[:length], "label": label}
        for tokens, length, label in zip(data.tokens, data.lengths, data.labels, strict=True)
    ]


train, valid = (examples(part) for part in list_reduction.splits(3000, 500, seed=0))
for example in train[:3]:
    print("tokens", example["tokens"].tolist(), "-> answer", example["label"])

# %% [markdown]
# ## The model
#
# A function of the parameters and one example, which gives the loss. `amp.scan` is like `jax.lax.scan`, over as many steps as the example has tokens.

# %%
WIDTH = 32


def linear(p, x):
    return x @ p["w"] + p["b"]


def rnn(params, example):
    def cell(h, token):
        return jax.nn.relu(
            linear(params["cell"], jnp.concatenate([params["embed"][token], h]))
        ), None

    h, _ = amp.scan(cell, jnp.zeros(WIDTH), example["tokens"])
    logits = linear(params["output"], h)
    amp.output("logits", logits)
    return optax.softmax_cross_entropy_with_integer_labels(logits, example["label"])


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "embed": jax.random.normal(keys[0], (14, WIDTH)),
    "cell": amp.nn.Linear(2 * WIDTH, WIDTH).init(keys[1]),
    "output": amp.nn.Linear(WIDTH, 10).init(keys[2]),
}

# %% [markdown]
# It is plain JAX. Call it, put `print` into it, differentiate it:

# %%
print("loss", rnn(params, train[0]))
print("gradient of a bias", jax.grad(rnn)(params, train[0])["output"]["b"].round(2))

# %% [markdown]
# ## What it compiles to
#
# `amp.compile` traces the function once. The *spec* says what an example looks like: `t` is a length that each example has of its own.

# %% tags=["picture"]
compiled = amp.compile(rnn, params, {"tokens": "int32[t]", "label": "int32[]"})
compiled.graph

# %% [markdown]
# A message carries a **payload** (floats, which stay on the device) and a **state** (a few integers). The compiler found out that the states need two fields: `t_i`, the step, and `t_n`, the
# length. Control nodes read states only: a `Relabel` counts `t_i` up, a `Cond` sends the message round again or out, and a `Phi` is where the two ways into the loop meet. The parameters' three keys are
# three `PPT`s, *parameterised payload transforms*, each of which updates itself.
#
# The same as text, and which line each node comes from:

# %%
print(compiled.graph)
compiled.explain(train[:64])

# %% [markdown]
# ## Is the gradient right?
#
# Before training anything, ask. `verify` runs a few examples through the engine under several schedules (one message at a time, many coalesced,
# two workers) and compares loss and every gradient with `jax.grad`.

# %%
few = compiled.data(train[:6])
verdict = amp.verify(compiled.graph, few)
print(str(verdict).splitlines()[0])
assert verdict

# %% [markdown]
# ## Training
#
# `max_active_keys` examples are in flight at once. A node updates itself after `min_update_interval` gradient rows: no step is global, so a
# gradient may meet parameters that have moved on since its forward pass. That is its *staleness*, counted in updates.

# %%
trainer = amp.Trainer(compiled.graph, optax.adam(3e-3), max_active_keys=64, min_update_interval=100)
train_data, valid_data = compiled.data(train), compiled.data(valid)
history = trainer.fit(train_data, valid_data, epochs=4, progress=False)
history

# %% tags=["picture"]
from ampjax.viz import convergence

convergence({"64 examples in flight": history.records()}, metric="valid_loss")

# %% [markdown]
# What happened, node by node: how many messages went through each stage, how many at a time, how stale the gradients were. A stage is what runs as
# one kernel: `embed` and `cell` were fused, because everything between them stays inside.

# %%
trainer.fit(train_data, epochs=1, progress=False)
print(trainer.statistics)

# %% [markdown]
# And the story of one example, from its first token to its last gradient. Its messages went in dispatches with those of others.

# %%
trainer.accumulate(few)
# The story has all instances that had this number lately; the last one begins with the last first step.
story = trainer.story(0)
begin = max(i for i, line in enumerate(story) if "forward" in line and "t_i=0" in line)
print("\n".join(story[begin:]))

# %% [markdown]
# What has it learnt? `predict` gives what the model told by `amp.output`, a row for each example.

# %%
answers = trainer.predict(valid_data)["logits"].payload.argmax(-1)
accuracy = np.mean(answers == [example["label"] for example in valid])
print(f"validation accuracy after 5 short epochs: {accuracy:.2f}; guessing: 0.10")
assert accuracy > 0.3

# %% [markdown]
# The trained parameters go back into the function:

# %%
trained = compiled.params(trainer.params)
few_losses = [float(rnn(trained, example)) for example in valid[:20]]
assert np.mean(few_losses) < np.mean([float(rnn(params, example)) for example in valid[:20]])

# %% [markdown]
# ## Asynchrony, seen
#
# The same scheduler also runs in *virtual time*, on a machine that you do not have: here a perceptron of four layers on four workers, each a device
# of 10¹² operations a second. The charts are the paper's figure 1, on one time axis: forward orange, backward blue; the numbers are batches of examples.
#
# * Synchronous: one batch, then an update of every node. Three workers wait for the fourth.
# * Pipeline: six batches in flight, then an update of every node. Workers wait at both ends of a round.
# * Asynchronous: six batches in flight, and every node updates itself as soon as it has a gradient. Nobody waits for the end of a round.

# %% tags=["picture"]
from ampjax.viz import gantt
from experiments.data.mnist import Batches, synthetic
from experiments.models import mlp

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
        layers,
        batches,
        workers=4,
        max_dispatch_size=1,
        policy="backward_first",
        trace=traces[name],
        **way,
    )
    print(f"{name}: {runs[name]}")
assert runs["Synchronous"].seconds > runs["Pipeline"].seconds > runs["Asynchronous"].seconds
gantt(traces, title="Twelve batches on four workers")

# %% [markdown]
# ## Where to go from here
#
# * `mode="sync"` and `mode="pipeline"` train the same graph with synchronous updates; compare the accuracy and the speed.
# * `amp.graphs.replicate(amp.graphs.ppt(...), n=4)` makes four copies of a heavy node that share its work; a function from wires to wires in place of the node copies all that it builds.
# * Branches, trees, loops that a computed number ends: the guide *Models as functions*, and [the last notebook](07_bring_your_own_model.py).
# * A graph can also be written node by node; [the next notebook](02_trees.py) does so for trees.
