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
# # Bring your own model
#
# A model is a JAX function of the parameters and *one* example. What runs may depend on the example, and on what the model computes.
#
# Here is one that is awkward with padded arrays: a classifier that **decides by itself how long to think**. A block refines a hidden state; if the classifier is sure enough, the example leaves, else
# it goes round again. We write it, check it, train it, see where it thinks longer, make mistakes on purpose, and save it.

# %%
import tempfile
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import ampjax as amp
from ampjax.viz import new_figure

# %% [markdown]
# ## Data of your own
#
# An example is plain data: dictionaries, tuples, arrays, numbers. A data set is a list of them. Three arms of a spiral:

# %%
N_CLASSES, COLOURS = 3, ("#0072B2", "#E69F00", "#009E73")


def spiral(n, seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, N_CLASSES, n)
    along = np.sqrt(rng.random(n))
    angle = 2 * np.pi * label / N_CLASSES + 4.5 * along + rng.normal(scale=0.12, size=n)
    return (along[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)).astype(
        np.float32
    ), label.astype(np.int32)


def examples(points, labels):
    return [{"x": point, "label": label} for point, label in zip(points, labels, strict=True)]


points, labels = spiral(800, seed=0)
train, valid = examples(points, labels), examples(*spiral(128, seed=1))

# %% tags=["picture"]
figure = new_figure(3.8, 3.8, layout="constrained")
axes = figure.subplots()
for c, colour in enumerate(COLOURS):
    axes.scatter(*points[labels == c].T, s=6, color=colour, label=f"class {c}")
axes.set(aspect="equal", xlabel="first coordinate", ylabel="second coordinate")
axes.legend(frameon=False, markerscale=2, loc="upper right", fontsize=8)
figure

# %% [markdown]
# ## Layers
#
# Any function of JAX will do. Here are three `flax.nnx` modules. `nnx.split` parts a module into what it is and its parameters.

# %%
WIDTH, MOST, SURE = 32, 6, 0.95


class Block(nnx.Module):
    """Refines a hidden state."""

    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, h):
        return h + self.down(jax.nn.relu(self.up(self.norm(h))))


modules = {
    "lift": nnx.Linear(2, WIDTH, rngs=nnx.Rngs(2)),
    "block": Block(nnx.Rngs(0)),
    "head": nnx.Linear(WIDTH, N_CLASSES, rngs=nnx.Rngs(1)),
}
split = {name: nnx.split(module, nnx.Param) for name, module in modules.items()}
params = {name: state for name, (_, state) in split.items()}


def apply(name, params, x):
    return nnx.merge(split[name][0], params[name])(x)


# %% [markdown]
# ## The model
#
# `amp.while_loop` runs its body as long as its test holds. Most control flow follows from the example alone and never waits for a device. This test depends on a *number that was computed*; `amp.read` says that it is to be
# read back. Nobody waits alone: examples that go round again do so together.


# %%
def thinker(params, example):
    def unsure(carry):
        return amp.read(carry["unsure"])

    def think(carry):
        h = apply("block", params, carry["h"])
        logits = apply("head", params, h)
        sure = jax.nn.softmax(logits).max() >= SURE
        return {"h": h, "logits": logits, "unsure": ~sure, "rounds": carry["rounds"] + 1}

    h = apply("lift", params, example["x"])
    begin = {"h": h, "logits": jnp.zeros(N_CLASSES), "unsure": True, "rounds": 0.0}
    end = amp.while_loop(unsure, think, begin, most=MOST)
    amp.output("class", end["logits"])
    amp.output("rounds", end["rounds"])
    hit = end["logits"].argmax() == example["label"]
    loss = optax.softmax_cross_entropy_with_integer_labels(end["logits"], example["label"])
    return loss, {"accuracy": hit}


# %% [markdown]
# It runs as it is, on one example, and `jax.grad` differentiates it: debug it here, with `print`.

# %%
(loss, metrics), gradient = jax.value_and_grad(thinker, has_aux=True)(params, train[0])
print(f"loss {loss:.3f}, a hit: {metrics['accuracy']}, gradients of {sorted(gradient)}")

# %% [markdown]
# Compiled, it is a graph. `most` bounds the loop, so that memory can be sized before anything is computed.

# %% tags=["picture"]
compiled = amp.compile(thinker, params, {"x": "float32[2]", "label": "int32[]"})
train_data, valid_data = compiled.data(train), compiled.data(valid)
compiled.graph

# %% [markdown]
# ## Is it right?
#
# `verify` runs the graph and compares with `jax.grad`, with every example's own number of rounds; without `quick=True` under several schedules.

# %%
verdict = amp.verify(compiled.graph, compiled.data(train[:2]), quick=True)
verdict

# %%
assert verdict

# %% [markdown]
# ## Training
#
# Rounds differ, so instances enter together and travel in step (`min_admission`, `wavefront`): that fills dispatches, and the device is waited for once for many.
#
# In Jupyter an event loop is running already. Both `trainer.fit(...)` and `await trainer.fit_async(...)` work; the second leaves the loop free for other things, such as widgets. A callback is called after each epoch and may end the training. What comes first, a payload that is read or an instance that has ended, differs from run to run, and so do the accuracies.

# %%
trainer = amp.Trainer(
    compiled.graph,
    optax.adam(2e-3),
    max_active_keys=64,
    min_admission=32,
    max_dispatch_size=32,
    min_update_interval=64,
    policy="wavefront",
)
rounds = []


def count_rounds(trainer, epoch):
    rounds.append(trainer.predict(valid_data)["rounds"].payload.mean())
    return epoch.valid["accuracy"] > 0.95


history = await trainer.fit_async(  # noqa: F704
    train_data, valid_data, epochs=20, callbacks=[count_rounds], progress=False
)
history

# %% tags=["picture"]
figure = new_figure(7.6, 2.6, layout="constrained")
left, right = figure.subplots(1, 2)
epochs = range(1, len(history) + 1)
left.plot(
    epochs,
    [epoch.valid["accuracy"] for epoch in history],
    marker="o",
    markersize=3,
    color=COLOURS[0],
)
right.plot(epochs, rounds, marker="o", markersize=3, color=COLOURS[0])
left.set(xlabel="epoch", ylabel="validation accuracy", ylim=(0, 1))
right.set(xlabel="epoch", ylabel="mean rounds of thinking", ylim=(0, MOST + 0.3))
figure

# %%
print("mean rounds of thinking after each epoch:", np.round(rounds, 2))
assert max(epoch.valid["accuracy"] for epoch in history) > 0.85
assert rounds[-1] < MOST

# %% [markdown]
# ## Where it thinks longer
#
# Every point of the plane through the trained model. On the left what it says; on the right how many rounds it took: more along the borders between classes.

# %% tags=["picture"]
side = np.linspace(-1.15, 1.15, 56, dtype=np.float32)
plane = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
no_labels = np.zeros(len(plane), np.int32)  # `predict` does not read them
answers = trainer.predict(compiled.data(examples(plane, no_labels)))
thought = answers["rounds"].payload
image = lambda values: values.reshape(len(side), len(side))

figure = new_figure(9, 4.0, layout="constrained")
left, right = figure.subplots(1, 2, sharey=True)
place = {"origin": "lower", "extent": (-1.15, 1.15, -1.15, 1.15)}
from matplotlib.colors import BoundaryNorm, ListedColormap

left.imshow(
    image(answers["class"].payload.argmax(-1)), cmap=ListedColormap(COLOURS), alpha=0.45, **place
)
for c, colour in enumerate(COLOURS):
    left.scatter(*points[labels == c].T, s=3, color=colour)
left.set_title("class", fontsize=10)
steps = right.imshow(
    image(thought), cmap="cividis", norm=BoundaryNorm(np.arange(0.5, MOST + 1), 256), **place
)
figure.colorbar(steps, ax=right, ticks=range(1, MOST + 1), label="rounds")
right.set_title("rounds of thinking", fontsize=10)
left.set(xlabel="first coordinate", ylabel="second coordinate")
right.set(xlabel="first coordinate")
figure

# %%
assert thought.max() > thought.min()

# %% [markdown]
# ## Mistakes
#
# Errors come as early as they can, and have four parts: where, what was expected, what came, what to do. Most are found while the model is compiled, and name your line:

# %%
from ampjax.errors import AmpError


def told(what, attempt):
    """Does what is wrong, and prints what is said."""
    try:
        attempt()
    except AmpError as error:
        print(what)
        lines = f"{type(error).__name__}: {error}\n".splitlines()
        print(
            textwrap.indent("\n".join(textwrap.fill(line, 95) for line in lines), "    "),
            end="\n\n",
        )
    else:
        raise AssertionError(f"{what}: nothing was said")


SPEC = {"xs": "float32[t,2]", "ys": "float32[u,2]"}
SMALL = {"a": np.ones((2, 2), np.float32), "b": np.ones((2, 2), np.float32)}


def compiling(model):
    return lambda: amp.compile(model, SMALL, SPEC)


told("An operation on a whole sequence.", compiling(lambda p, s: (s["xs"] @ p["a"]).sum()))
told(
    "Sequences of two lengths.",
    compiling(lambda p, s: amp.map(lambda x, y: x @ p["a"] @ y, s["xs"], s["ys"])),
)
told(
    "A carry that changes its shape.",
    compiling(
        lambda p, s: amp.scan(lambda h, x: (x @ p["a"], None), jnp.zeros(3), s["xs"])[0].sum()
    ),
)
told("One operation with parameters of two nodes.", compiling(lambda p, s: (p["a"] @ p["b"]).sum()))
told(
    "A choice that depends on parameters, without `amp.read`.",
    compiling(
        lambda p, s: amp.cond((amp.sum(s["xs"]) @ p["a"]).sum() > 0, lambda: 1.0, lambda: 2.0)
    ),
)

# %% [markdown]
# Others only when data come:

# %%
before = trainer.evaluate(valid_data)["accuracy"]
data = lambda *examples: lambda: compiled.data(examples)
told("A vector of another length.", data(train[0], {"x": [1.0, 2.0, 3.0], "label": 0}))
told("A label left out.", data(train[0], {"x": [1.0, 2.0]}))
told("A label that is no integer.", data({"x": [1.0, 2.0], "label": 0.5}))
told(
    "Parameters that are not finite.",
    lambda: trainer.set_params({"lift": jax.tree.map(lambda x: x * np.nan, params["lift"])}),
)
assert abs(trainer.evaluate(valid_data)["accuracy"] - before) < 0.01  # and nothing is lost

# %% [markdown]
# ## Saving
#
# `trainer.save` writes everything that training goes on from: parameters, optimizer states, gradients that wait for an update, and the random numbers' state. A callback may call it after each epoch:
# `fit(..., callbacks=[lambda trainer, epoch: trainer.save(folder)])`. A trainer of the same graph restores it, and goes on as this one would.

# %%
with tempfile.TemporaryDirectory() as folder:
    trainer.save(Path(folder) / "run")
    resumed = amp.Trainer(compiled.graph, optax.adam(2e-3), settings=trainer.settings)
    resumed.restore(Path(folder) / "run")
_ = jax.tree.map(
    np.testing.assert_array_equal,
    (resumed.params, resumed.gradients),
    (trainer.params, trainer.gradients),
)

# %% [markdown]
# The parameters alone are `trainer.params`, a plain dictionary from node names to pytrees of NumPy arrays: anything can store it. With Orbax:

# %%
import orbax.checkpoint as ocp

with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpoints:
    checkpoints.save(Path(folder) / "spiral", trainer.params)
    checkpoints.wait_until_finished()
    restored = checkpoints.restore(Path(folder) / "spiral", trainer.params)

again = amp.Trainer(compiled.graph, optax.adam(2e-3), params=restored)
jax.tree.map(np.testing.assert_array_equal, again.params, trainer.params)
print("the new trainer has the parameters of the old one")

# %% [markdown]
# `compiled.params` gives them in the structure of the model's own, so they go back into the function, and into the modules:

# %%
trained = compiled.params(trainer.params)
print("on one example:", thinker(trained, valid[0]))
nnx.update(modules["head"], trained["head"])
np.testing.assert_array_equal(modules["head"].bias[...], trainer.params["head"]["bias"])

# %% [markdown]
# ## Where to go from here
#
# * The guide *Models as functions* has all combinators: sequences, trees, choices, dropout, shared weights.
# * `amp.node` gives a part of a model a name and an optimizer, an update interval or a worker of its own.
# * The guide *A graph by hand* builds nodes one by one, and `amp.graphs.replicate` copies a part of a graph to several workers.
# * Data that come in an order of their own: `Trainer(controller=...)` takes a generator function that pumps messages as it likes.
# * `fit(record="run.trace")` and `amp.replay` repeat an asynchronous run bit for bit.
