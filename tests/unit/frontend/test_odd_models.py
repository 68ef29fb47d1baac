"""Models, parameters and data as users write them that are unusual: each works, or is refused in four parts with the user's line."""

import itertools

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.model_laws import Compiled64

import ampjax as amp
from ampjax.errors import DataError, GraphError

P = {"w": np.float32(1.5)}
SPEC = {"x": "float32[]", "t": "float32[t]", "k": "int32[]", "v": "float32[2]"}


def model(p, e):
    return p["w"] * e["x"]


def read(p, e):
    return amp.read(p["w"] * e["x"] > 0)


LOOP = lambda h: h * 0.5
LINEN_DROPOUT = flax.linen.Dropout(0.5, deterministic=False)
LINEN_NORM = flax.linen.BatchNorm(use_running_average=False)
LINEN_NORM_VARIABLES = LINEN_NORM.init(
    jax.random.key(0),
    jnp.zeros((1, 2)),
)
NNX_DROPOUT = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
NNX_NORM = nnx.BatchNorm(2, rngs=nnx.Rngs(0))

REFUSED = {
    "two sequences for a scan": (
        lambda p, e: amp.scan(lambda h, x, y: (h + x * y, None), p["w"], e["t"], e["t"])[0],
        "got 2 arguments behind the carry. Put them into a tuple: `amp.scan(f, init, (xs, ys))`",
    ),
    "a metric without a name": (
        lambda p, e: (amp.metric(None, e["x"]), model(p, e))[1],
        'expected a name for the metric: a text, got None. Pass a text, such as `"metric_1"`.',
    ),
    "an output without a name": (
        lambda p, e: (amp.output("", model(p, e)), model(p, e))[1],
        "expected a name for the output: a text, got ''. Pass a text, such as `\"output_1\"`.",
    ),
    "a text as a metric": (
        lambda p, e: (amp.metric("m", "x"), model(p, e))[1],
        "expected arrays or numbers for the metric `m`, got 'x'. Texts and other objects of Python stay outside",
    ),
    "a dictionary as an output": (
        lambda p, e: (amp.output("o", {"a": e["x"]}), model(p, e))[1],
        "expected one array for the output `o`, got {'a': ",
    ),
    "an output called like a node": (
        lambda p, e: (
            (amp.output("o", amp.node("o")(lambda x: x * p["w"])(e["x"])), model(p, e))[1] * 0
        ),
        "expected a name of its own for each output, got `o`, as a node is called. Rename it.",
    ),
    "a node called like another's key": (
        lambda p, e: amp.node("w")(lambda x: x * 3)(e["x"]) * p["w"],
        "expected a name of its own for the node, got `w`, as a key of the parameters is called. Rename it;",
    ),
    "a text from a branch": (
        lambda p, e: amp.cond(
            e["k"] > 0,
            lambda: "one",
            lambda: "other",
        ),
        "expected arrays or numbers from a function, got 'other'.",
    ),
    "a text as a carry": (
        lambda p, e: amp.scan(lambda c, t: (c, None), "text", e["t"])[0],
        "expected arrays or numbers to begin with, got 'text'.",
    ),
    "one branch": (
        lambda p, e: amp.cond(
            e["k"] > 0,
            lambda: p["w"],
        ),
        "expected a function for true and one for false, got 1 of them. Give `cond` both",
    ),
    "a vector that chooses": (
        lambda p, e: amp.cond(
            e["v"] > 0,
            lambda: p["w"],
            lambda: p["w"],
        ),
        "expected one truth value for `cond`, got bool[2]. Compute the choice first",
    ),
    "a float that chooses": (
        lambda p, e: amp.switch(
            e["x"],
            [lambda: p["w"], lambda: p["w"]],
        ),
        "expected one integer for `switch`, got float32[].",
    ),
    "a float as an element's number": (
        lambda p, e: amp.take(e["t"], e["x"]) * p["w"],
        "expected one integer for the number of an element, got float32[]. Give an integer, such as one that the spec",
    ),
    "several elements": (
        lambda p, e: amp.take(e["t"], [0, 1]) * p["w"],
        "expected one array for the number of an element, got [0, 1].",
    ),
    "floats as labels": (
        lambda p, e: optax.softmax_cross_entropy_with_integer_labels(
            p["w"] * e["v"],
            e["x"],
        ),
        "expected integers as indices, got floats. Give them an integer type in the spec",
    ),
    "floats as indices": (
        lambda p, e: jnp.take_along_axis(p["w"] * e["v"], e["v"], 0)[0],
        "expected integers as indices, got floats.",
    ),
    "a body of one argument": (
        lambda p, e: amp.fori_loop(
            2,
            LOOP,
            e["x"] * p["w"],
        ),
        "expected a function of 2 arguments, got <lambda>() takes 1 positional argument but 2 were given.",
    ),
    "nothing that is read": (
        lambda p, e: amp.cond(
            amp.read(None),
            lambda: p["w"],
            lambda: p["w"],
        ),
        "expected one array to read, got None.",
    ),
    "a text that is assumed": (
        lambda p, e: amp.cond(
            amp.read(p["w"] > 0, assume="x"),
            lambda: p["w"],
            lambda: p["w"],
        ),
        "expected an integer or truth value to assume, got 'x'.",
    ),
    "combinators where numbers are drawn": (
        lambda p, e: amp.stochastic(
            lambda key, t: amp.sum(t) * p["w"],
            lambda t: p["w"] * 1,
            e["t"],
        ),
        "expected arrays alone in the functions of `amp.stochastic`, got `amp.sum`. Draw what is needed",
    ),
    "an entry that is assigned": (
        lambda p, e: (e["v"].__setitem__(0, 1.0), model(p, e))[1],
        "expected arrays that stay as they are, got an entry that is assigned. Use `x.at[i].set(value)`",
    ),
    "a traced number in a text": (
        lambda p, e: (f"{e['x']:.2f}", model(p, e))[1],
        "got one in a text with a format. Print while the model runs without being compiled",
    ),
    "a loop without a gradient": (
        lambda p, e: jax.lax.while_loop(lambda h: h < 3, lambda h: h + p["w"], e["x"]) * 1,
        "expected operations that have a gradient, got `jax.lax.while_loop`, or `fori_loop` with a number of rounds",
    ),
    "rounds of JAX's by the instance": (
        lambda p, e: jax.lax.fori_loop(
            0,
            e["k"],
            lambda i, h: h * p["w"],
            e["x"],
        ),
        "expected operations that have a gradient, got `jax.lax.while_loop`, or `fori_loop`",
    ),
    "a callback for one message": (
        lambda p, e: (
            jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), e["x"]) * p["w"]
        ),
        "expected a callback that takes many messages together, got one without `vmap_method`. Say how",
    ),
    "dropout of nnx": (
        lambda p, e: jnp.sum(NNX_DROPOUT(e["v"]) * p["w"]),
        "expected layers without a state of their own, got one of flax.nnx that changes while it runs",
    ),
    "batch statistics of nnx": (
        lambda p, e: jnp.sum(NNX_NORM(e["v"][None]) * p["w"]),
        "expected layers without a state of their own, got one of flax.nnx that changes while it runs",
    ),
    "dropout of linen": (
        lambda p, e: jnp.sum(LINEN_DROPOUT.apply({}, e["v"]) * p["w"]),
        "expected layers that draw no random numbers by themselves, got one of flax that asks for a key",
    ),
    "batch statistics of linen": (
        lambda p, e: jnp.sum(LINEN_NORM.apply(LINEN_NORM_VARIABLES, e["v"][None]) * p["w"]),
        "expected layers without a state of their own, got one of flax that changes its variables while it runs",
    ),
    "variables that a layer has not": (
        lambda p, e: jnp.sum(flax.linen.Dense(1).apply({}, e["v"]) * p["w"]),
        'expected a call that flax accepts, got Tried to access "kernel" from collection "params"',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_refused(name):
    function, text = REFUSED[name]
    with pytest.raises(GraphError) as caught:
        amp.compile(function, P, SPEC)
    assert text in str(caught.value)
    assert str(caught.value).startswith("test_odd_models.py:")


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(2, 3, rngs=rngs)
        self.norm = nnx.LayerNorm(3, rngs=rngs)

    def __call__(self, x):
        return self.norm(jnp.tanh(self.first(x)))


def recurrent(p, e):
    h = amp.scan(
        lambda h, x: (p["cell"](h, p["net"](x))[0], None),
        jnp.zeros(3),
        e["xs"],
    )[0]
    return jnp.sum(h * p["last"]["v"](e["v"]))


@pytest.mark.nightly
def test_modules_of_nnx_are_parameters():
    """Called as they are: modules of modules, cells, modules in dictionaries; trained, and given back as modules."""
    rngs = nnx.Rngs(0)
    params = {
        "net": Net(rngs),
        "cell": nnx.GRUCell(3, 3, rngs=rngs),
        "last": {"v": nnx.Linear(2, 3, rngs=rngs)},
    }
    compiled = amp.compile(recurrent, params, {"xs": "float32[t,2]", "v": "float32[2]"})
    examples = []
    for n in (2, 0, 1):
        examples.append(
            {
                "xs": np.ones((n, 2), np.float32) * 0.3,
                "v": np.float32([1, 2]),
            }
        )
    assert compiled.verify(examples, progress=False)
    trainer = amp.Trainer(
        compiled.graph,
        optax.sgd(0.1),
        mode="sync",
    )
    trainer.fit(compiled.data(examples), progress=False)
    after = compiled.params(trainer.params)
    assert isinstance(after["net"], Net)
    assert compiled.loss(after, examples) < compiled.loss(params, examples)


@pytest.mark.nightly
def test_layers_of_flax_that_draw_are_given_a_key():
    def drop(key, x):
        return LINEN_DROPOUT.apply(
            {},
            nnx.Dropout(0.5)(x, rngs=nnx.Rngs(key)),
            rngs={"dropout": key},
        )

    compiled = amp.compile(
        lambda p, e: jnp.sum(
            amp.stochastic(
                drop,
                lambda x: x,
                e["v"] * p["w"],
            )
        ),
        P,
        SPEC,
    )
    example = {
        "x": 1.0,
        "t": [],
        "k": 0,
        "v": [1.0, 2.0],
    }
    assert (
        compiled.verify(
            [example] * 5,
            progress=False,
        )
        and float(compiled.loss(P, [example])) == 4.5
    )


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (
            NNX_NORM,
            "a module whose variables are all `Param`, got BatchStat. Split it, `graph, params, rest = ",
        ),
        (NNX_DROPOUT, "a module whose variables are all `Param`, got RngCount, RngKey."),
        ({"a": [NNX_NORM]}, "a module whose variables are all `Param`, got BatchStat."),
        (flax.linen.Dense(1), "arrays of floats, got Dense. Give what the module's `init` returns"),
        (object(), "arrays of floats, got object. Put what is not trained into the instances"),
        (jax.random.key(0), "arrays of floats, got key<fry>."),
    ],
)
def test_parameters_that_are_refused(value, got):
    with pytest.raises(GraphError) as caught:
        amp.compile(model, P | {"other": value}, SPEC)
    assert str(caught.value).startswith("compile, params, `['other']") and f"expected {got}" in str(
        caught.value
    )


@pytest.mark.nightly
def test_rounds_at_most_may_be_a_number_of_numpys():
    def loop(p, e):
        return amp.while_loop(
            lambda h: amp.read(h > 0.2),
            LOOP,
            e["x"] * p["w"],
            most=np.int64(3),
        )

    compiled = amp.compile(loop, P, {"x": "float32[]"})
    assert compiled.verify(
        [{"x": 1.0}, {"x": 9.0}],
        progress=False,
    )


@pytest.mark.parametrize("name", ["max", "min", "mod", "floordiv"])
def test_lengths_are_not_called_like_functions_of_shapes(name):
    with pytest.raises(
        GraphError,
        match=rf"expected a name that means nothing else in JAX's shapes, got `{name}`\. Write",
    ):
        amp.compile(model, P, {"x": f"float32[{name}]"})


class Generated:
    """Examples that are made when they are asked for: without an end, and others each time."""

    def __init__(self):
        self.numbers = itertools.count(1)

    def __len__(self):
        return 3

    def __getitem__(self, at):
        n = next(self.numbers)
        return {
            "x": np.full(2, n, np.float32),
            "y": n,
        }


def test_examples_that_are_made_when_they_are_asked_for():
    """Each is asked for once, so that its leaves belong together."""
    compiled = amp.compile(
        lambda p, e: amp.sum(e["x"]) * p["w"] - 3 * e["y"],
        P,
        {"x": "float32[t]", "y": "int32[]"},
    )
    trainer = amp.Trainer(compiled.graph, optax.sgd(0.0))
    assert (
        trainer.accumulate(compiled.data(Generated()), update=False)["loss_sum"]
        == 0
        == compiled.loss(P, Generated())
    )
    assert compiled.verify(Generated(), progress=False)
    assert compiled.explain(Generated())
    assert len(compiled.data(Generated(), labels=False)) == 3


def test_masked_arrays_are_refused():
    compiled = amp.compile(
        lambda p, e: amp.sum(e["t"]) * p["w"],
        P,
        {"t": "float32[t]"},
    )
    with pytest.raises(
        DataError,
        match=r"instance 1, `\['t'\]`: expected arrays all of whose entries count, got a masked",
    ):
        compiled.data(
            [
                {"t": [1.0]},
                {
                    "t": np.ma.array(
                        [1.0, 2.0],
                        mask=[0, 1],
                    )
                },
            ]
        )


def test_parameters_come_back_as_arrays_of_jax():
    compiled = amp.compile(
        lambda p, e: p["e"][e["k"]] * p["w"][0],
        {
            "e": np.ones(3, np.float32),
            "w": np.ones(1),
        },
        {"k": "int32[]"},
    )
    trainer = amp.Trainer(compiled.graph)
    params = compiled.params(trainer.params)
    assert jax.vmap(lambda i: params["e"][i] + params["w"][0])(jnp.arange(2)).shape == (2,)


def test_lists_of_trees_and_of_dictionaries():
    trees = [
        amp.Tree.of([[1.0, 2.0], 3.0]),
        amp.Tree.of(4.0),
    ]
    spec = {
        "trees": amp.Tree("int32[s,v]", "int32[s,v]", "float32[s,v]"),
        "words": {"a": "float32[w]", "b": "float32[w,c]"},
    }

    def both(p, e):
        def root(t):
            return amp.fold_tree(
                lambda x: x * p["w"],
                lambda x, kids: jnp.tanh(amp.sum(kids)),
                t,
            )[1]

        words = amp.map(
            lambda w: w["a"] * amp.sum(w["b"]),
            e["words"],
        )
        return amp.sum(amp.map(root, e["trees"])) + amp.sum(words) * p["w"]

    compiled = amp.compile(both, P, spec)
    example = {
        "trees": trees,
        "words": [
            {"a": 1.0, "b": [2.0]},
            {"a": 2.0, "b": []},
        ],
    }
    none = {"trees": [], "words": []}
    assert compiled.verify([example, none], progress=False)
    for each in (example, none):
        assert both(P, each) == compiled.loss(P, [each])


@pytest.mark.first_case
@pytest.mark.parametrize("arity", [None, 2])
def test_forests(arity):
    """Trees of several roots, in any order: each begins with the same; the first root's state is that of all."""
    forest = amp.Tree(
        [1, -1, 1, -1, -1, 4, 4],
        [1, 0, 0, 5, 0, 1, 0],
        np.linspace(-1, 1, 7),
    )
    lone = amp.Tree(
        [-1],
        [3],
        np.ones(1),
    )
    pair = amp.Tree(
        [-1, -1],
        [0, 0],
        np.ones(2),
    )

    def either(p, e):
        if arity:
            branch = lambda x, a, b: jnp.tanh(a * p["w"] - b)
        else:
            branch = lambda x, kids: jnp.tanh(amp.sum(kids) * p["w"])
        up, root = amp.fold_tree(
            lambda x: x + e["x"],
            branch,
            e["tree"],
            arity=arity,
        )
        down = amp.scan_tree(
            lambda h, x: jnp.tanh(h * p["w"] + x),
            root * p["b"],
            e["tree"],
        )
        return (
            amp.sum(
                amp.map(
                    lambda a, b: a * b,
                    up,
                    down,
                )
            )
            + root**2
        )

    spec = {"tree": amp.Tree("int32[v]", "int32[v]", "float64[v]"), "x": "float64[]"}
    with jax.enable_x64(True):
        instances = []
        for tree in (forest, lone, pair):
            instances.append({"tree": tree, "x": 0.3})
        compiled = Compiled64(
            either,
            {"w": np.float64(0.7), "b": np.float64(0.4)},
            spec,
            instances,
        )
        compiled.check_gradients()
        compiled.check_direction()
