"""The models that read their embedding from a table in host memory by a switch: its gradients are those of the one on a device, and it trains."""

import jax
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.sparse import Table
from experiments.data import list_reduction, sst, wikiner
from experiments.models import tagger
from experiments.models.rnn import list_reduction_rnn
from experiments.models.tree_lstm import SPEC, Cells, init, tree_lstm


def lists(table):
    model = list_reduction_rnn(6, table=table)
    return model.graph, model.data(list_reduction.plain(list_reduction.generate(6, seed=3)))


def trees(table):
    data, _ = sst.synthetic(6, 1)
    cells = Cells("tai", 6, 5, 1.0)
    params = init(
        jax.random.key(0),
        len(data.vocabulary),
        cells,
        table,
    )
    model = amp.compile(tree_lstm(cells), params, SPEC)
    return model.graph, model.data(sst.plain(data))


def sentences(table):
    data, _ = wikiner.synthetic(60, 1)
    counts = len(data.vocabulary.words), len(data.vocabulary.characters)
    params = tagger.init(
        jax.random.key(0),
        *counts,
        tagger.Sizes(4, 3, 6, 5, noise=0),
        table,
    )
    model = amp.compile(tagger.tagger(0), params, tagger.SPEC)
    return model.graph, model.data(wikiner.plain(data))


@pytest.mark.users
@pytest.mark.slow
@pytest.mark.parametrize("model", [lists, trees, sentences])
def test_a_table_has_the_gradients_of_the_embedding_on_a_device(model):
    dense, data = model(None)
    params = amp.Trainer(dense, optax.sgd(0.1)).params
    table = Table(params["embed"], optax.adagrad(0.1))
    graph, _ = model(table)
    others = {}
    for node, value in params.items():
        if node != "embed":
            others[node] = value
    trainers = amp.Trainer(graph, params=others), amp.Trainer(dense, params=params)
    found = [trainer.accumulate(data, update=False) for trainer in trainers]
    assert found[0]["loss_sum"] == pytest.approx(found[1]["loss_sum"], rel=1e-5)
    (ours, n_ours), (theirs, n_theirs) = (trainer.gradients["embed"] for trainer in trainers)
    assert n_ours == n_theirs > 0
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    trainers[0].fit(data, progress=False)
    assert table.version > 0 or trainers[0].gradients["embed"][1] > 0


@pytest.mark.users
@pytest.mark.slow
def test_a_table_that_does_not_fit_is_refused():
    small = Table(
        np.zeros((3, 6), np.float32),
        optax.sgd(0.1),
    )
    for model in (lists, trees, sentences):
        with pytest.raises(
            SettingsError, match=r"`table`: expected at least \d+ rows of 6 numbers, got 3 rows"
        ):
            model(small)
