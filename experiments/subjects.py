"""Every model of both papers with parameters and a little data: what `experiments numerics` computes in two ways.

Parameters that start constant (biases, a gate of zeros, gammas that switch a branch off) get random values, so that all of a model counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import jax
import numpy as np

import ampjax as amp
import ampjax.graphs as ag
from ampjax.frontend.compile_model import Compiled
from ampjax.ir.graph import Graph
from ampjax.testing.engine_run import run_engine
from ampjax.testing.oracles import find_oracle
from ampjax.testing.reference import reference
from ampjax.train.initial_params import initial_params
from ampjax.train.settings import Settings
from ampjax.train.training_data import Data
from experiments.by_hand.ggnn_graph import Network, ggnn_regression, ggnn_selection
from experiments.by_hand.mixture_graph import mixture_of_experts
from experiments.by_hand.tagger_graph import tagger
from experiments.data import babi15, list_reduction, mnist, permutation, qm9, sst, wikiner
from experiments.models import act, ggnn, lm, tree_lstm
from experiments.models import permutation as permutation_model
from experiments.models.layers.sampled_softmax import draw
from experiments.models.mixture import Experts
from experiments.models.mlp import mlp
from experiments.models.rnn import list_reduction_rnn
from experiments.models.tagger import Sizes as TaggerSizes
from experiments.parallax.workloads import Model, Sizes, workload

Found = tuple[float, dict[str, Any]]
"""A loss, and its gradients by the first name of each parameter."""


@dataclass(frozen=True)
class Subject:
    """A model in two ways.

    Args:
      compiled: Loss and gradients as users get them: compiled, in float32.
      exact: The same operation by operation, in float64.
    """

    compiled: Callable[[], Found]
    exact: Callable[[], Found]


def subject(
    name: str,
    small: bool = False,
    seed: int = 0,
) -> Subject:
    """A model of `NAMES`.

    Args:
      name: Which.
      small: Few features, for a test; by default the papers' sizes, but for Parallax's models, which are those of its experiments here.
      seed: Of parameters and data.
    """
    if name in GRAPHS:
        graph, instances = GRAPHS[name](small, seed)
        return _graph(graph, instances, seed)
    if name in FUNCTIONS:
        compiled, plain = FUNCTIONS[name](small, seed)
        return _function(compiled, plain, seed)
    return _program(PROGRAMS[name], small, seed)


def _graph(graph: Graph, instances: Data, seed: int) -> Subject:
    """The engine beside the reference interpreter."""
    params = moved(initial_params(graph, {}, seed), seed)

    def compiled() -> Found:
        run = run_engine(
            graph,
            instances,
            params,
            Settings(max_active_keys=len(instances)),
        )
        return run.loss, dict(run.grads)

    def exact() -> Found:
        run = reference(graph, params, instances, oracle="eager")
        return run.loss, run.grads

    return Subject(compiled, exact)


def _function(
    model: Compiled,
    instances: Sequence[Any],
    seed: int,
) -> Subject:
    """The engine beside the function itself."""
    params = moved(model.initial_params, seed)

    def compiled() -> Found:
        settings = Settings(max_active_keys=len(instances))
        run = run_engine(
            model.graph,
            model.data(instances),
            model.node_params(params),
            settings,
        )
        return run.loss, model.gradients({name: (grads, 0) for name, grads in run.grads.items()})

    def exact() -> Found:
        eager = find_oracle("eager")
        with eager.scope():
            loss, found = jax.value_and_grad(model.loss)(
                eager.cast(params),
                instances,
            )
            return float(loss), jax.tree.map(np.asarray, found)

    return Subject(compiled, exact)


def _program(model: Model, small: bool, seed: int) -> Subject:
    """A single-device program, compiled as one function, and op by op."""
    sizes = Sizes(images=4)
    if small:
        sizes = Sizes(200, 100, 8, 16, 4, 5, 2)
    work = workload(model, 1, sizes, 1, seed)
    batch = dict(work.batches[0])
    params = moved(work.params, seed)
    batch.pop("dropout_seed", None)  # in float64 other rows would be dropped
    grads = jax.value_and_grad(work.loss)

    def exact() -> Found:
        eager = find_oracle("eager")
        with _same_samples(batch, sizes), eager.scope():
            loss, found = grads(eager.cast(params), eager.cast(batch))
            return float(loss), jax.tree.map(np.asarray, found)

    def compiled() -> Found:
        loss, found = jax.jit(grads)(params, batch)
        return float(loss), found

    return Subject(compiled, exact)


def _same_samples(batch: Any, sizes: Sizes) -> Any:
    """LM's draws are those of float32 in float64, too: they are whole numbers, which the comparison is not about."""
    if "sample_seed" not in batch:
        return nullcontext()
    key = jax.random.key(batch["sample_seed"][0])
    drawn = jax.jit(draw, static_argnums=(1, 2))(
        key, min(sizes.samples, sizes.vocabulary), sizes.vocabulary
    )
    return patch.object(lm, "draw", lambda *_: drawn)


def moved(params: Any, seed: int) -> Any:
    """Parameters of which none is constant: to those that are, numbers of a tenth are added."""
    rng = np.random.default_rng(seed)

    def value(leaf: Any) -> np.ndarray:
        x = np.asarray(leaf)
        if np.ptp(x):
            return x
        return x + (0.1 * rng.normal(size=x.shape)).astype(x.dtype)

    return jax.tree.map(value, params)


# Models of AMPNet, with a few instances


def _perceptron(small: bool, seed: int) -> tuple[Graph, Data]:
    width, n = (8, 20) if small else (784, 100)
    return mlp((784, width, width, width, 10), n), mnist.Batches(mnist.synthetic(n, 1, seed)[0], n)


def _list_reduction(
    small: bool,
    seed: int,
) -> tuple[Compiled, Sequence[Any]]:
    hidden, batch, n = (8, 5, 2) if small else (128, 100, 4)
    plain = list_reduction.Buckets(list_reduction.generate(20 * batch, seed), batch).plain()
    return list_reduction_rnn(hidden, batch, seed=seed), [plain[i] for i in range(n)]


def _trees(kind: str) -> Callable[[bool, int], tuple[Compiled, Sequence[Any]]]:
    def make(
        small: bool,
        seed: int,
    ) -> tuple[Compiled, Sequence[Any]]:
        trees, _ = sst.synthetic(1 if small else 4, 1, seed)
        if small:
            hidden = 8
        else:
            hidden = {"tai": 150, "fold": 300}[kind]
        cells = tree_lstm.Cells(kind, 8 if small else 300, hidden, 1.0)
        params = tree_lstm.init(
            jax.random.key(seed),
            len(trees.vocabulary),
            cells,
        )
        return amp.compile(tree_lstm.tree_lstm(cells), params, tree_lstm.SPEC), sst.plain(trees)

    return make


def _molecules(
    small: bool,
    seed: int,
) -> tuple[Compiled, Sequence[Any]]:
    sizes = qm9.N_FEATURES, 12 if small else 100, qm9.N_KINDS
    model = partial(ggnn.ggnn_regression, steps=2 if small else 4)
    params = ggnn.init_regression(jax.random.key(seed), *sizes)
    compiled = amp.compile(
        model,
        params,
        ggnn.regression_spec(qm9.N_FEATURES, qm9.N_KINDS),
    )
    data = qm9.split(qm9.synthetic(20, seed), 1, seed, 2 if small else 4).train
    return compiled, data.plain()


def _molecules_by_atoms(small: bool, seed: int) -> tuple[Graph, Data]:
    molecules = qm9.synthetic(20, seed)
    data = qm9.split(molecules, 1, seed, None, "flatmap").train
    sizes = qm9.N_FEATURES, 12 if small else 100, 2 if small else 4, qm9.N_KINDS
    return ggnn_regression(Network(*sizes, molecules.graphs)), _first(data, 2 if small else 4)


def _deduction(
    small: bool,
    seed: int,
) -> tuple[Compiled, Sequence[Any]]:
    params = ggnn.init_selection(
        jax.random.key(seed),
        1,
        5,
        babi15.N_KINDS,
    )
    compiled = amp.compile(
        ggnn.ggnn_selection,
        params,
        ggnn.selection_spec(1, babi15.N_KINDS),
    )
    return compiled, babi15.generate(1, 8 if small else 54, seed).instances().plain()


def _deduction_by_nodes(small: bool, seed: int) -> tuple[Graph, Data]:
    questions = babi15.generate(1, 8 if small else 54, seed)
    network = Network(1, 5, 2, babi15.N_KINDS, questions.graphs)
    return ggnn_selection(network), questions.instances(0, 1, "flatmap")


def _tagger(small: bool, seed: int) -> tuple[Graph, Data]:
    sentences, _ = wikiner.synthetic(100, 1, seed)  # so that there are frequent words
    vocabulary = sentences.vocabulary
    sizes = replace(
        TaggerSizes(4, 4, 4, 4) if small else TaggerSizes(),
        noise=0,
    )
    graph = tagger(
        len(vocabulary.words),
        len(vocabulary.characters),
        sizes,
    )
    return graph, _first(wikiner.SentenceInstances(sentences), 1 if small else 3)


def _permutation(
    small: bool,
    seed: int,
) -> tuple[Compiled, Sequence[Any]]:
    operations, hidden, n = (3, 8, 2) if small else (8, 128, 32)
    params = permutation_model.init(jax.random.key(seed), operations, hidden)
    compiled = amp.compile(permutation_model.permutation, params, permutation_model.SPEC)
    return compiled, permutation.plain(permutation.generate(n, operations, seed))


def _experts(small: bool, seed: int) -> tuple[Graph, Data]:
    rng = np.random.default_rng(seed)
    n = 4
    hidden = 8 if small else 128
    graph = mixture_of_experts(Experts(hidden, hidden, 10, n=4, noisy=False))
    i = np.arange(n)
    fields = {"i": i, "n": np.full(n, n)}
    return graph, [
        {
            "x": ag.messages(
                rng.normal(size=(n, hidden)).astype(np.float32),
                **fields,
            ),
            "label": ag.messages(
                rng.integers(0, 10, n).astype(np.int32),
                **fields,
            ),
        }
        for _ in range(1 if small else 8)
    ]


def _pondering(
    small: bool,
    seed: int,
) -> tuple[Compiled, Sequence[Any]]:
    rng = np.random.default_rng(seed)
    hidden = 8 if small else 128
    length = 2 if small else 5
    sizes = act.Ponder(hidden, hidden, 10)
    compiled = amp.compile(
        act.act_rnn(sizes),
        act.init(jax.random.key(seed), sizes),
        act.spec(sizes),
    )
    return compiled, [
        {
            "x": rng.normal(size=(length, hidden)).astype(np.float32),
            "label": np.int32(rng.integers(10)),
        }
        for _ in range(1 if small else 8)
    ]


def _first(data: Any, n: int) -> amp.Subset:
    return amp.Subset(data, np.arange(n))


GRAPHS: Mapping[str, Callable[[bool, int], tuple[Graph, Data]]] = {
    "perceptron": _perceptron,
    "qm9-flatmap": _molecules_by_atoms,
    "babi15-flatmap": _deduction_by_nodes,
    "tagger": _tagger,
    "mixture": _experts,
}
FUNCTIONS: Mapping[str, Callable[[bool, int], tuple[Compiled, Sequence[Any]]]] = {
    "list-reduction": _list_reduction,
    "tree-lstm-tai": _trees("tai"),
    "tree-lstm-fold": _trees("fold"),
    "qm9": _molecules,
    "babi15": _deduction,
    "act": _pondering,
    "permutation": _permutation,
}
PROGRAMS: Mapping[str, Model] = {
    "lm": "lm",
    "nmt": "nmt",
    "resnet-50": "resnet",
    "inception-v3": "inception",
}
NAMES: Sequence[str] = (*GRAPHS, *FUNCTIONS, *PROGRAMS)
