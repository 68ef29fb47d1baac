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
# # A machine that you do not have
#
# What would a thousand devices do with your model? The scheduler of ampjax is a function from events to actions. On real devices asyncio tells it when a kernel is done. In a simulation a *cost
# model* says how long each dispatch takes, and a clock of whole nanoseconds jumps from event to event. It is the same scheduler in both, so queues, joins, throttle and updates are the real ones; with numbers (then you learn
# the time *to an accuracy*) or without (then a million messages a second go through on one core).
#
# The paper's authors asked this of a device of 10¹² operations a second (Appendix C, table 3). We ask it of list reduction with four copies of its heavy layer.

# %%
from functools import partial

import numpy as np
import optax

import ampjax as amp
from ampjax.simulation import FlopsCost, ProfileCost, Stragglers
from ampjax.viz import new_figure
from experiments.data.list_reduction import Buckets, generate  # in a clone of the repository
from experiments.models import list_reduction_rnn

HIDDEN, BATCH = 128, 100  # a message is a bucket of 100 sequences of one length
model = list_reduction_rnn(HIDDEN, BATCH)
buckets = model.data(Buckets(generate(8_000, seed=0), BATCH))
order = np.random.default_rng(0).permutation(len(buckets))  # their own order is by length
data = amp.Subset(buckets, order)
print(len(data), "buckets")

# %% [markdown]
# With `replicas=4` the model gives `linear1` to `amp.node(..., replicas=4)`, which puts four copies of it behind a `cond` and a `phi`: each instance takes one of them. So four workers can share what one
# would be the bottleneck of. What is pumped is the same for any number of copies.

# %% tags=["picture"]
four = list_reduction_rnn(HIDDEN, BATCH, replicas=4).graph
four


# %% [markdown]
# ## A first answer
#
# The default cost is the paper's device: a fully connected layer takes the time of its multiplications, everything else none. One copy of `linear1` on a worker of its own, then four; embedding and
# classifier share two more.


# %%
def workers(copies):
    """Each copy of linear1 on a worker of its own, the rest on two others."""
    names = ["linear1"] if copies == 1 else [f"linear1/{i}" for i in range(copies)]
    others = {"embed": 0, "linear2": 1, "loss": 1}
    return {
        "workers": copies + 2,
        "affinity": {name: i for i, name in enumerate(names)}
        | {name: copies + i for name, i in others.items()},
    }


COMMON = {"min_update_interval": 6, "policy": "backward_first"}
answers = {}
for copies in (1, 4):
    graph = list_reduction_rnn(HIDDEN, BATCH, replicas=copies).graph
    answers[copies] = amp.simulate(graph, data, max_active_keys=16, **workers(copies), **COMMON)
    print(copies, "copies:", answers[copies])
    print(f"   {BATCH * answers[copies].per_s:,.0f} sequences/s")
assert answers[4].per_s > 2.5 * answers[1].per_s

# %% [markdown]
# A Gantt chart of the first few buckets shows why. The boxes have the buckets' numbers; forward is orange, backward blue. Workers whose work takes no time on this device are left out.

# %% tags=["picture"]
from ampjax.viz import gantt

few = amp.Subset(buckets, order[:12])
traces = {}
for copies in (1, 4):
    recorded, graph = amp.Trace(), list_reduction_rnn(HIDDEN, BATCH, replicas=copies).graph
    amp.simulate(
        graph,
        few,
        max_active_keys=8,
        trace=recorded,
        max_dispatch_size=1,
        **workers(copies),
        **COMMON,
    )
    name = f"{copies} cop{'y' if copies == 1 else 'ies'} of linear1"
    traces[name] = [s for s in recorded if s.end_ns > s.start_ns]  # what takes no time is left out
gantt(traces, title="Twelve buckets, eight in flight, one message at a time")

# %% [markdown]
# Where a chart is crowded, look closer: the buttons make it 2, 4 and 8 times as wide, and labels appear where they fit.

# %% tags=["picture"]
from ampjax.viz import zoomable

zoomable(traces["4 copies of linear1"], title="Four copies of linear1")

# %% [markdown]
# ## What about everything else?
#
# A device that is infinitely fast at all but matrices is no device. The paper let the rest run in real time on 16 cores and replaced only the layers by waits, and that is why its table has 268,000 sequences a second where
# waits alone would allow millions. `amp.profile` measures each kernel on *this* machine; `ProfileCost` takes these times for all stages without a layer (or, without `flops`, for all).

# %%
options = {"max_active_keys": 8, "max_dispatch_size": 2, "fuse": False, **COMMON, **workers(4)}
measured = amp.profile(four, amp.Subset(buckets, order[:12]), passes=1, **options)
# without transfers
print("\n".join(line for line in str(measured).splitlines() if "→" not in line))


# %%
def table3(plan):
    """Layers on devices of 10¹² operations a second, all else as long as it took here."""
    return ProfileCost(plan, measured, FlopsCost(plan))


alone = amp.simulate(four, data, **options)
with_rest = amp.simulate(four, data, cost=table3, **options)
print(f"layers alone:         {BATCH * alone.per_s:12,.0f} sequences/s")
print(
    f"and the rest as here: {BATCH * with_rest.per_s:12,.0f} sequences/s   (the paper's table 3: 268,000)"
)
assert with_rest.per_s < alone.per_s

# %% [markdown]
# ## How far does it scale?
#
# More copies help only as long as there are enough buckets in flight to give each some work, and as long as nothing else becomes the bottleneck. Eighty thousand messages, no numbers, a few seconds:

# %% tags=["picture"]
copies, in_flight = (1, 2, 4, 8, 16), (4, 16, 64)
per_s = {}
for n in copies:
    graph = list_reduction_rnn(HIDDEN, BATCH, replicas=n).graph
    for keys in in_flight:
        run = amp.simulate(graph, data, max_active_keys=keys, **workers(n), **COMMON)
        per_s[n, keys] = BATCH * run.per_s

figure = new_figure(6, 3.6, layout="constrained")
axes = figure.subplots()
for keys, colour, marker in zip(in_flight, ("#0072B2", "#E69F00", "#009E73"), "osD", strict=True):
    axes.plot(
        copies,
        [per_s[n, keys] / 1e6 for n in copies],
        color=colour,
        marker=marker,
        label=f"{keys} in flight",
    )
ideal = [n * per_s[1, 64] / 1e6 for n in copies]
axes.plot(copies, ideal, color="#BBBBBB", linestyle="--", label="in proportion")
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set_xticks(copies, [str(n) for n in copies])
axes.yaxis.set_major_formatter("{x:g}")
axes.set(xlabel="copies of linear1, each on a worker of its own", ylabel="sequences/s [millions]")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure

# %%
assert per_s[16, 4] < 1.3 * per_s[4, 4], "four buckets can't keep more than four copies busy"
assert per_s[8, 64] > 4 * per_s[1, 64]

# %% [markdown]
# ## Links are not free
#
# `latency_ns` and `bytes_per_s` make every transfer between workers take time. What has to wait for a message leaves its worker free for another one, so the more instances are in flight, the more latency is hidden.

# %% tags=["picture"]
latencies = (0, 1, 2, 5, 10, 20, 50)  # microseconds
slowed = {}
for keys in in_flight:
    for us in latencies:
        linked = partial(FlopsCost, latency_ns=1_000 * us, bytes_per_s=50e9)
        slowed[keys, us] = (
            BATCH
            * amp.simulate(
                four, data, cost=linked, max_active_keys=keys, **workers(4), **COMMON
            ).per_s
        )

figure = new_figure(6, 3.6, layout="constrained")
axes = figure.subplots()
for keys, colour, marker in zip(in_flight, ("#0072B2", "#E69F00", "#009E73"), "osD", strict=True):
    line = [100 * slowed[keys, us] / slowed[keys, 0] for us in latencies]
    axes.plot(latencies, line, color=colour, marker=marker, label=f"{keys} in flight")
axes.set(
    xlabel="latency of a link [µs]", ylabel="throughput [% of that without latency]", ylim=(0, 105)
)
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure

# %%
kept = {keys: slowed[keys, 10] / slowed[keys, 0] for keys in in_flight}
assert kept[64] > kept[16] > kept[4], "the more in flight, the less latency matters"

# %% [markdown]
# ## Stragglers
#
# One of the four copies runs three times as long as the others. `round_robin` does not know that: every fourth bucket goes to the slow one, and in the end all wait for it.

# %% tags=["picture"]
from ampjax.viz import time_spent

slow = lambda plan: Stragglers(FlopsCost(plan), {0: 3.0})
trace = amp.Trace()
hurt = amp.simulate(four, data, cost=slow, max_active_keys=16, trace=trace, **workers(4), **COMMON)
print(
    f"{BATCH * hurt.per_s:,.0f} sequences/s, {answers[4].per_s / hurt.per_s:.1f} times slower than with equal workers"
)
time_spent(trace, title="Worker 0 takes three times as long")

# %% [markdown]
# A cost model is any function from a dispatch to nanoseconds, made from the plan. So this one, a machine whose kernels now and then take ten times as long, needs three lines:


# %%
def with_hiccups(plan):
    usual, rng = FlopsCost(plan), np.random.default_rng(0)
    return lambda dispatch: usual(dispatch) * (10 if rng.random() < 0.02 else 1)


hiccups = amp.simulate(four, data, cost=with_hiccups, max_active_keys=16, **workers(4), **COMMON)
print(
    f"{BATCH * hiccups.per_s:,.0f} sequences/s, {100 * hiccups.per_s / answers[4].per_s:.0f} % of the throughput without"
)

# %% [markdown]
# ## Time to accuracy
#
# With numbers, a run on that machine has losses and accuracies. `Trainer(cost=...)` trains here what would be trained there: schedule, staleness and seconds are the machine's.

# %%
small = list_reduction_rnn(32, BATCH, replicas=2)
train, valid = (
    small.data(Buckets(generate(n, seed=seed), BATCH)) for n, seed in ((2_500, 1), (300, 2))
)
histories = {}
for name, way in {"synchronous": {"mode": "sync"}, "asynchronous": {"max_active_keys": 8}}.items():
    trainer = amp.Trainer(
        small.graph,
        optax.adam(5e-3),
        cost=FlopsCost,
        max_dispatch_size=1,
        **COMMON,
        **way,
        **workers(2),
    )
    histories[name] = trainer.fit(train, valid, epochs=4, progress=False)
histories["asynchronous"]

# %% tags=["picture"]
from ampjax.viz import convergence

convergence({name: history.records() for name, history in histories.items()}, metric="valid_loss")

# %%
both = [history[-1] for history in histories.values()]
print("milliseconds of that machine:", [round(1e3 * epoch.seconds, 1) for epoch in both])
assert both[1].seconds < 0.7 * both[0].seconds

# %% [markdown]
# ## Where to go from here
#
# * `python -m experiments table3` trains the paper's three workloads on the paper's machine, `appendix-c` compares its closed form with the scheduler.
# * `ampjax.viz.perfetto.to_perfetto(trace, "run.json")` writes any trace for [ui.perfetto.dev](https://ui.perfetto.dev).
# * A `Profile` can be saved (`measured.save("laptop.json")`) and used where the machine is not at hand.
# * [The next notebook](06_sparse_tables.py) leaves messages behind: data parallelism for models with huge tables.
