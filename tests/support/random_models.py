"""Random models of the front end and random instances, for property tests.

A model is an expression tree of tuples that is run as Python calls of ampjax's combinators; its `repr` is what a failing test prints. Vectors have two
entries and all names of lengths are the spec's, so that programs of one primitive serve many models.

Decisions that a read value makes, and comparisons in `max`, are recorded with their margins wherever the model runs as it is: a test in single
precision leaves out cases in which rounding could decide (`Margins`).
"""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp

D = 2
WORDS = 5

VECTOR = "vector"
NUMBER = "number"
INTEGER = "integer"
COMPUTED = "computed integer"
"""Types of expressions; an integer follows from the instance, a computed one need not. Others: `("pair", type, type)`, `("sequence", type)`."""

RECURSION = "recursion"
"""The type of a name that stands for the results of a recursion over `w`, of which those of earlier elements may be asked."""

PAIR_TYPES = (
    ("pair", VECTOR, NUMBER),
    ("pair", VECTOR, COMPUTED),
    ("pair", COMPUTED, ("pair", NUMBER, VECTOR)),
)

FREE = "free"
STATIC = "static"
DYNAMIC = "dynamic"
"""What is known of an expression when: of a free one nothing needs a message, it may be of parameters alone."""


def spec(dtype="float32"):
    """What an instance of every random model looks like."""

    def tree():
        return amp.Tree("int32[{}]", "int32[{}]", {"word": "int32[{}]"})

    def named(name):
        return jax.tree.map(
            lambda text: text.format(name),
            tree(),
        )

    return {
        "words": "int32[w]",
        "order": "int32[w]",
        "x": f"{dtype}[w,{D}]",
        "chars": "int32[w,c]",
        "more": f"{dtype}[u,{D}]",
        "wide": named("v"),
        "binary": named("b"),
        "k": "int32[]",
        "n": "int32[]",
        "y": f"{dtype}[{D}]",
    }


SEQUENCES = {
    "words": ("w", INTEGER),
    "order": ("w", INTEGER),
    "x": ("w", VECTOR),
    "chars": ("w", ("sequence", "c", INTEGER)),
    "more": ("u", VECTOR),
}


def parameters(seed, dtype="float32"):
    """Parameters that keep tanh out of saturation."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.normal(0, 0.7, shape).astype(dtype)

    def dense():
        return {"w": draw(D, D), "b": draw(D)}

    return {
        "a": dense(),
        "b": dense(),
        "c": dense(),
        "embed": {"e": draw(WORDS, D)},
        "named": dense(),
    }


def instance(seed, shape, dtype="float32"):
    """An instance.

    Args:
      seed: Of its values.
      shape: Its lengths: words, other elements, inner nodes of each of the two trees.
    """
    rng = np.random.default_rng(seed)
    w, u, wide, binary = shape
    sizes = rng.integers(0, 3, w)

    def ints(n):
        return rng.integers(0, WORDS, n).astype(np.int32)

    return {
        "words": ints(w),
        "order": np.arange(w, dtype=np.int32),
        "x": rng.normal(size=(w, D)).astype(dtype),
        "chars": amp.Ragged(
            ints(int(sizes.sum())),
            sizes,
        ),
        "more": rng.normal(size=(u, D)).astype(dtype),
        "wide": _tree(rng, wide, False),
        "binary": _tree(rng, binary, True),
        "k": np.int32(rng.integers(0, 4)),
        "n": np.int32(rng.integers(-1, 4)),
        "y": rng.normal(size=D).astype(dtype),
    }


def _tree(rng, n_inner, is_binary):
    parent = [-1]
    side = [0]
    leaves = [0]
    for _ in range(n_inner):
        at = leaves.pop(int(rng.integers(len(leaves))))
        for k in range(2 if is_binary else int(rng.integers(1, 4))):
            leaves.append(len(parent))
            parent.append(at)
            side.append(k)
    order = rng.permutation(len(parent))
    place = np.argsort(order)
    parents = np.array(
        [place[parent[i]] if parent[i] >= 0 else -1 for i in order],
        np.int32,
    )
    return amp.Tree(
        parents,
        np.array(side, np.int32)[order],
        {
            "word": rng.integers(
                0,
                WORDS,
                len(parent),
            ).astype(np.int32)
        },
    )


# -- what expressions mean


@dataclass
class Margins:
    """How far decisions were from being others, while a model ran as it is."""

    least: float = np.inf

    def note(self, margin):
        self.least = min(self.least, float(margin))


_MARGINS: contextvars.ContextVar[Margins | None] = contextvars.ContextVar(
    "margins",
    default=None,
)


@dataclass(frozen=True)
class Model:
    """A random model.

    Args:
      loss: The expression of its loss.
    """

    loss: Any

    def __call__(self, p, s):
        return evaluate(
            self.loss,
            p,
            {name: s[name] for name in s},
        )

    @property
    def size(self):
        """The number of operations in its text."""
        return _size(self.loss)

    def margins(self, p, instances):
        """The least margin of a decision on some instances."""
        found = Margins()
        token = _MARGINS.set(found)
        try:
            for each in instances:
                self(p, each)
        finally:
            _MARGINS.reset(token)
        return found.least


def _size(expression):
    if isinstance(expression, tuple):
        return 1 + sum(map(_size, expression))
    return 0


def evaluate(expression, p, env):
    """The value of an expression: calls `amp` and JAX."""
    op, *args = expression
    return OPERATIONS[op](p, env, *args)


def function(expression, p, env):
    """A Python function of `("fn", names, body)`, which closes over what is in scope."""
    _, names, body = expression
    return lambda *values: evaluate(
        body,
        p,
        {**env, **dict(zip(names, values, strict=True))},
    )


def _dense(p, env, key, x):
    return jnp.tanh(evaluate(x, p, env) @ p[key]["w"] + p[key]["b"])


def _joined(p, env, key, x, y):
    x = evaluate(x, p, env)
    y = evaluate(y, p, env)
    return jax.nn.sigmoid(x @ p[key]["w"]) * y + p[key]["b"]


def _cell(p, env, key, state, x):
    """A recurrent cell: with a state of zeros there is no product, and no parameter."""
    h = evaluate(state, p, env)
    return jnp.tanh(h @ p[key]["w"] + evaluate(x, p, env)) + 0.5 * h


def _named(p, env, x):
    call = amp.node("named_node")(lambda x: jnp.tanh(x @ p["named"]["w"]) + p["named"]["b"])
    return call(evaluate(x, p, env))


def _let(p, env, name, value, body):
    return evaluate(
        body,
        p,
        {**env, name: evaluate(value, p, env)},
    )


def _items(p, env, *parts):
    return tuple(evaluate(part, p, env) for part in parts)


def _scan(p, env, sequences, init, step, reverse, which):
    return amp.scan(
        lambda carry, xs: function(step, p, env)(carry, *xs),
        evaluate(init, p, env),
        _items(p, env, *sequences),
        reverse=reverse,
    )[which]


def _fori(p, env, n, init, body):
    return amp.fori_loop(
        evaluate(n, p, env),
        function(body, p, env),
        evaluate(init, p, env),
    )


def _cond(p, env, test, true, false):
    return amp.cond(
        evaluate(test, p, env) % 2 == 0,
        function(true, p, env),
        function(false, p, env),
    )


def _switch(p, env, index, *branches):
    return amp.switch(
        evaluate(index, p, env) - 1,
        [function(each, p, env) for each in branches],
    )


def _decision(value):
    """A truth value that a computed number decides, with its margin."""
    score = value @ np.array([1.0, -0.7], value.dtype) + 0.137
    if (margins := _MARGINS.get()) is not None:
        margins.note(abs(float(score)))
    return score > 0


def _cond_read(p, env, value, true, false):
    test = amp.read(
        _decision(evaluate(value, p, env)),
        assume=1,
    )
    return amp.cond(
        test,
        function(true, p, env),
        function(false, p, env),
    )


def _switch_read(p, env, value, *branches):
    x = evaluate(value, p, env)
    index = _decision(x).astype(jnp.int32) + _decision(-x[::-1]).astype(jnp.int32)
    return amp.switch(
        amp.read(index),
        [function(each, p, env) for each in branches],
    )


def _experts(p, env, values, *branches):
    """Several choices between the same functions."""
    total = 0.0
    functions = [function(each, p, env) for each in branches]
    for value in values:
        test = _decision(evaluate(value, p, env))
        total = total * 0.5 + amp.switch(
            amp.read(test.astype(jnp.int32)),
            functions,
        )
    return total


def _while(p, env, init, body, most):
    step = function(body, p, env)
    test = lambda carry: amp.read(_decision(carry[0]))
    return amp.while_loop(
        test,
        lambda carry: (step(carry[0]), carry[1] + 1),
        (init_of(p, env, init), jnp.int32(0)),
        most=most,
    )


def init_of(p, env, init):
    """A vector that starts a loop, as an array."""
    return jnp.asarray(evaluate(init, p, env))


def _fold(p, env, tree, leaf, branch, which):
    values = lambda n: n["word"]
    at_leaf = function(leaf, p, env)
    at_branch = function(branch, p, env)
    arity = 2 if tree == "binary" else None
    return amp.fold_tree(
        lambda n: at_leaf(values(n)),
        lambda n, *kids: at_branch(values(n), *kids),
        env[tree],
        arity=arity,
    )[which]


def _scan_tree(p, env, tree, init, step):
    f = function(step, p, env)
    return amp.scan_tree(
        lambda state, n: f(state, n["word"]),
        evaluate(init, p, env),
        env[tree],
    )


def _recurse(p, env, name, init, word, step):
    def each(recur, i, w):
        earlier = lambda number: recur(
            number % (i + 1) - 1
        )  # from -1, which is none, to the one before
        return evaluate(step, p, {**env, name: earlier, word: w})

    return amp.recurse(
        each,
        init_of(p, env, init),
        env["order"],
        env["words"],
    )


def _largest(p, env, xs):
    xs = evaluate(xs, p, env)
    if (margins := _MARGINS.get()) is not None and len(xs) > 1:
        margins.note(
            np.min(
                np.diff(
                    np.sort(np.asarray(xs), axis=0),
                    axis=0,
                )
            )
        )
    return jnp.tanh(amp.max(xs))


def _take(p, env, xs, at):
    xs = evaluate(xs, p, env)
    at = evaluate(at, p, env)
    n = amp.length(xs)
    return amp.cond(
        n > 0,
        lambda: amp.take(xs, at % jnp.maximum(n, 1)),
        lambda: jnp.zeros(D, jnp.result_type(float)),
    )


def _metric(p, env, value):
    value = evaluate(value, p, env)
    amp.metric("told", value)
    return value


def _output(p, env, value):
    value = evaluate(value, p, env)
    amp.output("given", value)
    return value


OPERATIONS = {
    "get": lambda p, env, name: env[name],
    "word": lambda p, env, tree: env[tree].value["word"],
    "item": lambda p, env, pair, i: evaluate(pair, p, env)[i],
    "pair": _items,
    "let": _let,
    "zeros": lambda p, env: jnp.zeros(D, jnp.result_type(float)),
    "constant": lambda p, env, x: jnp.full(
        D,
        x,
        jnp.result_type(float),
    ),
    "param": lambda p, env, key: p[key]["b"],
    "embed": lambda p, env, i: p["embed"]["e"][evaluate(i, p, env) % WORDS],
    "dense": _dense,
    "joined": _joined,
    "cell": _cell,
    "named": _named,
    "mix": lambda p, env, x, y: evaluate(x, p, env) * 0.6 - jnp.sin(evaluate(y, p, env)),
    "relu": lambda p, env, x: jax.nn.softplus(evaluate(x, p, env)),
    "scaled": lambda p, env, i, x: (0.3 * evaluate(i, p, env) + 0.5) * evaluate(x, p, env),
    "stopped": lambda p, env, x: jax.lax.stop_gradient(evaluate(x, p, env)),
    "where": lambda p, env, i, x, y: jnp.where(
        evaluate(i, p, env) > 1,
        evaluate(x, p, env),
        evaluate(y, p, env),
    ),
    "dot": lambda p, env, x, y: jnp.tanh(evaluate(x, p, env) @ evaluate(y, p, env)),
    "first": lambda p, env, x: evaluate(x, p, env)[0],
    "square": lambda p, env, x: jnp.sum(evaluate(x, p, env) ** 2),
    "plus": lambda p, env, x, y: evaluate(x, p, env) + 0.5 * evaluate(y, p, env),
    "times": lambda p, env, x, y: evaluate(x, p, env) * evaluate(y, p, env),
    "number": lambda p, env, i: 0.25 * evaluate(i, p, env),
    "half": lambda p, env, i: evaluate(i, p, env) // 2 + 1,
    "int": lambda p, env, i: jnp.int32(i),
    "length": lambda p, env, xs: amp.length(evaluate(xs, p, env)),
    "map": lambda p, env, xs, f: amp.map(
        function(f, p, env),
        *_items(p, env, *xs),
    ),
    "softmax": lambda p, env, xs: amp.softmax(evaluate(xs, p, env)),
    "sum": lambda p, env, xs: amp.sum(evaluate(xs, p, env)),
    "mean": lambda p, env, xs: amp.mean(evaluate(xs, p, env)),
    "max": _largest,
    "take": _take,
    "scan": _scan,
    "fori": _fori,
    "cond": _cond,
    "switch": _switch,
    "cond_read": _cond_read,
    "switch_read": _switch_read,
    "experts": _experts,
    "while": _while,
    "fold": _fold,
    "scan_tree": _scan_tree,
    "recurse": _recurse,
    "recall": lambda p, env, name, i: env[name](evaluate(i, p, env)),
    "metric": _metric,
    "output": _output,
}
