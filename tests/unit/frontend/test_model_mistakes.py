"""Mistakes in models, specs and instances: each is told in four parts, with the user's line where there is one."""

import ast
import inspect
import re
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import AmpError, DataError, GraphError, ParameterError, SettingsError

H = 2
SEQUENCE = "Put it into `amp.map`, or use `amp.scan`, `amp.sum`, `amp.max`, `amp.softmax`, `amp.take` or `amp.length`."

PARAMS = {
    "a": {
        "w": np.ones((H, H), np.float32),
        "b": np.zeros(H, np.float32),
    },
    "c": {
        "w": np.ones((H, H), np.float32),
        "b": np.zeros(H, np.float32),
    },
    "e": np.ones((5, H), np.float32),
}
SPEC = {
    "w": "int32[w]",
    "x": "float32[w,2]",
    "u": "float32[u,2]",
    "ch": "int32[w,c]",
    "k": "int32[]",
    "y": "float32[2]",
    "t": amp.Tree("int32[v]", "int32[v]", {"word": "int32[v]"}),
}
TREE = amp.Tree(
    np.array([-1, 0, 0]),
    np.array([0, 0, 1]),
    {"word": np.array([1, 2, 3])},
)
INSTANCE = {
    "w": np.array([1, 2]),
    "x": np.ones((2, 2)),
    "u": np.ones((1, 2)),
    "ch": amp.Ragged(
        np.array([1, 2, 3]),
        np.array([1, 2]),
    ),
    "k": np.int32(1),
    "y": np.ones(2),
    "t": TREE,
}

MISTAKES = []


def mistake(text):
    """Notes a model with its error's text, after the number of the line that is marked with an arrow; `…` stands for what JAX says or another line."""

    def note(model):
        MISTAKES.append((model, text))
        return model

    return note


def embedded(p, s):
    return amp.map(
        lambda w: p["e"][w],
        s["w"],
    )


def loss(v):
    return jnp.sum(v**2)


def lines_of(model):
    """The lines of the statement with an arrow; none where the error has no line."""
    source, first = inspect.getsourcelines(model)
    arrows = [i for i, line in enumerate(source, 1) if "# <-" in line]
    statements = []
    for n in ast.walk(ast.parse(textwrap.dedent("".join(source)))):
        if isinstance(n, ast.stmt):
            statements.append(n)
    spans = []
    for n in statements:
        if any(n.lineno <= i <= n.end_lineno for i in arrows):
            spans.append((n.lineno, n.end_lineno))
    start, end = max(spans, default=(1, 0))
    return range(first + start - 1, first + end)


def assert_told_of(model, error, text):
    """Where the mistake has a line, the error begins with it."""
    if lines := lines_of(model):
        file, number = re.match(r"(\w+\.py):(\d+)", str(error)).groups()
        assert file == Path(__file__).name and int(number) in lines
        text = f"{file}:{number}{text}"
    assert_told(error, text)


def assert_told(error, text):
    got = str(error)
    start = 0
    for part in text.split("…"):
        assert part in got[start:] if start else got.startswith(part), got
        start = got.index(part, start) + len(part)
    assert text.endswith("…") or start == len(got), got
    assert error.where and error.expected and error.got and error.fix


@mistake(
    ", `python_if`: expected operations of JAX on values that are traced, got `if`, `while`, `and`, `not` or `bool()` of one. Use `amp.cond` or `amp.while_loop`, with `amp.read` where parameters decide; or `jnp.where`."
)
def python_if(p, s):
    v = p["a"]["w"] @ s["y"]
    if v[0] > 0:  # <-
        v = v * 2
    return loss(v)


@mistake(
    ", `f`: expected operations of JAX on values that are traced, got `if`, `while`, `and`, `not` or `bool()` of one. Use `amp.cond` or `amp.while_loop`, with `amp.read` where parameters decide; or `jnp.where`."
)
def python_if_in_map(p, s):
    def f(w):
        if w > 2:  # <-
            return p["e"][w]
        return p["e"][0]

    return amp.sum(
        amp.map(
            lambda w: loss(f(w)),
            s["w"],
        )
    )


@mistake(
    ", `int_of_length`: expected a length to stay each instance's own, got a comparison, a loop or `int()` that needs a number. Use `amp.length` for the number, and `amp.map`, `amp.scan` or `amp.fori_loop` to go through elements."
)
def int_of_length(p, s):
    return loss(p["e"][int(s["w"].shape[0])])  # <-


@mistake(
    ", `len_of_seq`: expected a length to stay each instance's own, got `len()` or another use of it as a number of Python. Use `amp.length` for the number, and `amp.map`, `amp.scan` or `amp.fori_loop` to go through elements."
)
def len_of_seq(p, s):
    return loss(p["e"][len(s["w"])])  # <-


@mistake(
    ", `python_for`: expected a length to stay each instance's own, got a comparison, a loop or `int()` that needs a number. Use `amp.length` for the number, and `amp.map`, `amp.scan` or `amp.fori_loop` to go through elements."
)
def python_for(p, s):
    return sum(loss(p["e"][w]) for w in s["w"])  # <-


@mistake(
    ", `range_length`: expected operations of JAX on values that are traced, got `range()` of one, or one as the index of a list. Use `amp.fori_loop` to count, and `amp.switch` to choose."
)
def range_length(p, s):
    v = s["y"]
    for _ in range(amp.length(s["w"])):  # <-
        v = v * 2
    return loss(v)


@mistake(
    ", `numpy_on_traced`: expected operations of JAX on values that are traced, got NumPy's on one. Use the function of `jnp` or `jax` of the same name."
)
def numpy_on_traced(p, s):
    return loss(np.asarray(p["a"]["w"] @ s["y"]))  # <-


@mistake(
    ", `float_of`: expected operations of JAX on values that are traced, got `int()`, `float()` or another use of one as a number of Python. Leave it an array; use `amp.fori_loop`, `amp.switch` or `amp.take` where it counts or chooses."
)
def float_of(p, s):
    return loss(s["y"] * float((p["a"]["w"] @ s["y"])[0]))  # <-


@mistake(
    ": expected values of this function, and of those around it, got one of another function, float32[2], which was kept when that was traced. Return it from there: `amp.scan` and `amp.map` give the sequence of all elements' values."
)
def leaked(p, s):
    kept = []

    def f(h, w):
        kept.append(h)
        return h + p["e"][w], h

    h, _ = amp.scan(
        f,
        jnp.zeros(H),
        s["w"],
    )
    return loss(h + kept[0])  # <-


@mistake(
    ": expected values of this function, and of those around it, got one of another function, float32[2], which was kept when that was traced. Return it from there: `amp.scan` and `amp.map` give the sequence of all elements' values."
)
def leaked_into_other(p, s):
    kept = []
    amp.map(
        lambda w: kept.append(p["e"][w]) or p["e"][w],
        s["w"],
    )
    return amp.sum(
        amp.map(
            lambda w: loss(kept[0] * p["e"][w]),
            s["w"],
        )
    )  # <-


@mistake(
    ", `carry_shape`: expected a carry that keeps its types: float32[2], got float32[4]. Give both the same shapes and dtypes, with `astype` or `jnp.broadcast_to` where need be."
)
def carry_shape(p, s):
    return loss(
        amp.scan(lambda h, w: (jnp.concatenate([h, p["e"][w]]), None), jnp.zeros(H), s["w"])[0]
    )  # <-


@mistake(
    ", `carry_dtype`: expected a carry that keeps its types: float32[2], got float16[2]. Give both the same shapes and dtypes, with `astype` or `jnp.broadcast_to` where need be."
)
def carry_dtype(p, s):
    return loss(amp.scan(lambda h, w: (h.astype(jnp.float16), None), jnp.zeros(H), s["w"])[0])  # <-


@mistake(
    ", `carry_structure`: expected scan's function to return (carry, y), with a carry like `init`, one array, got `((*, *), None)`. Return the carry as `init` is built."
)
def carry_structure(p, s):
    return loss(amp.scan(lambda h, w: ((h, h), None), jnp.zeros(H), s["w"])[0])  # <-


@mistake(
    ", `scan_no_pair`: expected scan's function to return a pair (carry, y), got float32[2]. Return `(h, None)` where there is nothing to collect."
)
def scan_no_pair(p, s):
    return loss(amp.scan(lambda h, w: h + p["e"][w], jnp.zeros(H), s["w"])[0])  # <-


@mistake(
    ", `map_lengths`: expected sequences of one length for `map`, got lengths w and u. Give dimensions that are always equal one name in the spec."
)
def map_lengths(p, s):
    return amp.sum(
        amp.map(
            lambda w, u: loss(p["e"][w] + u),
            s["w"],
            s["u"],
        )
    )  # <-


@mistake(
    ", `map_array_fixed`: expected sequences of one length for `map`, got lengths w and 2. Give dimensions that are always equal one name in the spec."
)
def map_array_fixed(p, s):
    return amp.sum(
        amp.map(
            lambda w, u: loss(p["e"][w] + u),
            s["w"],
            s["y"],
        )
    )  # <-


@mistake(
    ", `map_number`: expected sequences for `map`, got int32[]. Give arrays whose first axis counts elements."
)
def map_number(p, s):
    return amp.sum(
        amp.map(
            lambda w: loss(p["e"][w]),
            s["k"],
        )
    )  # <-


@mistake(
    ", `branch_outputs`: expected the branch for true to return the same types as the branch for false: float32[3], got float32[2]. Give both the same shapes and dtypes, with `astype` or `jnp.broadcast_to` where need be."
)
def branch_outputs(p, s):
    return loss(
        amp.cond(
            s["k"] > 0,
            lambda: p["e"][0],
            lambda: jnp.zeros(3),
        )
    )  # <-


@mistake(
    ", `branch_structure`: expected one array, as the branch for false returns, got `(*, *)` from the branch for true. Return the same structure from every branch."
)
def branch_structure(p, s):
    return loss(amp.cond(s["k"] > 0, lambda: (p["e"][0], 1.0), lambda: p["e"][1])[0])  # <-


@mistake(
    ", `branch_dtype`: expected the branch for true to return the same types as the branch for false: int32[2], got float32[2]. Give both the same shapes and dtypes, with `astype` or `jnp.broadcast_to` where need be."
)
def branch_dtype(p, s):
    return loss(
        amp.cond(
            s["k"] > 0,
            lambda: p["e"][0],
            lambda: jnp.zeros(2, jnp.int32),
        )
    )  # <-


@mistake(
    ", `switch_branch_args`: expected a function of 1 argument, got switch_branch_args.<locals>.<lambda>() takes 0 positional arguments but 1 was given. Mend its arguments."
)
def switch_branch_args(p, s):
    return loss(
        amp.switch(
            s["k"],
            [lambda x: x, lambda: p["e"][0]],
            s["y"],
        )
    )  # <-


@mistake(
    ": expected operations on one element, got `integer_pow` on a whole sequence, whose length is each instance's own. Put it into `amp.map`, or use `amp.scan`, `amp.sum`, `amp.max`, `amp.softmax`, `amp.take` or `amp.length`. `amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
)
def plain_on_sequence(p, s):
    return jnp.sum(embedded(p, s) ** 2)  # <-


@mistake(
    ": expected operations on one element, got `iota` on a whole sequence, whose length is each instance's own. Put the elements' numbers into the example: `np.arange` of its length. `amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
)
def positions(p, s):
    return amp.sum(
        amp.map(
            lambda w, i: loss(p["e"][w]) * i,
            s["w"],
            jnp.arange(s["w"].shape[0]),
        )
    )  # <-


@mistake(
    ": expected operations on one element, got `dot_general` on a whole sequence, whose length is each instance's own. Put it into `amp.map`, or use `amp.scan`, `amp.sum`, `amp.max`, `amp.softmax`, `amp.take` or `amp.length`. `amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
)
def matmul_on_sequence(p, s):
    return amp.sum(
        amp.map(
            loss,
            embedded(p, s) @ p["a"]["w"],
        )
    )  # <-


@mistake(
    ": expected operations on one element, got `dynamic_slice` on a whole sequence, whose length is each instance's own. Take one element with `amp.take(xs, i)`; put what is shifted, cut or joined into the example as another sequence. `amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
)
def index_sequence(p, s):
    return loss(embedded(p, s)[0])  # <-


@mistake(
    ": expected operations on one element, got `gather` on a whole sequence, whose length is each instance's own. Take one element with `amp.take(xs, i)`; put what is shifted, cut or joined into the example as another sequence. `amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
)
def slice_of_sequence(p, s):
    return loss(amp.sum(embedded(p, s)[1:]))  # <-


@mistake(
    ": expected whole sequences, or their `amp.length`, got the length `w - 1`, as of a slice or of `xs[::-1]`. Put what is cut or turned round into the example as another sequence, or use `amp.scan` with `reverse=True`. `amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
)
def sequence_backwards(p, s):
    return loss(amp.sum(embedded(p, s)[::-1]))  # <-


@mistake(
    ": expected operations on one element, got `scan` on a whole sequence, whose length is each instance's own. Use `amp.scan`, or `amp.map` in place of `jax.lax.map`."
)
def scan_of_jax(p, s):
    return loss(jax.lax.scan(lambda h, x: (h + x, None), jnp.zeros(2), embedded(p, s))[0])  # <-


@mistake(
    ": expected operations on one element, got `reduce_sum` on a whole sequence, whose length is each instance's own. Use `amp.sum` or `amp.mean`. `amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
)
def fold_kids_plain(p, s):
    return loss(
        amp.fold_tree(lambda n: p["e"][n["word"]], lambda n, kids: jnp.sum(kids, 0), s["t"])[1]
    )  # <-


@mistake(
    ": expected operations on one element, got indexing (`gather`) on a whole sequence, whose length is each instance's own. Look up element by element: `amp.map(lambda i: table[i], xs)`. `amp.vmap` takes most such operations, and so does a trainer by batches: `amp.compile(..., messages=False)`."
)
def nested_as_array(p, s):
    return amp.sum(
        amp.map(
            lambda c: loss(p["e"][c]),
            s["ch"],
        )
    )  # <-


@mistake(
    ", `switch_star`: expected a list of at least one function, got function. Give `switch` a list of functions, then the operands: `amp.switch(index, [f, g], x)`."
)
def switch_star(p, s):
    return loss(
        amp.switch(
            s["k"],
            lambda: s["y"],
            lambda: p["e"][0],
        )
    )  # <-


@mistake(
    ", `cond_no_read`: expected a choice that follows from the instance, got one that depends on parameters. Say that it is to be read back: `amp.read(...)`. `amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
)
def cond_no_read(p, s):
    return loss(
        amp.cond(
            (p["a"]["w"] @ s["y"])[0] > 0,
            lambda: s["y"],
            lambda: p["e"][0],
        )
    )  # <-


@mistake(
    ", `switch_no_read`: expected a choice that follows from the instance, got one that depends on parameters. Say that it is to be read back: `amp.read(...)`. `amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
)
def switch_no_read(p, s):
    return loss(
        amp.switch(
            jnp.argmax(p["a"]["w"] @ s["y"]),
            [lambda: s["y"], lambda: p["e"][0]],
        )
    )  # <-


@mistake(
    ", `cond_on_params`: expected a choice that follows from the instance, got one that depends on parameters. Say that it is to be read back: `amp.read(...)`. `amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
)
def cond_on_params(p, s):
    return loss(
        amp.cond(
            p["a"]["b"][0] > 0,
            lambda: s["y"],
            lambda: p["e"][0],
        )
    )  # <-


@mistake(
    ", `read_float`: expected one integer or truth value to read, got float32[]. Compute the choice first, for example by `argmax` or a comparison."
)
def read_float(p, s):
    return loss(
        amp.cond(
            amp.read((p["a"]["w"] @ s["y"])[0]),
            lambda: s["y"],
            lambda: p["e"][0],
        )
    )  # <-


@mistake(
    ": expected parameters of one node in one operation, got those of `a` and `c`. Put them under one key, or wrap the lines in a function made with `amp.node`. `amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
)
def two_keys(p, s):
    return loss((p["a"]["w"] @ p["c"]["w"]) @ s["y"])  # <-


@mistake(
    ": expected parameters of one node in one operation, got those of `a` and `c`. Put them under one key, or wrap the lines in a function made with `amp.node`. `amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
)
def two_keys_add(p, s):
    return loss(s["y"] * (p["a"]["b"] + p["c"]["b"]))  # <-


@mistake(
    ", `leaf_two_nodes`: expected parameters of the node `two` alone, got a leaf of `a` that the node `one` uses (…, `leaf_two_nodes`). Let one node have it, or put it under a key of its own."
)
def leaf_two_nodes(p, s):
    f = amp.node("one")(lambda x: p["a"]["w"] @ x)
    g = amp.node("two")(lambda x: x @ p["a"]["w"])
    return loss(g(f(s["y"])))  # <-


@mistake(
    ": expected parameters of the node `a` alone, got a leaf of `a` that the node `one` uses (…, `leaf_node_and_plain`). Let one node have it, or put it under a key of its own."
)
def leaf_node_and_plain(p, s):
    f = amp.node("one")(lambda x: p["a"]["w"] @ x)
    return loss(p["a"]["w"] @ f(s["y"]))  # <-


@mistake(
    ", `node_option`: expected options of a node: tx, min_update_interval, max_dispatch_size, weights, gradient, worker, got `lr`. Leave it out, or write one of these names."
)
def node_option(p, s):
    return loss(
        amp.node(
            "one",
            lr=0.1,
        )(lambda x: p["a"]["w"] @ x)(s["y"])
    )  # <-


@mistake(
    ", `<lambda>`: expected arrays alone in a function made with `amp.node`, got `scan`. Make several nodes, one for each part between combinators."
)
def node_combinator(p, s):
    return amp.node("one")(lambda xs: amp.sum(amp.map(lambda w: loss(p["e"][w]), xs)))(s["w"])  # <-


@mistake(
    ", `node_sequence`: expected arrays for a function made with `amp.node`, got a sequence. Call it in a `map`."
)
def node_sequence(p, s):
    return amp.sum(
        amp.map(
            loss,
            amp.node("one")(lambda xs: p["e"][xs])(s["w"]),
        )
    )  # <-


@mistake(
    ", `<lambda>`: expected combinators inside combinators only, got one inside a transformation of JAX, such as `jax.vmap` or `jax.grad`. Use `amp.map` instead of `jax.vmap`; the graph is differentiated for you."
)
def in_vmap(p, s):
    return jnp.sum(
        jax.vmap(
            lambda y: amp.sum(
                amp.map(
                    lambda w: loss(p["e"][w]) * y,
                    s["w"],
                )
            )
        )(s["y"])
    )  # <-


@mistake(
    ", `<lambda>`: expected combinators inside combinators only, got one inside a transformation of JAX, such as `jax.vmap` or `jax.grad`. Use `amp.map` instead of `jax.vmap`; the graph is differentiated for you."
)
def in_grad(p, s):
    return loss(
        jax.grad(
            lambda y: amp.sum(
                amp.map(
                    lambda w: loss(p["e"][w] * y),
                    s["w"],
                )
            )
        )(s["y"])
    )  # <-


@mistake(
    ": expected combinators inside combinators only, got one inside `scan`. Use ampjax's `scan`, `map` or `cond` there instead of JAX's."
)
def in_lax_scan(p, s):
    return jax.lax.scan(
        lambda h, y: (
            h + amp.sum(amp.map(lambda w: loss(p["e"][w]) * y, s["w"])),
            None,
        ),
        0.0,
        s["y"],
    )[0]  # <-


@mistake(
    ": expected combinators inside combinators only, got one inside `cond`. Use ampjax's `scan`, `map` or `cond` there instead of JAX's."
)
def in_lax_cond(p, s):
    return jax.lax.cond(
        s["k"] > 0,
        lambda: amp.sum(
            amp.map(
                lambda w: loss(p["e"][w]),
                s["w"],
            )
        ),
        lambda: 0.0,
    )  # <-


@mistake(
    ", the loss: expected one number of floats, got float32[2]. Sum or average it: `jnp.sum`, `jnp.mean`."
)
def vector_loss(p, s):
    return p["e"][s["k"]]  # <-


@mistake(
    "the model, the loss: expected one number of floats, got int32[]. Return the loss, or `(loss, {name: value})`."
)
def int_loss(p, s):
    return s["k"]


@mistake(
    ", `seq_loss`, the loss: expected one number of floats, got float32[w]. Sum or average it: `amp.sum`, `amp.mean`."
)
def seq_loss(p, s):
    return amp.map(
        lambda w: loss(p["e"][w]),
        s["w"],
    )  # <-


@mistake(
    "the model: expected a loss: one number, got `None`. Is `return` missing? Return the loss, or `(loss, {name: value})`."
)
def none_loss(p, s):
    pass


@mistake(
    "the model: expected a loss: one number, got `(*, *, *)`. Return the loss, or `(loss, {name: value})`."
)
def triple(p, s):
    return loss(p["e"][s["k"]]), 1.0, 2.0


@mistake(", acc: expected one number, got float32[2]. Sum or average it: `jnp.sum`, `jnp.mean`.")
def metric_shape(p, s):
    return loss(p["e"][s["k"]]), {"acc": p["e"][s["k"]]}  # <-


@mistake(
    ", `key_missing`: expected one of the keys (parameters: 'a', 'c', 'e'; spec: 'w', 'x', 'u', 'ch', 'k', 'y', 't'), got 'label'. Add it, or mend its name. A model takes the parameters first, then the example."
)
def key_missing(p, s):
    return loss(p["e"][s["label"]])  # <-


@mistake(
    ", `float_index`: expected integers as indices, got floats. Give them an integer type in the spec, such as `int32[t]`, or cast them with `astype`."
)
def float_index(p, s):
    return loss(p["e"][s["y"][0]])  # <-


@mistake(
    ", `fold_without_arity`: expected a function of 2 arguments, got fold_without_arity.<locals>.<lambda>() missing 1 required positional argument: 'b'. Take the children as one sequence, or pass `arity`, the number of children."
)
def fold_without_arity(p, s):
    return loss(amp.fold_tree(lambda n: p["e"][n["word"]], lambda n, a, b: a + b, s["t"])[1])  # <-


@mistake(
    ", `metric_shape2`: expected one number for the metric `acc`, got float32[2]. Sum or average it."
)
def metric_shape2(p, s):
    amp.metric("acc", p["e"][s["k"]])  # <-
    return loss(p["e"][s["k"]])


@mistake(
    ", `a_text_of_steps`: expected arguments that a combinator takes, got TypeError: …. Pass arguments of the types that the function's documentation names."
)
def a_text_of_steps(p, s):
    return loss(
        amp.fori_loop(
            "three",
            lambda i, h: h,
            p["e"][0],
        )
    )  # <-


@mistake(
    ", `a_choice_between_values`: expected arguments that a combinator takes, got TypeError: …. Pass arguments of the types that the function's documentation names."
)
def a_choice_between_values(p, s):
    return loss(
        amp.cond(
            True,
            p["e"][0],
            p["e"][1],
        )
    )  # <-


@mistake(
    ", `no_sends`: expected arguments that a combinator takes, got TypeError: …. Pass arguments of the types that the function's documentation names."
)
def no_sends(p, s):
    return loss(amp.sum(amp.propagate(None, None, s["x"])))  # <-


@mistake(
    ", `a_text_for_a_rate`: expected arguments that a combinator takes, got TypeError: …. Pass arguments of the types that the function's documentation names."
)
def a_text_for_a_rate(p, s):
    return loss(amp.dropout(p["e"][0], "half"))  # <-


@mistake("the model, metrics: expected names: texts, got 1. Give each metric a name.")
def a_metric_with_a_number_for_a_name(p, s):
    return right(p, s), {1: right(p, s)}


@mistake(
    ", `a_metric_called_like_the_sum_of_the_loss`: expected another name than `loss_sum`, got `loss_sum`. Choose another name: the loss is in each history anyway."
)
def a_metric_called_like_the_sum_of_the_loss(p, s):
    amp.metric("loss_sum", right(p, s))  # <-
    return right(p, s)


@mistake(
    ", `a_complex_metric`: expected one number for the metric `phase`, got complex64[]. Tell its parts: `jnp.real(...)`."
)
def a_complex_metric(p, s):
    amp.metric("phase", 1j * right(p, s))  # <-
    return right(p, s)


@mistake(
    "the model, metrics: expected other names than `loss`, got `loss`. Choose another name: the loss is in each history anyway."
)
def metric_loss_name(p, s):
    return loss(p["e"][s["k"]]), {"loss": 1.0}


@mistake(
    ", `output_twice`: expected a name of its own for each output, got `o`, as an output is called. Rename it."
)
def output_twice(p, s):
    amp.output("o", p["e"][s["k"]])
    amp.output("o", s["y"])  # <-
    return loss(p["e"][s["k"]])


@mistake(
    ", `output_seq_seq`: expected an array, or a sequence of arrays, got a sequence of sequences. Tell it in a `map`."
)
def output_seq_seq(p, s):
    amp.output(
        "o",
        amp.map(
            lambda c: amp.map(
                lambda x: p["e"][x],
                c,
            ),
            s["ch"],
        ),
    )  # <-
    return loss(p["e"][s["k"]])


@mistake(
    ", `while_no_read`: expected a test of a value that is read back, got a test without `amp.read`. Read what it depends on with `amp.read`; for a number of rounds that the instance says, use `amp.fori_loop`. `amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
)
def while_no_read(p, s):
    return loss(
        amp.while_loop(
            lambda h: h[0] > 0,
            lambda h: h - p["a"]["b"],
            s["y"],
            most=2,
        )
    )  # <-


@mistake(", `while_most`: expected most >= 1, got 0. Say how many rounds there can be: `most=10`.")
def while_most(p, s):
    return loss(
        amp.while_loop(
            lambda h: amp.read(h[0] > 0),
            lambda h: h - p["a"]["b"],
            s["y"],
            most=0,
        )
    )  # <-


@mistake(
    ", `while_without_most`: expected most >= 1, got None. Say how many rounds there can be: `most=10`."
)
def while_without_most(p, s):
    return loss(
        amp.while_loop(
            lambda h: amp.read(h[0] > 0),
            lambda h: h - p["a"]["b"],
            s["y"],
        )
    )  # <-


@mistake(
    ", `while_static_test`: expected a test of a value that is read back, got a test without `amp.read`. Read what it depends on with `amp.read`; for a number of rounds that the instance says, use `amp.fori_loop`. `amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
)
def while_static_test(p, s):
    return loss(
        amp.while_loop(
            lambda h: s["k"] > 0,
            lambda h: h - p["a"]["b"],
            s["y"],
            most=2,
        )
    )  # <-


@mistake(
    ", `while_int_test`: expected a test that gives one truth value, got int32[]. Compare in it."
)
def while_int_test(p, s):
    return loss(
        amp.while_loop(
            lambda h: amp.read(jnp.argmax(h)),
            lambda h: h - p["a"]["b"],
            s["y"],
            most=2,
        )
    )  # <-


@mistake(
    ", `while_carry`: expected a body that returns the carry, one array, got `(*, *)`. Return it as `init` is built."
)
def while_carry(p, s):
    return loss(
        amp.while_loop(
            lambda h: amp.read(h[0] > 0),
            lambda h: (h, h),
            s["y"],
            most=2,
        )
    )  # <-


@mistake(
    ", `empty_switch`: expected a list of at least one function, got none. Give `switch` a list of functions, then the operands: `amp.switch(index, [f, g], x)`."
)
def empty_switch(p, s):
    return loss(amp.switch(s["k"], []))  # <-


@mistake(
    ", `sum_of_seqs`: expected a sequence of arrays for `sum`, got a sequence of sequences. Sum the inner sequences in a `map` first."
)
def sum_of_seqs(p, s):
    return amp.sum(
        amp.sum(
            amp.map(
                lambda c: amp.map(
                    lambda x: loss(p["e"][x]),
                    c,
                ),
                s["ch"],
            )
        )
    )  # <-


@mistake(
    ", `body_none`: expected at least one sequence for `sum`, got none. Give it what to run over."
)
def body_none(p, s):
    return amp.sum(amp.map(lambda w: None, s["w"]))  # <-


@mistake(
    ", `fori_computed`: expected a number that follows from the instance, got one that depends on parameters. Use `amp.while_loop` with `amp.read`, and say how many rounds there can be."
)
def fori_computed(p, s):
    return loss(
        amp.fori_loop(
            jnp.argmax(p["a"]["w"] @ s["y"]),
            lambda i, h: h + p["a"]["b"],
            s["y"],
        )
    )  # <-


@mistake(
    ", `fori_float`: expected a number of steps: one integer, got float32[]. Give one of the instance's integers."
)
def fori_float(p, s):
    return loss(
        amp.fori_loop(
            s["y"][0],
            lambda i, h: h + p["a"]["b"],
            s["y"],
        )
    )  # <-


@mistake(
    ", `take_computed`: expected an element's number that follows from the instance, got one that depends on parameters. Choose by the instance's integers; or weigh all elements, as attention does. `amp.vmap` takes it as it is, and so does `amp.compile(..., messages=False)`, for `mode='batch'`."
)
def take_computed(p, s):
    return loss(
        amp.take(
            embedded(p, s),
            jnp.argmax(p["a"]["w"] @ s["y"]),
        )
    )  # <-


@mistake(
    ", `fold_no_tree`: expected an `amp.Tree`, got DynamicJaxprTracer. Make one with `amp.Tree.of(...)` or from its columns."
)
def fold_no_tree(p, s):
    return loss(
        amp.fold_tree(lambda n: p["e"][n["word"]], lambda n, a, b: a + b, s["w"], arity=2)[1]
    )  # <-


@mistake(
    ", `fold_types`: expected branch to return the same types as leaf: float32[2], got float32[4]. Give both the same shapes and dtypes, with `astype` or `jnp.broadcast_to` where need be."
)
def fold_types(p, s):
    return loss(
        amp.fold_tree(
            lambda n: p["e"][n["word"]],
            lambda n, a, b: jnp.concatenate([a, b]),
            s["t"],
            arity=2,
        )[1]
    )  # <-


@mistake(
    ", `fold_structure`: expected one array from branch, as leaf returns, got `(*, *)`. Return the same structure from both."
)
def fold_structure(p, s):
    return loss(
        amp.fold_tree(lambda n: p["e"][n["word"]], lambda n, a, b: (a, b), s["t"], arity=2)[1]
    )  # <-


@mistake(
    ", `fold_arity_call`: expected a function of 4 arguments, got fold_arity_call.<locals>.<lambda>() takes 3 positional arguments but 4 were given. Mend its arguments."
)
def fold_arity_call(p, s):
    return loss(
        amp.fold_tree(lambda n: p["e"][n["word"]], lambda n, a, b: a + b, s["t"], arity=3)[1]
    )  # <-


@mistake(
    ", `scan_tree_types`: expected a state that keeps its types: float32[2], got float32[4]. Give both the same shapes and dtypes, with `astype` or `jnp.broadcast_to` where need be."
)
def scan_tree_types(p, s):
    return amp.sum(
        amp.map(
            loss,
            amp.scan_tree(
                lambda h, n: jnp.concatenate([h, h]),
                jnp.zeros(2),
                s["t"],
            ),
        )
    )  # <-


@pytest.mark.parametrize(
    ("model", "text"),
    MISTAKES,
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_in_a_model_names_the_users_line(model, text):
    with pytest.raises(GraphError) as caught:
        amp.compile(model, PARAMS, SPEC)
    assert_told_of(model, caught.value, text)


def right(p, s):
    return loss(p["e"][s["k"]])


TYPES = 'Write `"int32[t]"` for a sequence, `"float32[n,11]"` for one of vectors, `"int32[]"` for a number.'
BITS = 'or set `jax.config.update("jax_enable_x64", True)`.'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("flaot32[]", f"a dtype of JAX, got `flaot32`. {TYPES}"),
        ("str[n]", f"a dtype of JAX, got `str`. {TYPES}"),
        ("float32[2,n]", f"different names first, then numbers, got `[2,n]`. {TYPES}"),
        ("int32[n,n]", f"different names first, then numbers, got `[n,n]`. {TYPES}"),
        ("int32[-1]", f"different names first, then numbers, got `[-1]`. {TYPES}"),
        ("float64[n]", f"a dtype that JAX holds now, got `float64`. Write `float32`, {BITS}"),
        ("int[t]", f"a dtype that JAX holds now, got `int`. Write `int32`, {BITS}"),
        ("int64[]", f"a dtype that JAX holds now, got `int64`. Write `int32`, {BITS}"),
        ("n", f"a type, such as `float32[n,11]`, got 'n'. {TYPES}"),
        (3, f"a type, such as `float32[n,11]`, got 3. {TYPES}"),
    ],
)
def test_a_text_that_is_no_type(text, told):
    with pytest.raises(GraphError) as caught:
        amp.compile(right, PARAMS, {"k": "int32[]", "z": text})
    assert_told(caught.value, f"spec, `['z']`: expected {told}")


NAMES = "Name the parts: nodes are called so."
FLOATS = "Put what is not trained into the instances, or let the model close over it."


@pytest.mark.parametrize(
    ("params", "told"),
    [
        (
            [1.0],
            "compile, params: expected a dictionary, each of whose keys becomes a node, got list. Name the parts.",
        ),
        ({0: np.ones(2)}, f"compile, params, `[0]`: expected keys that are names, got 0. {NAMES}"),
        (
            PARAMS | {"": np.ones(2)},
            f"compile, params, `['']`: expected keys that are names, got ''. {NAMES}",
        ),
        (
            PARAMS | {0: np.ones(2)},
            f"compile, params, `[0]`: expected keys that are names, got 0. {NAMES}",
        ),
        (
            PARAMS | {"n": np.int32(3)},
            f"compile, params, `['n']`: expected arrays of floats, got int32. {FLOATS}",
        ),
        (
            PARAMS | {"n": "x"},
            "compile, params, `['n']`: expected arrays of floats, got str. Is this the spec? It comes third: `amp.compile(model, params, spec)`.",
        ),
    ],
)
def test_parameters_that_are_none(params, told):
    with pytest.raises(GraphError) as caught:
        amp.compile(right, params, SPEC)
    assert_told(caught.value, told)


def test_no_spec():
    with pytest.raises(GraphError) as caught:
        amp.compile(right, PARAMS, None)
    assert_told(caught.value, "spec: expected types, such as `float32[n,11]`, got None. …")


@pytest.mark.parametrize("wrong", [None, [1], 5])
def test_what_a_compiled_model_is_given_in_place_of_trees_or_instances(wrong):
    compiled = amp.compile(right, PARAMS, SPEC)
    got = type(wrong).__name__
    for name, use in {
        "params": compiled.params,
        "gradients": compiled.gradients,
        "node_params": compiled.node_params,
        "loss": lambda params: compiled.loss(params, [INSTANCE]),
    }.items():
        with pytest.raises(
            ParameterError, match=f"{name}, argument: expected a tree for each name, got {got}"
        ):
            use(wrong)
    for use in (compiled.explain, lambda data: compiled.loss(PARAMS, data)):
        with pytest.raises(DataError):
            use(wrong)


def test_a_model_with_other_arguments():
    with pytest.raises(
        GraphError,
        match=r"expected a function of 2 arguments, got .* takes 1 positional argument but 2",
    ):
        amp.compile(lambda p: 0.0, PARAMS, SPEC)


def everything(p, s):
    pairs = amp.sum(
        amp.map(
            lambda w, x: loss(p["e"][w] + x),
            s["w"],
            s["x"],
        )
    )
    root = amp.fold_tree(
        lambda n: p["e"][n["word"]],
        lambda n, a, b: a + b,
        s["t"],
        arity=2,
    )[1]  # the fold
    chars = amp.sum(
        amp.map(
            lambda c: amp.sum(
                amp.map(
                    lambda x: loss(p["e"][x]),
                    c,
                )
            ),
            s["ch"],
        )
    )
    return pairs + loss(root) + chars + loss(s["y"] * s["k"]) + amp.sum(amp.map(loss, s["u"]))


def tree(parent, side):
    return {
        "t": amp.Tree(
            np.array(parent, int),
            np.array(side, int),
            {"word": np.zeros(len(parent), int)},
        )
    }


SAME = "Give both the same length, or the dimension another name in the spec."
THERE = "Give every instance what the spec names; with `labels=False`, what only losses read may be missing."
FIT = "Mend the data or the spec."
INNER = "Mend the data, or name their lengths in the spec."
CAST = "Cast the data, or change the spec."
SIDES = "Mend `parent` and `side`."


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"x": np.ones((2, 3))},
            f"instance 1, `['x']`: expected rows of shape (2,), got (3,). {FIT}",
        ),
        ({"y": 1.0}, f"instance 1, `['y']`: expected rows of shape (2,), got (). {FIT}"),
        ({"k": [1, 2]}, f"instance 1, `['k']`: expected rows of shape (), got (2,). {FIT}"),
        (
            {"w": [[1, 2], [3]]},
            f"instance 1, `['w']`: expected rows of shape (), got rows of rows. {INNER}",
        ),
        (
            {"ch": [[[1]], [[2]]]},
            f"instance 1, `['ch']`: expected rows of shape (), got (1,). {FIT}",
        ),
        (
            {"w": [1.5, 2.0]},
            f"instance 1, `['w']`: expected numbers that fit into int32, got float64. {CAST}",
        ),
        (
            {"k": 1 << 40},
            f"instance 1, `['k']`: expected numbers that fit into int32, got int64 up to 1099511627776. {CAST}",
        ),
        (
            {"w": ["a", "b"]},
            f"instance 1, `['w']`: expected numbers that fit into int32, got …. {CAST}",
        ),
        (
            {"w": 3},
            "instance 1, `['w']`: expected a sequence, as the spec says, got int. Give an array or a list.",
        ),
        (
            {"ch": [1, 2]},
            "instance 1, `['ch']`: expected a sequence, as the spec says, got int. Give an array or a list.",
        ),
        (
            {"w": [1, 2, 3]},
            f"instances, dimension `w`: expected one length in `['ch']` and `['w']`, got 2 and 3 in instance 1. {SAME}",
        ),
        (
            {"w": None},
            "instance 1, `['w']`: expected a sequence, as the spec says, got NoneType. Give an array or a list.",
        ),
        (
            {"t": ((1, 2), 3)},
            "instance 1: expected `['t'].parent`, got tuple. Make a tree of nested tuples with `amp.Tree.of(...)`.",
        ),
        ({"t": 3}, f"instance 1: expected `['t'].parent`, got int. {THERE}"),
        (
            tree([], []),
            f"the tree over `v` (…), instance 1: expected a node whose parent is -1, the root, got none. {SIDES}",
        ),
        (
            tree([-1, 2, 1], [0, 0, 0]),
            f"the tree over `v` (…), instance 1: expected a tree, got a loop that node 1 is in or hangs from. {SIDES}",
        ),
        (
            tree([-1, 0, 0], [0, 0, 2]),
            f"the tree over `v` (…), instance 1: expected sides 0, 1, ... below node 0, got side 2 of node 2. {SIDES}",
        ),
        (
            tree([-1, 0, 0], [0, 0, 0]),
            f"the tree over `v` (…), instance 1: expected sides 0, 1, ... below node 0, got side 0 of node 2. {SIDES}",
        ),
        (
            tree([-1, 5], [0, 0]),
            f"the tree over `v` (…), instance 1: expected parents below 2, the number of nodes, got 5. {SIDES}",
        ),
        (
            tree([-1, 0], [0, 0]),
            "test_model_mistakes.py:…, `everything`, instance 1: expected 2 children of every branch, as `arity` says, got 1 of node 0. …",
        ),
    ],
)
def test_an_instance_that_does_not_fit(compiled, change, told):
    with pytest.raises(DataError) as caught:
        compiled.data([INSTANCE, INSTANCE | change])
    assert_told(caught.value, told)


@pytest.fixture(scope="module")
def compiled():
    found = amp.compile(everything, PARAMS, SPEC)
    assert len(found.data([INSTANCE, INSTANCE])) == 2
    return found


def test_an_instance_without_what_the_spec_names(compiled):
    with pytest.raises(DataError) as caught:
        compiled.data([INSTANCE, {name: INSTANCE[name] for name in INSTANCE if name != "k"}])
    assert_told(
        caught.value, f"instance 1: expected `['k']`, got ['ch', 't', 'u', 'w', 'x', 'y']. {THERE}"
    )


@pytest.mark.parametrize(
    "instances",
    [INSTANCE, None, iter([INSTANCE])],
)
def test_no_list_of_instances(compiled, instances):
    with pytest.raises(
        DataError, match=r"instances: expected a list of instances, got one \w+\. Give a list"
    ):
        compiled.data(instances)


def first_word(p, s):
    return loss(
        amp.take(
            embedded(p, s),
            0,
        )
    ) + loss(p["e"][amp.take(s["w"], -1)])  # <-


def first_word_or_none(p, s):
    return amp.cond(
        amp.length(s["w"]) > 0,
        lambda: first_word(p, s),
        lambda: 0.0,
    )


def test_an_element_that_an_instance_has_not():
    none = INSTANCE | {
        "w": [],
        "x": np.zeros((0, 2)),
        "ch": [],
    }
    told = "expected an element that the sequence has, got number … of 0 elements. Take what is there; `amp.cond` of `amp.length` chooses what to do without."
    with pytest.raises(DataError) as caught:
        amp.compile(first_word, PARAMS, SPEC).data([INSTANCE, none])
    assert_told_of(first_word, caught.value, f", `first_word`, instance 1: {told}")
    with pytest.raises(DataError) as caught:
        first_word(PARAMS, none)
    assert_told_of(first_word, caught.value, f", `first_word`: {told}")
    assert len(amp.compile(first_word_or_none, PARAMS, SPEC).data([INSTANCE, none])) == 2
    assert float(first_word_or_none(PARAMS, none)) == 0


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: amp.Ragged(
                np.arange(3),
                np.array([1, 1]),
            ),
            "Ragged: expected sizes of rows, at least 0, that add up to the 3 values, got [1, 1]. …",
        ),
        (
            lambda: amp.Ragged(
                np.arange(1),
                np.array([2, -1]),
            ),
            "Ragged: expected sizes of rows, at least 0, that add up to the 1 values, got [2, -1]. …",
        ),
        (
            lambda: amp.Ragged(np.arange(3), [1.5, 1.5]),
            "Ragged: expected sizes of rows, at least 0, that add up to the 3 values, got [1.5, 1.5]. …",
        ),
        (
            lambda: amp.Ragged(None, [1]),
            "Ragged: expected arrays, with a row for each entry, got NoneType. …",
        ),
        (
            lambda: amp.Stacked({"x": 1}),
            "Stacked: expected arrays, with a row for each entry, got int. …",
        ),
        (
            lambda: amp.Ragged.of([1, 2]),
            "Ragged.of, row 0: expected a list or an array, got 1. Give a list of rows.",
        ),
        (
            lambda: amp.Tree.of(
                (1, 2),
                leaf=lambda x: {"w": x},
            ),
            "Tree.of: expected values of one structure, got 0 and {'w': 1}. …",
        ),
        (
            lambda: amp.map(
                lambda a, b: a + b,
                np.arange(3),
                np.arange(2),
            ),
            "test_model_mistakes.py:…: expected sequences of one length for `map`, got lengths [3, 2]. …",
        ),
        (
            lambda: amp.fold_tree(
                lambda n: 0.0,
                lambda n, kids: 0.0,
                [1],
            ),
            "test_model_mistakes.py:…: expected an `amp.Tree`, got list. …",
        ),
        (
            lambda: amp.fold_tree(
                lambda x: x,
                lambda x, a, b: a + b,
                amp.Tree.of((1, 2, 3)),
                arity=2,
            ),
            "test_model_mistakes.py:…: expected 2 children of every branch, as `arity` says, got 3 of node 0. Leave `arity` out…",
        ),
        (
            lambda: amp.scan_tree(
                lambda h, n: h,
                0.0,
                tree([1, 0], [0, 0])["t"],
            ),
            f"the tree, instance 0: expected a node whose parent is -1, the root, got none. {SIDES}",
        ),
    ],
)
def test_a_mistake_without_a_compiled_model(make, told):
    with pytest.raises(AmpError) as caught:
        make()
    assert_told(caught.value, told)


def test_parameters_that_are_not_used_stay_in_the_models_structure():
    compiled = amp.compile(right, PARAMS, SPEC)
    nodes = compiled.node_params(PARAMS)
    assert list(nodes) == ["e", "unread parameters"]
    assert jax.tree.structure(compiled.params(nodes)) == jax.tree.structure(PARAMS)


def test_a_scan_without_a_pair_is_refused_where_the_model_runs_as_it_is():
    # An array of two entries could be taken for a pair.
    with pytest.raises(
        GraphError,
        match=r"expected scan's function to return a pair \(carry, y\), got float32\[2\]\.",
    ):
        amp.scan(
            lambda h, x: h + x,
            jnp.zeros(2),
            jnp.ones((3, 2)),
        )


def test_what_compiled_data_gave_is_taken_for_data_and_not_for_instances(compiled):
    data = compiled.data([INSTANCE])
    assert compiled.data(data) is data
    other = amp.compile(everything, PARAMS, SPEC)
    with pytest.raises(DataError) as caught:
        other.data(data)
    assert_told(
        caught.value,
        "data, instances: expected instances as the model takes them, got what another model's `compiled.data` gave. Pass the instances themselves.",
    )
    with pytest.raises(DataError) as caught:
        compiled.loss(PARAMS, data)
    assert_told(
        caught.value,
        "loss, instances: expected instances as the model takes them, got what `compiled.data` made of them. Pass the instances themselves.",
    )
    with pytest.raises(
        DataError, match=r"loss, instances: expected at least one instance, got none\. Pass a list"
    ):
        compiled.loss(PARAMS, [])


@pytest.mark.parametrize(
    ("convert", "told"),
    [
        (
            lambda c: c.params({}),
            "parameters of `e`: expected a value for each node, got []. Pass all that `trainer.params` …",
        ),
        (
            lambda c: c.params({"e": np.ones(3)}),
            "parameters of `e`: expected shape (5, 2), got (3,). Give arrays of the node's shapes.",
        ),
        (
            lambda c: c.gradients({}),
            "parameters of `e`: expected a value for each node, got []. Pass all that …",
        ),
        (
            lambda c: c.node_params({"e": PARAMS["e"]}),
            "node_params: expected the keys ['a', 'c', 'e'], got ['e']. Pass parameters of the structure that the model was compiled with.",
        ),
        (
            lambda c: c.node_params(PARAMS | {"e": np.ones((5, 3))}),
            "parameters of `e`: expected shape (5, 2), got (5, 3). Give arrays of the node's shapes.",
        ),
        (
            lambda c: c.node_params(PARAMS | {"a": {"w": np.ones((2, 2))}}),
            "parameters of `a`: expected the structure …",
        ),
    ],
)
def test_parameters_that_do_not_fit(convert, told):
    with pytest.raises(ParameterError) as caught:
        convert(amp.compile(right, PARAMS, SPEC))
    assert_told(caught.value, told)


def test_gradients_of_what_is_not_read_are_zero_where_parameters_keep_their_values():
    compiled = amp.compile(right, PARAMS, SPEC)
    ones = np.ones_like(PARAMS["e"])
    grads = compiled.gradients({"e": (ones, 3)})
    assert grads["e"] is ones and not any(
        leaf.any() for leaf in jax.tree.leaves((grads["a"], grads["c"]))
    )
    unread = compiled.params({"e": ones})["a"]["w"]
    assert isinstance(unread, jax.Array) and np.array_equal(unread, PARAMS["a"]["w"])


def inner_lists(p, s):
    return amp.sum(
        amp.map(
            lambda cs: amp.sum(
                amp.map(
                    lambda c: loss(p["e"][c]),
                    cs,
                )
            ),
            s["ch"],
        )
    )


def scanned_lists(p, s):
    def word(h, cs):
        return (
            amp.scan(lambda h, c: (h + loss(p["e"][c]), None), h, cs)[0],
            amp.length(cs),
        )

    h, n = amp.scan(
        word,
        jnp.float32(0),
        s["ch"],
    )
    return h + amp.sum(n)


@pytest.mark.parametrize("model", [inner_lists, scanned_lists])
def test_an_empty_list_of_lists_is_one_outside_of_compile_too(model):
    assert float(model(PARAMS, {"ch": []})) == 0
    compiled = amp.compile(model, PARAMS, {"ch": "int32[w,c]"})
    assert float(compiled.loss(PARAMS, [{"ch": []}])) == 0
    assert len(compiled.data([{"ch": []}])) == 1


def test_verify_is_given_instances_that_are_not_compiled():
    compiled = amp.compile(right, PARAMS, SPEC)
    with pytest.raises(SettingsError) as caught:
        amp.verify(compiled.graph, [{"k": 1}], progress=False)
    assert_told(
        caught.value,
        "instances: expected what `compiled.data(instances)` gives, as the graph was compiled from a model, got a list of instances as the model takes them. Pass them through `compiled.data`.",
    )


def test_a_row_of_rows_of_another_length_is_told_with_its_instance():
    def model(p, s):
        return amp.sum(
            amp.map(
                lambda a, b: amp.sum(
                    amp.map(
                        lambda x, y: loss(p["e"][x] + y),
                        a,
                        b,
                    )
                ),
                s["a"],
                s["b"],
            )
        )

    compiled = amp.compile(model, PARAMS, {"a": "int32[w,c]", "b": "int32[w,c]"})
    same = {
        "a": [[1], [2, 3]],
        "b": [[1], [2, 3]],
    }
    with pytest.raises(DataError) as caught:
        compiled.data(
            [
                same,
                same | {"b": [[1], [2]]},
            ]
        )
    assert_told(
        caught.value,
        f"instances, dimension `c`: expected one length in `['a']` and `['b']`, got 2 and 1 in row 3, of instance 1. {SAME}",
    )


@pytest.mark.parametrize(
    "spec",
    [{"z": "float32[t]"}, {"x": "float32[u]"}],
)
def test_a_trainer_by_batches_is_given_the_data_of_another_model(spec):
    def total(p, s):
        (xs,) = s.values()
        return amp.sum(xs) * p["w"]

    params = {"w": np.float32(1)}
    one, other = (amp.compile(total, params, each) for each in ({"x": "float32[t]"}, spec))
    data = other.data([{name: [1.0]} for name in spec])
    trainer = amp.Trainer(one.graph, mode="batch", max_active_keys=1)
    for run in (trainer.fit, trainer.evaluate):
        with pytest.raises(
            DataError, match=r"data: expected examples with a (leaf `\['x'\]`|dimension `t`).*own"
        ):
            run(data)


DECIDED = {
    "cond": lambda n: amp.cond(
        n > 0,
        lambda: 1,
        lambda: 2,
    ),
    "switch": lambda n: amp.switch(
        n,
        [lambda: 1, lambda: 2],
    ),
    "while_loop": lambda n: amp.while_loop(
        lambda i: i < n,
        lambda i: i + 1,
        0,
        most=3,
    ),
    "fori_loop": lambda n: amp.fori_loop(
        n,
        lambda i, h: h + i,
        0,
    ),
    "recur": lambda n: amp.recurse(
        lambda recur, j: recur(j + n),
        0,
        np.array([-1, 0]),
    ),
}


@pytest.mark.parametrize("word", DECIDED)
@pytest.mark.parametrize("transformation", [jax.jit, jax.vmap])
def test_what_decides_is_not_traced_where_a_model_runs_as_it_is(word, transformation):
    number = jnp.ones(
        (1,) if transformation is jax.vmap else (),
        int,
    )
    told = f"test_model_mistakes.py:…: expected a number for `{word}`, …, got one that JAX traces. Take the model out of …"
    with pytest.raises(GraphError) as caught:
        transformation(DECIDED[word])(number)
    assert_told(caught.value, told)


def test_an_error_of_ours_does_not_hang_below_jaxs_own():
    with pytest.raises(GraphError) as caught:
        amp.compile(python_if, PARAMS, SPEC)
    assert caught.value.__suppress_context__
