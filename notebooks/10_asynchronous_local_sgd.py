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
# # Asynchronous local SGD, and late gradients that are thrown away
#
# Workers that are far apart train by themselves for some steps, and then bring to a server by how much their parameters have moved: a *pseudo-gradient*. If workers differ in
# speed, waiting for the slowest costs time, and not waiting makes pseudo-gradients stale. A published toy study (Liu et al., [arXiv 2401.09135](https://arxiv.org/abs/2401.09135))
# simulates it. Here it runs in ampjax's virtual time: the server is a node with parameters, each worker a node on a worker of the engine, and a visit of a worker an instance.
# The second part asks what happens if late gradients are thrown away.

# %%
import numpy as np
import optax

from ampjax.viz import new_figure
from experiments import admission
from experiments.admission import AdmissionOptions
from experiments.data import clusters
from experiments.local_sgd.driver import evaluate
from experiments.local_sgd.server import LocalSgd, train
from experiments.local_sgd.visits import SECONDS_PER_STEP, plan_visits, staleness_of

# %% [markdown]
# ## Who is back when
#
# The four workers of the study take 0.58, 0.75, 1.51 and 3.33 s for a step, and make 20 steps a visit. When one is back, the server waits half a second for others, its *grace
# time*; then all who are back begin anew. So the times of all visits are known ahead, and they are those that the study prints.

# %%
visits = plan_visits(400, inner_steps=20, grace=0.5, seed=0)
times = [round(visits[n - 1].back, 2) for n in range(40, 401, 40)]
print(times)
assert times == [209.0, 406.4, 603.8, 801.4, 999.0, 1207.8, 1404.2, 1600.6, 1800.2, 1998.6]

# %% tags=["picture"]
figure = new_figure(9, 2.4, layout="constrained")
axes = figure.subplots()
for visit in visits:
    if visit.begin < 140:
        axes.barh(
            visit.worker,
            visit.back - visit.begin,
            left=visit.begin,
            height=0.6,
            color=f"C{visit.worker}",
            edgecolor="white",
        )
axes.set_yticks(range(4), [f"{seconds} s a step" for seconds in SECONDS_PER_STEP])
axes.set_xlim(0, 140)
axes.set_xlabel("seconds")
axes.invert_yaxis()
figure

# %% [markdown]
# While the slowest worker makes one visit, the fastest makes nearly six. So the slow worker's pseudo-gradients are stale: the server has made a dozen updates since it gave its
# parameters away.

# %% tags=["picture"]
ages = np.array(staleness_of(visits)[:400])
worker = np.array([visit.worker for visit in visits[:400]])
figure = new_figure(7, 2.8, layout="constrained")
axes = figure.subplots()
bins = np.arange(ages.max() + 2) - 0.5
axes.hist([ages[worker == n] for n in range(4)], bins, stacked=True)
axes.legend([f"{seconds} s a step" for seconds in SECONDS_PER_STEP], fontsize=8)
axes.set_xlabel("staleness: updates since the worker took the parameters")
axes.set_ylabel("visits")
figure

# %%
for n in range(4):
    print(f"{SECONDS_PER_STEP[n]} s a step: mean staleness {ages[worker == n].mean():.1f}")
assert ages[worker == 3].mean() > 3 * ages[worker == 0].mean()

# %% [markdown]
# ## Training
#
# Four classes, each a Gaussian around a direction in 512 dimensions; a network with one hidden layer; AdamW inside of a visit, an outer rule of optax at the server. First the
# study's check: with an endless grace time all wait for all, and an update from each fourth sum, the *delayed* rule, is synchronous training.

# %%
data = clusters.generate(2048, 1, seed=0)
outcomes = {}
for way, grace in (("synchronous", 0.5), ("delayed", 1000.0), ("asynchronous", 0.5)):
    settings = LocalSgd(hidden=32, phases=12, way=way)
    outer = optax.sgd(0.5)
    outcomes[way] = train(settings, data, outer, grace, moments=6)
    print(f"{way}: {outcomes[way].seconds[-1]:.0f} s on the clock")
np.testing.assert_allclose(
    outcomes["synchronous"].params[-1],
    outcomes["delayed"].params[-1],
    rtol=1e-5,
    atol=1e-6,
)
assert outcomes["synchronous"].seconds == outcomes["delayed"].seconds

# %% tags=["picture"]
figure = new_figure(9, 3, layout="constrained")
by_steps, by_time = figure.subplots(1, 2, sharey=True)
final = {}
for way in ("synchronous", "asynchronous"):
    outcome = outcomes[way]
    losses = [evaluate(32, params, data)[0] for params in outcome.params]
    final[way] = losses[-1]
    steps = 20 * np.array(outcome.visits)
    by_steps.plot(steps, losses, "o-", label=way)
    by_time.plot(outcome.seconds, losses, "o-")
by_steps.set_xlabel("inner steps of all workers")
by_steps.set_ylabel("loss")
by_steps.legend()
by_time.set_xlabel("seconds on the clock")
figure

# %% [markdown]
# For as many inner steps asynchronous training takes less than a third of the time. It makes four updates, each from half of a pseudo-gradient, where synchronous training makes
# one from their mean. On this small problem it is ahead by steps, too. That needs not be so: on its large network, whose data are not learned by heart, the study finds it behind with
# momentum at the server, and ahead without. `python -m experiments local-sgd` trains that network, and prints the study's figures beside its own.

# %%
assert outcomes["asynchronous"].seconds[-1] < outcomes["synchronous"].seconds[-1] / 3
print(outcomes["asynchronous"].staleness)
assert set(outcomes["synchronous"].staleness) == {0}

# %% [markdown]
# ## Thrown away, or not let in
#
# A bound on staleness can be kept in two ways. `drop_staler_than` throws gradients away that are too late. `max_staleness` lets no instance in while an update would make one
# that is under way too late. Let the examples of one class take eight steps, each on a worker of its own, and those of the other class one. The model is a single number: the
# share of the slow class, which is one half.

# %%
options = AdmissionOptions(bound=(2, 8), examples=600, rate=0.05)
records = [admission.train(options, None, 0, seed=0)]
for way in admission.WAYS:
    for bound in options.bound:
        records.append(admission.train(options, way, bound, seed=0))
for record in records:
    print(
        f"{record['way']}, bound {record['bound']}: share {record['share']:.2f}, {record['dropped']:.0%} dropped"
    )

# %% tags=["picture"]
figure = new_figure(7, 2.6, layout="constrained")
axes = figure.subplots()
names = ["no bound", *(f"{record['way']}, {record['bound']}" for record in records[1:])]
axes.barh(names, [record["share"] for record in records])
axes.axvline(0.5, color="0.4", linestyle=":")
axes.set_xlim(0, 1)
axes.set_xlabel("learned share of the slow class; its true share is one half")
axes.invert_yaxis()
figure

# %% [markdown]
# Whoever throws late gradients away trains on the fast class. A bound by admission loses none, and takes no more time.

# %%
shares = {(record["way"], record["bound"]): record["share"] for record in records}
assert shares["discarded", 2] < 0.35
assert abs(shares["held back", 2] - 0.5) < 0.12
slowest = max(record["seconds"] for record in records)
assert slowest < 1.05 * records[0]["seconds"]
