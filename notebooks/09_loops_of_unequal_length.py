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
# # Loops of unequal length
#
# You have a JAX function of one thing, with a loop in it that runs as long as it must: until a sampler accepts, until a solver's step is small enough, until Newton's method has
# converged. `jax.vmap` makes it a function of many things. Then all wait for the slowest.
#
# This notebook draws what happens there, and what `amp.vmap` does about it. Everything in it is plain JAX; you need to know nothing else of **ampjax**.

# %%
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ampjax as amp
from ampjax.viz import lanes, new_figure

# %% [markdown]
# ## What vmap does
#
# Take a number; halve it if it is even, else triple it and add one; go on until it is 1. How many steps does that take?


# %%
def steps_to_one(n):
    def step(carry):
        n, count = carry
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    return lax.while_loop(lambda carry: carry[0] > 1, step, (n, 0))[1]


numbers = jnp.arange(1, 30)
steps = jax.vmap(steps_to_one)(numbers)
print(steps)

# %% [markdown]
# From 27 it is a long way. `vmap` makes one loop of the 29 loops. It runs until the last number has arrived, and each trip computes a step for all 29: for those that arrived
# long ago, too, whose results it throws away.

# %% tags=["picture"]
figure = new_figure(7.0, 3.6, layout="constrained")
axes = figure.subplots()
axes.barh(numbers, [steps.max()] * len(numbers), color="#DDDDDD", label="computed by vmap")
axes.barh(numbers, steps, color="#0072B2", label="needed")
axes.set(xlabel="trips of the loop", ylabel="number")
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
figure.legend(frameon=False, loc="outside upper center", ncols=2)
figure

# %% [markdown]
# Why does it do so? A vectorized program does one thing at a time to whole arrays; it can't be in the middle of one element's loop and behind another's. Of a `lax.cond` it
# computes both branches for all elements, for the same reason.
#
# ## Lanes
#
# `amp.vmap` takes the same function and gives the same results. But it keeps only a few *lanes*, rows of an array, with an element in each; here it has eight. When the element in
# a lane has arrived, its result is stored, and the lane takes the next element. The others are in the middle of their loops meanwhile. All of this is one compiled program.

# %%
in_lanes = amp.vmap(steps_to_one, lanes=8, trips=4)
assert (in_lanes(numbers) == steps).all()
report = in_lanes.explain(numbers)
report

# %% [markdown]
# `explain` has counted. A row is one trip for one element. Here are all of them:

# %% tags=["picture"]
lanes(report)

# %% [markdown]
# Above: the picture from before. Below: the lanes. Each coloured bar is an element; areas are work. Grey in lanes has two causes. A finished element is noticed when the program
# looks, which it does every `trips` trips of a loop, four here. And in the end, when all elements have been taken, lanes stand empty until the last one is done. With more
# elements than these 29 that matters less:

# %%
many = jnp.arange(1, 1001)
print(amp.vmap(steps_to_one, lanes=32, trips=4).explain(many))

# %% [markdown]
# ## Which form is fastest
#
# Fewer rows are not always less time. Lanes cost something: a look at who is where, results written one by one. Where bodies are small, as here, a CPU is often best at doing one
# element after the other, which is `jax.lax.map`; where all loops are about equally long, `jax.vmap` is. So if you leave out `lanes` and `trips`, the first call for arrays of some shape measures
# all three, and later calls take the fastest. We put that to the test in four fields where such loops are common.


# %%
def milliseconds(function, *args):
    """The least of five calls."""
    jax.block_until_ready(function(*args))
    found = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        found.append(time.perf_counter() - start)
    return 1e3 * min(found)


times = {}


def race(name, function, *args, tolerance=1e-4):
    """Computes a function in all forms, checks that their first results agree, and gives those of `amp.vmap`."""
    of_vmap = jax.jit(jax.vmap(function))
    of_map = jax.jit(lambda *args: lax.map(lambda own: function(*own), args))
    ours = amp.vmap(function)
    found, expected = ours(*args), of_vmap(*args)
    first, wanted = jax.tree.leaves(found)[0], jax.tree.leaves(expected)[0]
    np.testing.assert_allclose(first, wanted, rtol=tolerance, atol=tolerance)
    forms = {"jax.vmap": of_vmap, "jax.lax.map": of_map, "amp.vmap": ours}
    times[name] = {form: milliseconds(f, *args) for form, f in forms.items()}
    print("   ".join(f"{form} {t:.1f} ms" for form, t in times[name].items()))
    return found


# %% [markdown]
# ### Sampling
#
# A slice sampler draws a height under the density, and then points until one of them lies where the density is above that height; each miss shrinks the interval from which points
# are drawn. That is a loop of random length for each draw, in a loop over draws. Hamiltonian samplers that choose how far they go, such as NUTS, are of this kind as well.


# %%
def density(x):
    """Two hills of different width."""
    narrow = 0.4 * jnp.exp(-0.5 * ((x + 1) / 0.1) ** 2) / 0.1
    wide = 0.6 * jnp.exp(-0.5 * ((x - 2) / 1.5) ** 2) / 1.5
    return (narrow + wide) / np.sqrt(2 * np.pi)


def chain(uniforms):
    """Draws by slice sampling, and the trips of each; from random numbers between 0 and 1, a row for each draw."""

    def draw(x, u):
        height = u[0] * density(x)

        def is_below(carry):
            return density(carry[0]) < height

        def shrink(carry):
            y, left, right, i = carry
            left, right = jnp.where(y < x, y, left), jnp.where(y < x, right, y)
            return left + u[i] * (right - left), left, right, i + 1

        # the first point is one that is certainly below
        new, _, _, i = lax.while_loop(is_below, shrink, (12.0, -6.0, 12.0, 1))
        return new, (new, i - 1)

    return lax.scan(draw, 2.0, uniforms)[1]


uniforms = jax.random.uniform(jax.random.key(0), (128, 50, 64))  # 64 are more than a draw needs
draws, trips = race("sampling: 128 chains", chain, uniforms, tolerance=1e-3)
of_vmap = 128 * trips.max(axis=0).sum()
print(f"{trips.sum():,} trips are needed, vmap computes {of_vmap:,}")
assert of_vmap > 2 * trips.sum()

# %% [markdown]
# All chains make about the same number of trips altogether. But `vmap` waits in each of the fifty draws for the longest of 128 loops, and so computes several times as many trips as are needed.
# The draws follow from the random numbers, so they are the same in every form; the function could as well draw them itself, from a key for each chain.

# %% tags=["picture"]
draws = np.asarray(draws)[:, 10:].ravel()
places = np.linspace(-2.5, 7, 400)
figure = new_figure(6.5, 2.8, layout="constrained")
axes = figure.subplots()
axes.hist(draws, bins=150, density=True, color="#56B4E9", label=f"{len(draws):,} draws")
axes.plot(places, density(places), color="#000000", linewidth=1, label="density")
axes.set(xlabel="x", ylabel="draws, as a density")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
assert abs(np.mean(draws < -0.5) - (0.4 + 0.6 * 0.048)) < 0.05
figure

# %% [markdown]
# ### Differential equations
#
# An adaptive solver chooses its steps. Van der Pol's oscillator is stiffer the larger μ is, and a solver for equations that are not stiff then needs many small steps. Here are 256 values of
# μ from 1 to 300, with an explicit method of order 3 that estimates its error with one of order 2 (Bogacki and Shampine).


# %%
def van_der_pol(mu, end=5.0, tolerance=1e-3):
    """The state after some time, and how many steps it took."""

    def field(y):
        return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    def step(carry):
        t, y, dt, n = carry
        dt = jnp.minimum(dt, end - t)
        k1 = field(y)
        k2 = field(y + dt * k1 / 2)
        k3 = field(y + dt * k2 * 3 / 4)
        new = y + dt * (2 * k1 + 3 * k2 + 4 * k3) / 9
        error = dt * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - field(new) / 8)
        size = jnp.max(abs(error) / (tolerance * (1 + abs(y)))) + 1e-6
        is_good = size < 1
        factor = jnp.clip(0.9 * size ** (-1 / 3), 0.2, 5.0)
        return jnp.where(is_good, t + dt, t), jnp.where(is_good, new, y), dt * factor, n + 1

    start = (0.0, jnp.array([2.0, 0.0]), 1e-3, 0)
    _, y, _, n = lax.while_loop(lambda carry: carry[0] < end - 1e-6, step, start)
    return y, n


mu = jnp.asarray(np.exp(np.random.default_rng(0).uniform(0, np.log(300), 256)), jnp.float32)
_, n_steps = race("equations: 256 oscillators", van_der_pol, mu, tolerance=5e-2)

# %% tags=["picture"]
figure = new_figure(6.5, 2.8, layout="constrained")
axes = figure.subplots()
axes.loglog(mu, n_steps, "o", markersize=3, color="#0072B2", label="an oscillator")
axes.axhline(n_steps.max(), color="#BBBBBB", label="what vmap computes for each")
axes.set(xlabel="μ", ylabel="steps")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False)
figure

# %% [markdown]
# ### Optimization
#
# Problems that are solved to a tolerance take as many steps as their condition asks for. Gradient descent on 128 logistic regressions, each with data of its own:


# %%
def fit(features, labels, tolerance=1e-2):
    """The weights of a logistic regression with a small penalty."""

    def loss(w):
        margins = labels * (features @ w)
        return jnp.mean(jnp.log1p(jnp.exp(-margins))) + 0.01 * jnp.sum(w**2)

    gradient = jax.grad(loss)
    length = 1 / (0.25 * jnp.sum(features**2) / len(labels) + 0.02)

    def step(carry):
        w, g = carry
        w = w - length * g
        return w, gradient(w)

    start = jnp.zeros(features.shape[1])
    goes_on = lambda carry: jnp.linalg.norm(carry[1]) > tolerance
    return lax.while_loop(goes_on, step, (start, gradient(start)))[0]


rng = np.random.default_rng(0)
scales = np.exp(0.6 * rng.normal(size=(128, 1, 8)))
features = rng.normal(size=(128, 50, 8)) * scales
labels = np.where((features / scales).sum(2) + rng.normal(size=(128, 50)) > 0, 1.0, -1.0)
features, labels = jnp.asarray(features, jnp.float32), jnp.asarray(labels, jnp.float32)
race("optimization: 128 regressions", fit, features, labels, tolerance=1e-2)

# %% [markdown]
# Sometimes a few problems never end. `max_trips` gives each so many trips. Then the result is a pair, with what has been reached and whether that is the end:

# %%
bounded = amp.vmap(fit, lanes=32, trips=16, max_trips=200)
weights, has_ended = bounded(features, labels)
print(int(has_ended.sum()), "of", len(has_ended), "regressions have come to their end")
assert 0 < has_ended.sum() < 128

# %% [markdown]
# ### Early exit
#
# A network of up to eight blocks, which an input leaves as soon as one class is clear. Most inputs are easy. With masks, as one has to write it for `vmap`, all eight blocks are computed
# for each input; the loop below computes only those that an input needs.

# %%
WIDTH, BLOCKS, CLASSES = 128, 8, 10
rng = np.random.default_rng(0)
blocks = jnp.asarray(rng.normal(size=(BLOCKS, WIDTH, WIDTH)) / np.sqrt(WIDTH), jnp.float32)
readout = jnp.asarray(rng.normal(size=(WIDTH, CLASSES)) / np.sqrt(WIDTH), jnp.float32)


def classify(x):
    """Scores of the classes, and how many blocks they took."""

    def is_unsure(carry):
        x, i = carry
        first, second = lax.top_k(x @ readout, 2)[0]
        return (i < BLOCKS) & (first - second < 1.0)

    def block(carry):
        x, i = carry
        return x + jnp.tanh(x @ blocks[i]), i + 1

    x, n = lax.while_loop(is_unsure, block, (x, 0))
    return x @ readout, n


inputs = jnp.asarray(rng.normal(size=(512, WIDTH)), jnp.float32)
_, n_blocks = race("early exit: 512 inputs", classify, inputs)
print("inputs by blocks:", np.bincount(n_blocks, minlength=BLOCKS + 1))

# %% [markdown]
# ### The four together

# %% tags=["picture"]
figure = new_figure(7.0, 3.2, layout="constrained")
axes = figure.subplots()
places = np.arange(len(times))
for i, (form, colour) in enumerate({"jax.lax.map": "#56B4E9", "amp.vmap": "#0072B2"}.items()):
    gains = [t["jax.vmap"] / t[form] for t in times.values()]
    axes.barh(places + 0.4 * i - 0.2, gains, 0.38, color=colour, label=form)
axes.axvline(1.0, color="#000000", linewidth=1)
axes.set_yticks(places, list(times))
axes.invert_yaxis()
axes.set(xlabel="times as fast as jax.vmap, on this machine")
axes.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside upper center", ncols=2, frameon=False)
figure

# %% [markdown]
# No form is the best in all of them, and `amp.vmap` takes the best for each. In these examples, with their small bodies on a CPU, that is one of the two that JAX has. Lanes win where bodies are
# larger and loops lie in loops: the guide *Loops of unequal length* has a table.
#
# ## Streams
#
# A million starting points need not be in memory. `stream` takes an iterator and gives one. It reads elements in blocks, and lanes keep what they are at from block to block, so that no block waits for its
# own slowest element; one program serves for all blocks.
#
# As an example, the number of steps to 1 of the first 20,000 numbers, of which we keep nothing but the record:


# %%
def read(n):
    """Numbers, one by one; it counts how many have been read."""
    global n_read
    for n_read in range(1, n + 1):
        yield np.int32(n_read)


n_read = 0
record, most_ahead = (0, 0), 0
stream = amp.vmap(steps_to_one, lanes=32, trips=8).stream(read(20_000), block=256)
for number, count in enumerate(stream, start=1):
    record = max(record, (int(count), -number))
    most_ahead = max(most_ahead, n_read - number)
print(f"{-record[1]:,} takes {record[0]} steps; at most {most_ahead} numbers were in memory")
assert record == (278, -17_647)

# %% [markdown]
# Results come in the order of the elements. If one element takes very long, those behind it wait; when more than `most_waiting` do, no further element is begun. Where order does not
# matter, `ordered=False` gives pairs of an element's number and its result, as they finish:

# %%
stream = amp.vmap(steps_to_one, lanes=4, trips=4).stream(range(25, 33), block=4, ordered=False)
print([(25 + place, int(count)) for place, count in stream])

# %% [markdown]
# 27 comes last.
#
# ## What to remember
#
# * `amp.vmap(f)` takes any JAX function with `while_loop`, `fori_loop`, `scan`, `cond` or `switch` and gives what `jax.vmap(f)` gives. Make it once and keep it: each measures and compiles for itself.
# * `explain` says what there is to gain, `ampjax.viz.lanes` draws it.
# * `max_trips` for elements that may not end, `stream` for more elements than memory.
#
# The guide has the details: what is promised, derivatives, several devices, figures.
