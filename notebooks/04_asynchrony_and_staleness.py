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
# # Asynchrony and staleness
#
# In AMPNet no step is global. A node adds up gradients as they come back and updates *itself* once it has enough. That keeps every worker busy, and it has a price: between a
# message's way forward and its way back a node may have updated. How often is the gradient's **staleness**:
#
# > staleness = (updates that the node has made when the gradient arrives) − (updates that it had made at the forward pass).
#
# Two settings rule it. `max_active_keys` (the paper's *mak*) says how many instances are in flight; `min_update_interval` (the paper's *muf*) how many gradient rows a node gathers before it updates.
# This notebook measures what both do, draws the paper's figure 5, throughput against epochs, and ends with what helps against staleness.
#
# All of it happens in *virtual time*: the scheduler is the real one, the numbers are really computed, but the clock is that of four devices of
# 10¹² operations a second. So the results are the same on every machine, and this machine's cores don't matter.

# %%
import itertools
import math

import jax
import numpy as np
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.simulation import FlopsCost
from ampjax.viz import new_figure
from experiments.models import labelled_cross_entropy  # in a clone of the repository

WIDTH, BATCH, LAYERS = 128, 50, 4

with ag.Graph() as g:
    x = ag.pump("x", (BATCH, WIDTH))
    label = ag.pump("label", (BATCH,), "int32")
    for i in range(1, LAYERS + 1):
        n_out = WIDTH if i < LAYERS else 10
        x = ag.ppt(f"linear{i}", amp.nn.Linear(WIDTH, n_out, init_scale="he"))(x)
        x = ag.npt(f"relu{i}", jax.nn.relu)(x) if i < LAYERS else x
    ag.loss("xent", labelled_cross_entropy)(x, label)

# %% [markdown]
# A perceptron whose four layers are on four workers, one message at a time, backward first: the setting of the paper's figure 1. An instance is a batch of 50 points
# in 10 classes; each class is several clusters, so that a straight line does not separate them.


# %%
def points(n, seed):
    # the same centres for training and validation
    centres = np.random.default_rng(0).normal(size=(10, 4, WIDTH))
    rng = np.random.default_rng(seed)
    labels, cluster = rng.integers(0, 10, n), rng.integers(0, 4, n)
    x = centres[labels, cluster] + 1.6 * rng.normal(size=(n, WIDTH))
    return [
        {"x": x[i : i + BATCH].astype(np.float32), "label": labels[i : i + BATCH].astype(np.int32)}
        for i in range(0, n, BATCH)
    ]


train, valid = points(1500, seed=1), points(500, seed=2)
PAPER = {"workers": LAYERS, "policy": "backward_first", "max_dispatch_size": 1}
print(f"{len(train)} batches for training, {len(valid)} for validation")

# %% [markdown]
# ## Three ways to train
#
# * `sync`: one batch, then an update of every node. Nothing is stale; one worker works at a time.
# * `pipeline`: `max_active_keys` batches, then an update of every node. Nothing is stale; at the ends of each round workers wait.
# * `async`: `max_active_keys` batches in flight at any time; each node updates itself.

# %% tags=["picture"]
from ampjax.viz import gantt

WAYS = {
    "synchronous, one batch": {"mode": "sync"},
    "pipeline, six batches, then an update": {"mode": "pipeline", "max_active_keys": 6},
    "asynchronous, six batches in flight": {"mode": "async", "max_active_keys": 6},
}
traces = {name: amp.Trace() for name in WAYS}
runs = {
    name: amp.simulate(g, train[:12], trace=traces[name], **PAPER, **way)
    for name, way in WAYS.items()
}
gantt(traces, title="Twelve batches on four workers")

# %% [markdown]
# Worker 3 has the last, small layer. The asynchronous run is as good as the pipeline in the middle of a round, and has no rounds to end. Traces of longer runs say where the workers' time went:

# %% tags=["picture"]
from ampjax.viz import time_spent

long = amp.Trace()
amp.simulate(g, train, trace=long, mode="pipeline", max_active_keys=6, **PAPER)
time_spent(long, title="Pipeline with six batches: where the time went")

# %% tags=["picture"]
long = amp.Trace()
amp.simulate(g, train, trace=long, mode="async", max_active_keys=6, **PAPER)
time_spent(long, title="Asynchronous, six batches in flight")

# %% [markdown]
# Worker 3 has little to do in any case; the other three are busy nearly all the time.
#
# ## How stale gradients are
#
# With six batches in flight, by layer. The last layer's gradient comes right after its forward pass; the first one's has to go all the way forth and back, and
# meanwhile other batches have come back.

# %% tags=["picture"]
from ampjax.viz import staleness

staleness(long, title="Six batches in flight, an update for every gradient")

# %% [markdown]
# More instances in flight make gradients staler, for a simple reason: what is in flight will come back and update, and most of it comes back before the newest one does.
# A longer interval makes fewer updates of the same gradients, so fewer happen in between. Counting needs no numbers:

# %% tags=["picture"]
in_flight, intervals = (1, 2, 4, 8, 16), (1, 2, 4, 8)
mean = {
    (n, every): amp.simulate(
        g, train, max_active_keys=n, min_update_interval=every, **PAPER
    ).stats.staleness_mean
    for n, every in itertools.product(in_flight, intervals)
}

figure = new_figure(6, 3.4, layout="constrained")
axes = figure.subplots()
looks = zip(intervals, ("#0072B2", "#E69F00", "#009E73", "#D55E00"), "osD^", strict=True)
for every, colour, marker in looks:
    axes.plot(
        in_flight,
        [mean[n, every] for n in in_flight],
        color=colour,
        marker=marker,
        label=f"{every}",
    )
axes.set_xscale("log", base=2)
axes.set_xticks(in_flight, [str(n) for n in in_flight])
axes.set(
    xlabel="batches in flight (max_active_keys)", ylabel="mean staleness [updates]", ylim=(0, None)
)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(title="min_update_interval", frameon=False)
figure

# %%
for every in intervals:
    line = [mean[n, every] for n in in_flight]
    assert line == sorted(line), "staleness grows with max_active_keys"
assert all(mean[16, a] > mean[16, b] for a, b in itertools.pairwise(intervals)), (
    "and falls with the interval"
)
assert mean[1, 1] == 0, "one batch in flight: nothing is stale"

# %% [markdown]
# ## Figure 5a: throughput against epochs
#
# Staleness by itself is no harm; what counts is how many epochs it costs, against how much faster they are. Each point below is a training run until 85 % of the validation points are right: to the right are more
# examples a second, further down fewer epochs. On a dashed line the time to the target is the same, so *flatter dashed lines are better*.

# %%
TARGET, MOST = 0.85, 10
SGD = optax.sgd(0.02, momentum=0.9)


def train_until(mode, n=1, every=1, tx=SGD, **options):
    """Trains until the target; the history's clock is that of the four devices."""
    trainer = amp.Trainer(
        g,
        tx,
        cost=FlopsCost,
        mode=mode,
        max_active_keys=n,
        min_update_interval=every,
        **{**PAPER, **options},
    )
    reached = lambda _, epoch: epoch.valid["accuracy"] >= TARGET
    return trainer.fit(train, valid, epochs=MOST, callbacks=[reached], progress=False)


histories = {("sync", 1): train_until("sync")}
for mode in ("pipeline", "async"):
    histories |= {(mode, n): train_until(mode, n) for n in (2, 4, 8)}

for (mode, n), history in histories.items():
    last = history[-1]
    print(
        f"{mode:8} {n:2} in flight: {BATCH * last.train_per_s:10,.0f} examples/s, staleness {last.staleness_mean:4.1f}, "
        f"{last.valid['accuracy']:.3f} after {len(history):2} epochs, {1e3 * last.seconds:.2f} ms"
    )

# %% tags=["picture"]
from ampjax.viz import front

series = {}
for (mode, n), history in histories.items():
    reached = history.first_to(TARGET)
    point = str(n), BATCH * history[-1].train_per_s, reached.epoch if reached else math.inf
    series.setdefault(mode, []).append(point)
front(series, n_train=BATCH * len(train))

# %% [markdown]
# Asynchronous training takes about as many epochs as synchronous training, each of which is over in half the time with two batches in flight and in a third with four or more: up to about four, staleness costs next to nothing. With eight there is
# nothing more to gain, and an epoch is lost. The pipeline makes too few updates to get there at all in this time.

# %%
sync, free = histories["sync", 1].first_to(TARGET), histories["async", 4].first_to(TARGET)
print(
    f"to the target: synchronous {1e3 * sync.seconds:.2f} ms, asynchronous {1e3 * free.seconds:.2f} ms of the four devices"
)
assert free.seconds < 0.6 * sync.seconds

# %% [markdown]
# A pipeline of three equal layers can be at most about 3m / (m + 2) times as fast as synchronous training with m batches to a round: each round has m + 2 steps of the longest layer where 3m are done one after the other.
# (The small fourth layer adds a few percent.)
# It pays for that with m times fewer updates, each of m times as many examples. Asynchronous training has neither limit; what it pays with is staleness.

# %%
alone = histories["sync", 1][-1].train_per_s
for m in (2, 4, 8):
    piped, free = (histories[mode, m][-1].train_per_s / alone for mode in ("pipeline", "async"))
    bound = 3 * m / (m + 2)
    print(
        f"m = {m}: pipeline {piped:.2f} times as fast (bound {bound:.2f}), asynchronous {free:.2f}"
    )
    assert piped <= 1.05 * bound
    assert free >= piped

# %% [markdown]
# ## Figure 5b: the interval
#
# Eight batches in flight, and a node that waits for 1, 2, 4, ... gradients. Waiting makes gradients fresher and less noisy, and there are fewer steps. For this model, steps are worth more.

# %% tags=["picture"]
by_interval = {every: train_until("async", 8, every) for every in intervals}
epochs = [
    history.first_to(TARGET).epoch if history.first_to(TARGET) else MOST
    for history in by_interval.values()
]

figure = new_figure(7.5, 3.0, layout="constrained")
for axes, values, text in zip(
    figure.subplots(1, 2),
    (epochs, [history[-1].staleness_mean for history in by_interval.values()]),
    (f"epochs to the target\n({MOST}: not reached)", "mean staleness [updates]"),
    strict=True,
):
    axes.plot(intervals, values, "o-", color="#0072B2")
    axes.set_xscale("log", base=2)
    axes.set_xticks(intervals, [str(n) for n in intervals])
    axes.set(xlabel="min_update_interval", ylabel=text, ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
figure

# %% [markdown]
# ## What helps against staleness
#
# **Don't let in more than the workers need.** What is in flight beyond that makes nothing faster: it waits half-way, and ages. The policy `one_forward_one_backward` (PipeDream's) sees to that by
# itself: a stage sends no more forward than there are workers ahead of it. That bounds staleness whatever is in flight.

# %%
crowd = {
    "16 in flight": amp.simulate(g, train, max_active_keys=16, **PAPER),
    "4 in flight": amp.simulate(g, train, max_active_keys=4, **PAPER),
    "16, one forward, one backward": amp.simulate(
        g, train, max_active_keys=16, **{**PAPER, "policy": "one_forward_one_backward"}
    ),
}
for name, run in crowd.items():
    print(
        f"{name:30} {BATCH * run.per_s:12,.0f} examples/s, mean staleness {run.stats.staleness_mean:.1f}"
    )
many, enough, held = crowd.values()
for run in (enough, held):
    assert (
        run.stats.staleness_mean < 0.6 * many.stats.staleness_mean and run.per_s > 0.9 * many.per_s
    )

# %% [markdown]
# **Stash.** With `weights="stashed"` the adjoint uses the parameters of the forward pass. The gradient is then that of a function that existed at one time, if not at this one.
#
# **Take shorter steps.** `ampjax.optim.scale_by_staleness` divides an update by one plus the staleness of its gradients. A node's optimizer is told the staleness, so any optax transform can use it.

#
# All of them with 16 batches in flight, more than the workers need:

# %%
from ampjax.optim import scale_by_staleness

crowded = {
    "as it is": train_until("async", 16),
    "stashed": train_until("async", 16, weights="stashed"),
    "shorter steps": train_until("async", 16, tx=optax.chain(SGD, scale_by_staleness())),
    "one forward, one backward": train_until("async", 16, policy="one_forward_one_backward"),
}
for name, history in crowded.items():
    best = history.best()
    print(
        f"{name:26} staleness {history[-1].staleness_mean:4.1f}, best accuracy {best:.3f} in {len(history):2} epochs"
    )

# %% tags=["picture"]
from ampjax.viz import convergence

convergence({name: history.records() for name, history in crowded.items()}, target=TARGET)

# %% [markdown]
# What helps depends on the model, so measure. This one stands its stale gradients: shorter steps only slow it down, and the policy that holds batches back gets there first.

# %% [markdown]
# ## Where to go from here
#
# * `python -m experiments mnist --max-active-keys 8 --min-update-interval 4` does this with images and on this machine; `report --plot` draws figure 5 from its files.
# * Replicas (`ag.replicate`) and their averaging are another source of staleness; `replica_sync` rules it.
# * [The next notebook](05_a_machine_you_do_not_own.py) is about the clock that was used here.
