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
# # Tables of n-grams beside a language model
#
# A small transformer predicts characters. Beside it is a table of hashed 3- and 5-grams (Engram, [arXiv 2601.07372](https://arxiv.org/abs/2601.07372)): a memory of which each
# character reads four rows. Two questions: is it worth its time? And what does it cost if its rows are updated late, as they are where several processes share a table? This is
# `python -m experiments engram` in miniature, on made-up sentences.

# %%
import tempfile
from functools import partial
from pathlib import Path

import jax
import numpy as np

from ampjax.nn import NgramTable
from ampjax.viz import new_figure
from experiments.engram import letters
from experiments.engram.late_rows import LateTraining, head_rows
from experiments.engram.letter_model import LetterModel, init_table
from experiments.engram.table_ways import make_way
from experiments.engram.turns import train_in_turns

WIDTH, CONTEXT, BATCH = 32, 32, 8
RATES = (3e-3, 0.1)

text = letters.load(n=100_000)
memory = NgramTable(n_rows=5_000, features=8, n_hidden=WIDTH, orders=(3, 5), n_heads=2)
model_of = partial(LetterModel, text.n_letters, CONTEXT, WIDTH, 1)


def letters_of(step):
    return letters.windows(text.train, BATCH, CONTEXT, np.random.default_rng([0, step]))


valid = letters.spread_windows(text.valid, 64, CONTEXT)
print(f"{text.name}: {len(text.train):,} characters, {text.n_letters} different")

# %% [markdown]
# ## Which rows a text reads
#
# The rows follow from the characters alone. Few of them make half of all reads: the *head*. The others are the *tail*.

# %% tags=["picture"]
n_rows = memory.n_ids * memory.n_rows
reads = np.bincount(memory.ids(text.train).ravel(), minlength=n_rows)
is_head = head_rows(reads)
print(f"{n_rows:,} rows, {(reads > 0).sum():,} of them read; the head has {is_head.sum():,}")
figure = new_figure(7, 2.8, layout="constrained")
axes = figure.subplots()
axes.loglog(np.sort(reads[reads > 0])[::-1])
axes.axvline(is_head.sum(), color="0.4", linestyle=":", label="end of the head")
axes.set_xlabel("rows, those that are read most often first")
axes.set_ylabel("reads")
axes.legend()
figure

# %% [markdown]
# ## With a table or without, at equal time
#
# Three ways train for three seconds each, by turns, so that other programs on the machine slow all alike: no table; a table in the jitted step, whose optimizer updates all rows;
# and `px.get_runner`, which finds by itself that the table is read by rows, keeps it on the host, and updates only those.

# %%
ways = {}
with tempfile.TemporaryDirectory() as folder:
    for name, kind in (("no table", "none"), ("jitted", "jitted"), ("runner", "memory")):
        ways[name] = make_way(kind, model_of, memory, RATES, 0, Path(folder))
curves = train_in_turns(ways, 3.0, 3, letters_of, valid)
for name, curve in curves.items():
    print(f"{name}: {curve.steps[-1]} steps, validation loss {curve.losses[-1]:.2f}")

# %% tags=["picture"]
figure = new_figure(9, 3, layout="constrained")
by_time, by_steps = figure.subplots(1, 2, sharey=True)
for name, curve in curves.items():
    by_time.plot(curve.seconds, curve.losses, "o-", label=name)
    by_steps.plot(curve.steps, curve.losses, "o-")
by_time.set_xlabel("seconds")
by_time.set_ylabel("validation loss, nats a character")
by_time.legend()
by_steps.set_xlabel("steps")
figure

# %% [markdown]
# Each way has become better. Which one is ahead after so short a time depends on the machine: a small table is cheap in the jitted step too, and a runner's step has costs of its
# own, which a table of millions of rows repays.

# %%
for curve in curves.values():
    assert curve.losses[-1] < curve.losses[0]

# %% [markdown]
# ## Late rows
#
# Now gradients are applied some steps after they were computed: those of all rows, or of rows and all other parameters. The loss is compared with that of the same training on time.
# Beside it is how many of its own updates a row misses between its read and its gradient.

# %%
LATE = {"rows": "rows", "all": "rows and dense parameters"}
DELAYS = (4, 16)


def train(late, delay, n_steps=80):
    model = model_of(memory)
    params = model.init(jax.random.key(0))
    training = LateTraining(model, params, init_table(memory, 0), RATES, late, delay, is_head)
    for step in range(n_steps):
        training.run(model.batch(letters_of(step)))
    training.finish()
    missed = training.missed.means
    return float(training.losses(model.batch(valid)).mean()), missed["head"], missed["tail"]


on_time, *_ = train("rows", 0)
excess = {}
for late, name in LATE.items():
    for delay in DELAYS:
        loss, of_head, of_tail = train(late, delay)
        excess[late, delay] = loss - on_time
        print(
            f"{name}, {delay} steps late: {loss - on_time:+.3f}; missed: head {of_head:.1f}, tail {of_tail:.1f}"
        )

# %% tags=["picture"]
figure = new_figure(7, 2.8, layout="constrained")
axes = figure.subplots()
for late, name in LATE.items():
    axes.plot(DELAYS, [excess[late, delay] for delay in DELAYS], "o-", label=name)
axes.set_xscale("log", base=2)
axes.set_xticks(DELAYS, DELAYS)
axes.minorticks_off()
axes.set_xlabel("steps by which gradients are late")
axes.set_ylabel("excess loss")
axes.legend()
figure

# %% [markdown]
# A row of the tail misses fewer updates than one of the head, as it is read less often. Late rows cost little; late dense parameters, at this learning rate, much more.
# So a table may be updated asynchronously where the rest of the model may not. `python -m experiments engram` has head and tail apart, tables of 30 million rows, and captions
# in place of made-up sentences.

# %%
assert excess["all", 16] > 3 * abs(excess["rows", 16])
assert of_tail < of_head
