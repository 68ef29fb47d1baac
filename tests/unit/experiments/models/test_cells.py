"""Every layer and cell against its formula in NumPy, in float64: values, and gradients along random directions.

XLA's fusions can be wrong, so the oracle shares no compiler with what is tested: see `support/formulas`. The oracle of gradients is the formula's central
difference, which in float64 is precise to about 1e-8: so the formula is all that has to be right. `support/cells` says which sizes are covered.
"""

from importlib import import_module
from inspect import isclass, isfunction, unwrap
from pkgutil import walk_packages

import jax
import numpy as np
import pytest
from support import ampnet_cells, parallax_cells
from support.cells import Inputs

import ampjax as amp
import ampjax.graphs as ag
from experiments import models
from experiments.by_hand.act_graph import act_rnn
from experiments.by_hand.ggnn_graph import Network, ggnn_regression, ggnn_selection
from experiments.by_hand.mixture_graph import mixture_of_experts
from experiments.by_hand.permutation_graph import permutation
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.by_hand.tagger_graph import tagger
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.models import act, mixture, tiled
from experiments.models.mlp import mlp
from experiments.models.tree_lstm import Cells

CASES = [*ampnet_cells.CASES, *parallax_cells.CASES]
STEP = (
    1e-7  # smaller than the distance of all but a few entries from where a ReLU or a maximum bends
)
# A float32 is rounded by up to 6e-8 of itself. A sum of n products is off by sqrt(n) such roundings of a product, which is as much of the sum's
# own typical size as one rounding; a cell has up to ten such sums and functions in a row, and the worst of a million entries is looked at.
TOLERANCE = 1e-5

pytestmark = pytest.mark.users


@pytest.mark.parametrize(
    ("case", "hidden", "rows"),
    [pytest.param(c, h, n, id=f"{c}-{h}-{n}") for c in CASES for h, n in c.sizes],
)
def test_a_cell_is_its_formula(case, hidden, rows):
    inputs = Inputs(hidden, rows)
    problem = case.make(hidden, rows, inputs)
    exact = jax.tree.map(
        lambda leaf: leaf.astype(np.float64),
        problem.arguments,
    )
    wanted = jax.tree.leaves(problem.formula(*exact))
    cotangents = [inputs.normal(*np.shape(leaf)) for leaf in wanted]

    @jax.jit
    def run(arguments, cotangents):
        outputs, backward = jax.vjp(
            lambda *floats: jax.tree.leaves(problem.tested(*floats)),
            *arguments,
        )
        return outputs, backward(cotangents)

    outputs, gradients = run(problem.arguments, cotangents)
    for got, want in zip(outputs, wanted, strict=True):
        assert got.shape == np.shape(want)
        assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()
    got, want = slopes(problem.formula, exact, cotangents, gradients, inputs)
    assert abs(got - want) <= TOLERANCE


def slopes(formula, arguments, cotangents, gradients, inputs):
    """How fast the outputs' sum, weighted with the cotangents, grows along a random direction: by the gradients, and by the formula.

    Each leaf of the arguments has about an equal part in it, 1 in all, however small its gradient: so an error in any leaf shows.
    """
    leaves, structure = jax.tree.flatten(arguments)
    given = []
    for leaf in jax.tree.leaves(gradients):
        given.append(np.asarray(leaf, np.float64))
    norms = np.array([np.sqrt(np.sum(leaf**2)) for leaf in given])
    norms = np.maximum(norms, 1e-3 * norms.max()) * len(norms) ** 0.5
    unit = STEP * norms.min()
    steps = []
    for x, n in zip(leaves, norms, strict=True):
        steps.append(unit / n * inputs.rng.normal(size=x.shape))
    ahead, behind = (
        jax.tree.leaves(
            formula(*structure.unflatten([x + by * s for x, s in zip(leaves, steps, strict=True)]))
        )
        for by in (1, -1)
    )
    rises = []
    for c, a, b in zip(cotangents, ahead, behind, strict=True):
        rises.append(np.vdot(c, a - b) / 2)
    slope = sum(np.vdot(g, s) for g, s in zip(given, steps, strict=True))
    return slope / unit, sum(rises) / unit


# That there is a case of everything

GRAPH = "makes a graph, whose nodes' bodies have cases"
PROGRAM = "a whole program of cells that have cases: `experiments numerics` compares it with itself in float64, without fusions"
RECIPE = "how a program is trained; no layer"
ROWS = "reads rows of a table and computes nothing"
START = "gives initial parameters, or a spec"
STARTS = (
    "tagger.glorot",
    "tagger.init_gates",
    "tagger.random_table",
    "tree_lstm.uniform_table",
)
FUNCTION = "a whole model; unit/experiments/models/functions compares it with the graph whose nodes' bodies have cases"
FUNCTIONS = (
    "language_model_function.language_model",
    "translation_function.attention_over",
    "translation_function.translation",
)
KEYS = "gives parameters other names"
SPEC = "says what an instance looks like"
ZOO = "a part of a small model; unit/experiments/models/functions/test_zoo compares its gradients with jax.grad"
ZOO_MODELS = (
    "attention_classifier",
    "child_sum_tree_lstm",
    "dag_lstm",
    "hierarchical_rnn",
    "listops",
    "memory_network",
    "programmer_interpreter",
    "spinn",
    "stochastic_depth",
)
ZOO_PARTS = (
    *(f"{model}.{model}" for model in ZOO_MODELS),
    *(f"{model}.init" for model in ZOO_MODELS),
    "programmer_interpreter.core",
    *(
        f"small_cells.{name}"
        for name in ("cross_entropy", "init_linears", "init_tables", "lstm", "scored")
    ),
)
FUNCTION_STARTS = ("translation_function.init",)
NO_CASE = {
    **dict.fromkeys(
        ["host_rows.check_table", "nn.ChosenEmbed", "nn.TableEmbed", "nn.choose_embed"], ROWS
    ),
    "mlp.mlp": GRAPH,
    **dict.fromkeys(
        [
            "act.act_rnn",
            "ggnn.ggnn_regression",
            "ggnn.ggnn_selection",
            "ggnn.propagated",
            "mixture.mixture_of_experts",
            "tagger.tagger",
            "tree_lstm.tree_lstm",
            "drawing.drawing",
            "permutation.permutation",
            "rnn.list_reduction",
            "rnn.list_reduction_rnn",
        ],
        FUNCTION,
    ),
    **dict.fromkeys(
        ["act.init", "act.spec", "permutation.init", "mixture.init", "mixture.spec", "tagger.init"],
        START,
    ),
    **dict.fromkeys(
        ["ggnn.init_regression", "ggnn.init_selection", "tree_lstm.init", "rnn.init", "rnn.spec"],
        START,
    ),
    **dict.fromkeys(["ggnn.regression_spec", "ggnn.selection_spec"], SPEC),
    "tiled.tiled_linear": GRAPH,
    **dict.fromkeys(
        [f"lm.{name}" for name in ("init", "make_loss", "make_evaluate", "make_optimizer")], PROGRAM
    ),
    **dict.fromkeys(["lm.Softmax.nats", "lm.Softmax.sampled_nats"], PROGRAM),
    **dict.fromkeys(
        [f"nmt.{name}" for name in ("init", "make_loss", "make_evaluate", "make_optimizer")],
        PROGRAM,
    ),
    **dict.fromkeys(
        [f"resnet.{name}" for name in ("init", "make_loss", "make_predict", "make_optimizer")],
        PROGRAM,
    ),
    **dict.fromkeys(
        [f"inception.{name}" for name in ("init", "make_loss", "make_predict", "make_optimizer")],
        PROGRAM,
    ),
    **dict.fromkeys(["inception.Inception", "inception.Inception.all_logits"], PROGRAM),
    **dict.fromkeys(
        [f"classifiers.{name}" for name in ("init", "shapes", "make_loss", "make_predict")], PROGRAM
    ),
    **dict.fromkeys(
        [
            f"functional.{name}"
            for name in ("init", "build", "shapes", "merge", "variables", "count")
        ],
        PROGRAM,
    ),
    **dict.fromkeys(
        [
            "classifiers.make_optimizer",
            "nmt.halving",
            "resnet.schedule",
            "inception.Config.channels",
        ],
        RECIPE,
    ),
    **dict.fromkeys(
        ["scores.perplexity", "scores.bleu"], "plain Python; unit/experiments/models/test_scores"
    ),
    **dict.fromkeys([f"functions.{name}" for name in FUNCTIONS], FUNCTION),
    **dict.fromkeys(
        [f"functions.translation_function.{name}" for name in ("by_layer", "nested")], KEYS
    ),
    **dict.fromkeys([f"functions.zoo.{name}" for name in ZOO_PARTS], ZOO),
    **dict.fromkeys(
        [*STARTS, *(f"functions.{name}" for name in FUNCTION_STARTS)],
        START,
    ),
    **dict.fromkeys(
        [
            "nn.ngram_hash.mix",
            "nn.ngram_hash.multiplier",
            "nn.ngram_hash.ngram_hashes",
            "nn.ngram_table.NgramTable",
            "nn.ngram_table.NgramTable.ids",
        ],
        "a table, and whole numbers; unit/nn/test_ngram_table",
    ),
    "sampled_softmax.draw": "gives whole numbers; unit/experiments/models/test_sampled_softmax",
    "translate.make_translate": "gives words; unit/experiments/models/test_translate",
}


def test_everything_public_has_a_case_or_a_reason():
    modules = [
        *modules_of(amp.nn),
        *modules_of(models),
    ]
    found = set()
    for module in modules:
        for name in names_of(module):
            found.add(name)
    covered = set()
    for case in CASES:
        for name in case.covers:
            covered.add(name)
    assert found - covered - set(NO_CASE) == set(), (
        "give it a case in support/ampnet_cells or support/parallax_cells"
    )
    assert set(NO_CASE) & covered == set() and set(NO_CASE) <= found
    assert {name for name in covered if "._" not in name and "_graph." not in name} <= found


def modules_of(package):
    """The modules of a package, at any depth."""
    for found in walk_packages(package.__path__, f"{package.__name__}."):
        yield import_module(found.name)


def names_of(module):
    """A module's public functions, and its public classes that can be called, with their other public methods."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", "") != module.__name__:
            continue
        if isfunction(unwrap(thing)):
            yield named(thing)
        elif isclass(thing):
            methods = []
            for part, value in vars(thing).items():
                if isfunction(value) and not part.startswith("init"):
                    methods.append(part)
            yield from (
                named(getattr(thing, part))
                for part in methods
                if part == "__call__" or part[0] != "_"
            )


def named(thing):
    """How a case names a function, a method, or something that is called."""
    thing = getattr(thing, "function", thing)  # what a node without parameters computes
    thing = thing if hasattr(thing, "__qualname__") else type(thing)
    where = thing.__module__
    for package in ("ampjax.", "experiments.by_hand.", "experiments.models.", "layers."):
        where = where.removeprefix(package)
    where = where.replace("nn.layers", "nn")
    return f"{where}.{thing.__qualname__}".removesuffix(".__call__")


def test_every_node_of_every_model_has_a_case():
    network = Network(2, 4, steps=1, n_kinds=1)
    with ag.Graph() as tiles:
        ag.sink(
            "y",
            tiled.tiled_linear(
                "t",
                ag.pump("x", (4,)),
                4,
                4,
            ),
        )
    graphs = [
        tiles, mlp((4, 4, 2)), list_reduction_rnn(4), tree_lstm(2, Cells(),), tagger(2, 2), permutation(2, 4),
        ggnn_regression(network), ggnn_selection(Network(2, 4, 1, 1, separate_gates=True)),
        mixture_of_experts(mixture.Experts(4, 4, 2,)), act_rnn(act.Ponder(4, 4, 2)),
    ]  # fmt: skip
    ops = []
    for graph in graphs:
        for node in graph.nodes.values():
            if hasattr(node.op, "body") or node.op.kind == "Reduce":
                ops.append(node.op)
    bodies = set()
    for op in ops:
        bodies.add(named(op.body.apply if hasattr(op, "body") else op.function))
    # a ReLU, and what passes rows on
    ours = set()
    for name in bodies:
        if not name.startswith(("jax.", "ir.", "frontend.")):
            ours.add(name)
    assert ours - {name for case in CASES for name in case.covers} == set()
    assert len(ours) > 25
