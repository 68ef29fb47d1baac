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
# A node's body is a function of *one* message: any `fn(params, *inputs)`, a `flax.nnx` module, or a layer of `ampjax.nn`. The engine maps it over however many messages it runs at once. Where messages
# go is said by their states, with functions of your own.
#
# Here is a model that no array program likes: a classifier that **decides by itself how long to think**. A block refines a hidden state; if the classifier is sure enough, the example leaves, else
# it goes round again. We build it, check it, train it, see where it thinks longer, make mistakes on purpose, and save it.

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
from ampjax.models import labelled_cross_entropy
from ampjax.viz import new_figure

# %% [markdown]
# ## Data of your own
#
# The simplest data set is a list of dictionaries, one for each example, from pumps to payloads. `amp.messages` adds state fields; a bare payload has none. Three arms of a spiral:

# %%
N_CLASSES, COLOURS = 3, ("#0072B2", "#E69F00", "#009E73")


def spiral(n, seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, N_CLASSES, n)
    along = np.sqrt(rng.random(n))
    angle = 2 * np.pi * label / N_CLASSES + 4.5 * along + rng.normal(scale=0.12, size=n)
    return (along[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)).astype(np.float32), label.astype(np.int32)


def instances(points, labels):
    return [
        {"x": amp.messages([point], step=0, again=0), "label": label}
        for point, label in zip(points, labels, strict=True)
    ]


points, labels = spiral(800, seed=0)
train, valid = instances(points, labels), instances(*spiral(128, seed=1))

# %% tags=["picture"]
figure = new_figure(3.8, 3.8, layout="constrained")
axes = figure.subplots()
for c, colour in enumerate(COLOURS):
    axes.scatter(*points[labels == c].T, s=6, color=colour, label=f"class {c}")
axes.set(aspect="equal", xlabel="first coordinate", ylabel="second coordinate")
axes.legend(frameon=False, markerscale=2, loc="upper right", fontsize=8)
figure

# %% [markdown]
# (Large data sets should hand out columns: any object with `__len__` and `gather(ids)` will do, see `amp.Instances`.)
#
# ## A body of your own
#
# A `flax.nnx` module is written for one example and used as it is. Its `nnx.Param`s become the node's parameters.

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


class Head(nnx.Module):
    """Classifies; says whether it would rather look again. Gives `[h; logits]`, and the decision."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(WIDTH, N_CLASSES, rngs=rngs)

    def __call__(self, h):
        logits = self.linear(h)
        unsure = jax.nn.softmax(logits).max() < SURE
        return jnp.concatenate([h, logits]), unsure.astype(jnp.int32)


# %% [markdown]
# ## A state of your own
#
# `step` counts the rounds; `again` holds the decision. Most control flow needs states only and never waits for a device. This one depends on a *number that was computed*, so a `route_by` reads it back and puts it
# into the state, where `cond` can see it. (`assume` is what to take for it where nothing is computed: when memory is sized and kernels are compiled ahead.)

# %%
block, head = Block(nnx.Rngs(0)), Head(nnx.Rngs(1))

with amp.Graph() as g:
    x = amp.pump("x", (2,), fields=("step", "again"))
    label = amp.pump("label", (), "int32")
    h = amp.phi("h")
    refined = amp.ppt("block", block)(h)
    row, unsure = amp.ppt("head", head, outputs=2)(refined)
    row = amp.isu(row, lambda s: s.replace(step=s.step + 1), lambda s: s.replace(step=s.step - 1), name="count")
    unsure = amp.isu(
        unsure, lambda s: s.replace(step=s.step + 1), lambda s: s.replace(step=s.step - 1), name="count too"
    )
    row = amp.route_by(row, unsure, "again", assume=lambda s: s.step < MOST, name="decide")
    more, done = amp.cond(row, lambda s: (s.again == 1) & (s.step < MOST), name="again?")
    lifted = amp.ppt("lift", nnx.Linear(2, WIDTH, rngs=nnx.Rngs(2)))(x)
    h.connect(lifted, amp.npt("state", lambda row: row[:WIDTH])(more))
    logits = amp.npt("logits", lambda row: row[WIDTH:])(done)
    amp.sink("class", logits)
    amp.loss("xent", labelled_cross_entropy, join=("instance",))(logits, label)

# %% tags=["picture"]
g

# %% [markdown]
# ## Is it right?
#
# `verify` works for any graph: it runs your bodies through the engine under several schedules and compares with `jax.grad` of the composed function, in which every example takes its own number of rounds.

# %%
verdict = amp.verify(g, train[:2])
verdict

# %%
assert verdict

# %% [markdown]
# ## Training
#
# Rounds differ, so instances enter together and travel in step (`min_admission`, `wavefront`): that fills dispatches, and a `route_by` waits for the device once for many.
#
# In Jupyter an event loop is running already. Both `trainer.fit(...)` and `await trainer.fit_async(...)` work; the second leaves the loop free for other things, such as widgets. A callback is called after each epoch and may end the training. What comes first, a payload that is read or an instance that has ended, differs from run to run, and so do the accuracies.

# %%
trainer = amp.Trainer(
    g,
    optax.adam(2e-3),
    max_active_keys=64,
    min_admission=32,
    max_dispatch_size=32,
    min_update_interval=64,
    policy="wavefront",
)
rounds = []


def count_rounds(trainer, epoch):
    rounds.append(trainer.predict(valid)["class"].fields["step"].mean())
    return epoch.valid["accuracy"] > 0.95


history = await trainer.fit_async(train, valid, epochs=20, callbacks=[count_rounds], progress=False)  # noqa: F704
history

# %% tags=["picture"]
figure = new_figure(7.6, 2.6, layout="constrained")
left, right = figure.subplots(1, 2)
epochs = range(1, len(history) + 1)
left.plot(epochs, [epoch.valid["accuracy"] for epoch in history], marker="o", markersize=3, color=COLOURS[0])
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
answers = trainer.predict([{"x": amp.messages([point], step=0, again=0)} for point in plane])["class"]
image = lambda values: values.reshape(len(side), len(side))

figure = new_figure(9, 4.0, layout="constrained")
left, right = figure.subplots(1, 2, sharey=True)
place = {"origin": "lower", "extent": (-1.15, 1.15, -1.15, 1.15)}
from matplotlib.colors import BoundaryNorm, ListedColormap

left.imshow(image(answers.payload.argmax(-1)), cmap=ListedColormap(COLOURS), alpha=0.45, **place)
for c, colour in enumerate(COLOURS):
    left.scatter(*points[labels == c].T, s=3, color=colour)
left.set_title("class", fontsize=10)
steps = right.imshow(
    image(answers.fields["step"]), cmap="cividis", norm=BoundaryNorm(np.arange(0.5, MOST + 1), 256), **place
)
figure.colorbar(steps, ax=right, ticks=range(1, MOST + 1), label="rounds")
right.set_title("rounds of thinking", fontsize=10)
left.set(xlabel="first coordinate", ylabel="second coordinate")
right.set(xlabel="first coordinate")
figure

# %%
hard, easy = answers.fields["step"].max(), answers.fields["step"].min()
assert hard > easy

# %% [markdown]
# ## Mistakes
#
# Errors come as early as they can, and have four parts: where, what was expected, what came, what to do. Most are found while the graph is being built:

# %%
from ampjax.errors import AmpError


def told(what, attempt):
    """Does what is wrong, and prints what is said."""
    try:
        attempt()
    except AmpError as error:
        print(what)
        lines = f"{type(error).__name__}: {error}\n".splitlines()
        print(textwrap.indent("\n".join(textwrap.fill(line, 95) for line in lines), "    "), end="\n\n")
    else:
        raise AssertionError(f"{what}: nothing was said")


def building(wrong):
    def attempt():
        with amp.Graph():
            x = amp.pump("x", (2,), fields=("step",))
            amp.sink("end", wrong(x))

    return attempt


told("A layer of the wrong size.", building(lambda x: amp.ppt("lift", amp.nn.Linear(3, WIDTH))(x)))
told("A field that no message has.", building(lambda x: amp.cond(x, lambda s: s.length > 0)[0]))
told(
    "An `if` in a state function, which sees columns.", building(lambda x: amp.cond(x, lambda s: 1 if s.step else 0)[0])
)
told(
    "An inverse that does not invert.",
    building(lambda x: amp.isu(x, lambda s: s.replace(step=s.step + 1), lambda s: s)),
)
told("A wire that goes nowhere.", building(lambda x: amp.cond(x, lambda s: s.step > 0)[0]))

# %% [markdown]
# Others only when data come. Nothing is lost then: the trainer drops what was in flight and can go on.

# %%
before = trainer.evaluate(valid)["accuracy"]
few = lambda **changes: [{**train[0], **changes}]
fit = lambda data: lambda: trainer.fit(data, progress=False)
told("A payload of another shape.", fit(few(x=amp.messages([[1.0, 2.0, 3.0]], step=0, again=0))))
told("A field left out.", fit(few(x=amp.messages([points[0]], step=0))))
told("A label that never comes: everything waits, and is told for what.", fit([{"x": train[0]["x"]}]))
told(
    "Parameters that are not finite.",
    lambda: trainer.set_params({"lift": {"kernel": np.full((2, WIDTH), np.nan), "bias": np.zeros(WIDTH)}}),
)
assert abs(trainer.evaluate(valid)["accuracy"] - before) < 0.01  # and nothing is lost

# %% [markdown]
# ## Saving
#
# `trainer.save` writes everything that training goes on from: parameters, optimizer states, gradients that wait for an update, and the random numbers' state. A callback may call it after each epoch:
# `fit(..., callbacks=[lambda trainer, epoch: trainer.save(folder)])`. A trainer of the same graph restores it, and goes on as this one would.

# %%
with tempfile.TemporaryDirectory() as folder:
    trainer.save(Path(folder) / "run")
    resumed = amp.Trainer(g, optax.adam(2e-3), settings=trainer.settings)
    resumed.restore(Path(folder) / "run")
_ = jax.tree.map(
    np.testing.assert_array_equal, (resumed.params, resumed.gradients), (trainer.params, trainer.gradients)
)

# %% [markdown]
# The parameters alone are `trainer.params`, a plain dictionary from node names to pytrees of NumPy arrays: anything can store it. With Orbax:

# %%
import orbax.checkpoint as ocp

with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpoints:
    checkpoints.save(Path(folder) / "spiral", trainer.params)
    checkpoints.wait_until_finished()
    restored = checkpoints.restore(Path(folder) / "spiral", trainer.params)

again = amp.Trainer(g, optax.adam(2e-3), params=restored)
jax.tree.map(np.testing.assert_array_equal, again.params, trainer.params)
print("the new trainer has the parameters of the old one")

# %% [markdown]
# The parameters of an `nnx` node have the module's own structure, so they go back into the module:

# %%
state = nnx.state(head, nnx.Param)
nnx.replace_by_pure_dict(state, trainer.params["head"])
nnx.update(head, state)
np.testing.assert_array_equal(head.linear.bias[...], trainer.params["head"]["linear"]["bias"])

# %% [markdown]
# ## Where to go from here
#
# * `amp.ppt` takes `tx`, `min_update_interval`, `weights` and more for each node; `rng=True` gives a body a key for each message (dropout).
# * `ampjax.models.act` is Graves' adaptive computation time as a recurrent network, `ampjax.models.mixture` a mixture of experts; both use `route_by`.
# * Data that come in an order of their own: `Trainer(controller=...)` takes a generator function that pumps messages as it likes.
# * `fit(record="run.trace")` and `amp.replay` repeat an asynchronous run bit for bit.
