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
# # Staleness on demand, and its cures
#
# [Notebook 4](04_asynchrony_and_staleness.py) measured how stale gradients get. This one *sets* it. `ampjax.optim.delayed(tx, delay)` is an optax transform that applies each
# gradient `delay` updates after it was computed:
#
# > w(t+1) = w(t) + u(g(t − τ)), where g(t) was computed at w(t).
#
# That is what a pipeline without flushes, or an asynchronous cluster, does to an optimizer; here it takes a number, in plain JAX, on one device. Then remedies can be compared
# under the same delay, which is how this notebook ends.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.optim import (
    compensate_spikes,
    delayed,
    predict_weights,
    scale_by_rotated_adam,
    scale_by_staleness,
    stage_delays,
    trained_params,
)
from ampjax.viz import new_figure

# %% [markdown]
# ## How late is too late
#
# Gradient descent on ½·λ·w² with gradients τ updates late is w(t+1) = w(t) − ηλ·w(t − τ). It is stable as long as
#
# > ηλ < 2·sin(π / (2·(2τ + 1))),
#
# which is 2 without delay, 1 for a delay of one, and falls like π / (2τ) after that. We need not believe it: a few hundred steps for each step length and delay tell.


# %%
def ends_at(delay, step_lengths, steps=600):
    """|w| after some steps from w = 1, for each step length."""

    def run(length):
        tx = delayed(optax.sgd(length), delay)

        def step(carry, _):
            w, state = carry
            updates, state = tx.update(w, state, w)  # the gradient of w² / 2 is w
            return (w + updates, state), None

        (w, _), _ = jax.lax.scan(step, (jnp.float32(1), tx.init(jnp.float32(1))), length=steps)
        return jnp.where(jnp.isfinite(w), abs(w), jnp.inf)

    return np.asarray(jax.jit(jax.vmap(run))(step_lengths))


DELAYS = (0, 1, 2, 4, 8)
lengths = np.linspace(0.05, 2.2, 87).astype(np.float32)
found = {delay: ends_at(delay, lengths) for delay in DELAYS}
limits = {delay: 2 * np.sin(np.pi / (2 * (2 * delay + 1))) for delay in DELAYS}
for delay in DELAYS:
    clear = abs(lengths - limits[delay]) > 0.06
    assert ((found[delay] < 1) == (lengths < limits[delay]))[clear].all()
    print(
        f"delay {delay}: longest stable step {lengths[found[delay] < 1].max():.2f}, by the formula {limits[delay]:.2f}"
    )

# %% tags=["picture"]
figure = new_figure(6.5, 3.0, layout="constrained")
axes = figure.subplots()
shown = np.log10(np.clip([found[delay] for delay in DELAYS], 1e-6, 1e6))
axes.imshow(
    shown, aspect="auto", cmap="RdYlBu_r", extent=(lengths[0], lengths[-1], len(DELAYS) - 0.5, -0.5)
)
for row, delay in enumerate(DELAYS):
    axes.plot([limits[delay]] * 2, [row - 0.5, row + 0.5], "k-", linewidth=2)
axes.set_yticks(range(len(DELAYS)), [str(delay) for delay in DELAYS])
axes.set(
    xlabel="learning rate × curvature",
    ylabel="delay [updates]",
    title="Blue converges, red diverges; black: the formula",
)
figure

# %% [markdown]
# ## A pipeline's stages
#
# A delay may also be a tree: stage s of P is P − 1 − s updates late, so that the last layer's gradients are fresh. `stage_delays` makes it. Each part is then updated by an
# optimizer of its own, as nodes are in AMP.

# %%
params = {"embed": jnp.zeros(2), "hidden": jnp.zeros(2), "output": jnp.zeros(2)}
delays = stage_delays(list(params))
tx = delayed(optax.sgd(1.0), delays)
state = tx.init(params)
for step in range(3):
    grads = jax.tree.map(lambda p, n=step: jnp.full_like(p, n + 1.0), params)
    updates, state = tx.update(grads, state, params)
    print(step, {name: float(update[0]) for name, update in updates.items()})
assert delays == {"embed": 2, "hidden": 1, "output": 0}
assert float(updates["embed"][0]) == -1.0  # the first step's
assert float(updates["output"][0]) == -3.0  # this step's

# %% [markdown]
# ## Remedies, side by side
#
# The test problem: a quadratic of 20 parameters by 4 columns with curvatures from 1 to 0.01, *turned* against the parameters' axes, and gradients with noise. For a fair
# comparison, each remedy gets the best learning rate of a grid, at each delay. Everything is one `scan` over steps and one `vmap` over learning rates.

# %%
N, STEPS = 20, 300
curvatures = np.logspace(0, -2, N)
turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(N, N)))
H = jnp.asarray(turn @ np.diag(curvatures) @ turn.T, jnp.float32)
W0 = jax.random.normal(jax.random.key(0), (N, 4))


def loss(w):
    return 0.5 * jnp.sum(w * (H @ w)) / 4


def curves(make, delay, rates):
    """The loss of each step, for each learning rate: `[rates, STEPS]`."""

    def run(rate):
        tx = delayed(make(rate), delay)

        def step(carry, number):
            w, state = carry
            noise = 0.1 * jax.random.normal(jax.random.fold_in(jax.random.key(1), number), w.shape)
            updates, state = tx.update(H @ w + noise, state, w)
            w = optax.apply_updates(w, updates)
            return (w, state), loss(trained_params(state, w))

        return jax.lax.scan(step, (W0, tx.init(W0)), jnp.arange(STEPS))[1]

    return np.asarray(jax.jit(jax.vmap(run))(jnp.asarray(rates, jnp.float32)))


momentum = curves(lambda rate: optax.sgd(rate, 0.9), 0, [0.1])[0]
late = {
    f"delay {delay}, learning rate {rate}": curves(lambda r: optax.sgd(r, 0.9), delay, [rate])[0]
    for delay, rate in ((2, 0.1), (8, 0.1), (8, 0.01))
}
assert momentum[-30:].mean() < 0.1
assert not late["delay 8, learning rate 0.1"][-1] < 10

# %% tags=["picture"]
figure = new_figure(6.5, 3.4, layout="constrained")
axes = figure.subplots()
for name, losses in {"no delay, learning rate 0.1": momentum, **late}.items():
    shown = np.where(np.maximum.accumulate(losses) < 1e3, losses, np.nan)  # until it has diverged
    axes.plot(shown, label=name)
axes.set_yscale("log")
axes.set(xlabel="step", ylabel="loss", title="Momentum with late gradients")
axes.legend(fontsize=8)
figure

# %% [markdown]
# A learning rate that is fine without delay diverges with it; a smaller one is stable and slow. So the first remedy is a shorter step. Others try to do better: look ahead
# along the last update (weight prediction), make up at once for what a late gradient would have added to the momentum (spike compensation), or put Adam into a basis in which the Hessian is
# nearly diagonal (basis rotation).

# %%
REMEDIES = {
    "momentum": (lambda rate: optax.sgd(rate, 0.9), 10),
    "momentum, spikes": (lambda rate: optax.chain(compensate_spikes(0.9), optax.scale(-rate)), 10),
    "momentum, prediction": (lambda rate: predict_weights(optax.sgd(rate, 0.9)), 10),
    "adam": (optax.adam, 1),
    "adam, by staleness": (lambda rate: optax.chain(optax.adam(rate), scale_by_staleness()), 1),
    "adam, rotated": (lambda rate: optax.chain(scale_by_rotated_adam(), optax.scale(-rate)), 1),
}
SHOWN = (0, 2, 8)
rates = np.logspace(-3.5, 0, 15)
board = {}
for name, (make, scale) in REMEDIES.items():
    for delay in SHOWN:
        ends = curves(make, delay, rates * scale)[:, -30:].mean(1)
        board[name, delay] = np.where(np.isfinite(ends), ends, np.inf).min()
    print(f"{name:22}", *(f"delay {delay}: {board[name, delay]:.4f}  " for delay in SHOWN))
for name in REMEDIES:
    assert board[name, 0] < board[name, 8]  # with tuned learning rates, too, delay costs

# %% tags=["picture"]
figure = new_figure(6.5, 3.0, layout="constrained")
axes = figure.subplots()
places = np.arange(len(REMEDIES))
for i, (delay, colour) in enumerate(zip(SHOWN, ("#009E73", "#56B4E9", "#0072B2"), strict=True)):
    losses = [board[name, delay] for name in REMEDIES]
    axes.barh(places + 0.27 * (i - 1), losses, 0.25, color=colour, label=f"delay {delay}")
axes.set_yticks(places, list(REMEDIES))
axes.invert_yaxis()
axes.set(xlabel="loss at the best learning rate")
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside right upper", frameon=False, fontsize=9)
figure

# %% [markdown]
# Prediction makes good for most of what a delay of 2 costs. Shorter steps by staleness are a detour to a smaller learning rate, and here the learning rate is tuned anyway. The rotated basis makes Adam blind to the turn of the axes, which helps a little up to a delay of 2 and costs more than it gives at 8; on networks it is one of the best (see *Late gradients* among the measurements). So try remedies on your own model.

# %% [markdown]
# ## In AMP
#
# Nodes tell their optimizer each gradient's staleness as the same extra argument, so every remedy here works there unchanged: `amp.Trainer(graph, optax.chain(optax.adam(1e-3), scale_by_staleness()))`, or for one node
# `amp.graphs.ppt(..., tx=...)`. And a node may be given `delayed(tx, 3)`: the delay then comes on top of what the node's gradients have anyway.
#
# The guide *Reduce staleness* says what each costs, and `python -m experiments staleness` runs the whole leaderboard: more remedies, delays and workloads, three seeds.
