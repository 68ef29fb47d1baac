"""A tagger with one word table, which lies on a device or in host memory: the same graph either way."""

import functools

import numpy as np
import optax
from support import graphs

import ampjax as amp
import ampjax.graphs as ag
from ampjax.sparse import Table

WORDS = 12
FEATURES = 4
PIECES = 2
VALUES = np.random.default_rng(5).normal(size=(WORDS, FEATURES)).astype(np.float32)

OUTPUT = amp.nn.Linear(FEATURES * PIECES, 3)


def flat(rows):
    return rows.reshape(-1)


def build(layer, copies=1, **options):
    """Each message is a word of two pieces: two rows of the table."""

    def network(word, tag):
        rows = ag.ppt("embed", layer, **options)(word)
        ag.loss("xent", graphs.xent)(
            ag.ppt("output", OUTPUT)(ag.npt("flat", flat)(rows)),
            tag,
        )

    with ag.Graph() as g:
        word = ag.pump(
            "word",
            (PIECES,),
            dtype="int32",
            fields=("t",),
        )
        ag.replicate(network, copies)(
            word,
            ag.pump("tag", dtype="int32", fields=("t",)),
        )
    return g


@functools.cache
def dense(copies=1, **options):
    return build(amp.nn.Embed(WORDS, FEATURES), copies, **options)


def with_table(
    tx,
    copies=1,
    weights=None,
    gradient=None,
    **settings,
):
    """The graph, and its table."""
    table = Table(VALUES, tx, **settings)
    return build(
        amp.nn.TableEmbed(table),
        copies,
        weights=weights,
        gradient=gradient,
    ), table


def data(n, seed=0, length=None):
    rng = np.random.default_rng(seed)
    lengths = []
    for _ in range(n):
        lengths.append(length or int(rng.integers(1, 5)))
    result = []
    for m in lengths:
        result.append(
            {
                "word": ag.messages(
                    rng.integers(0, WORDS, (m, PIECES)).astype(np.int32),
                    t=np.arange(m),
                ),
                "tag": ag.messages(
                    rng.integers(0, 3, m).astype(np.int32),
                    t=np.arange(m),
                ),
            }
        )
    return result


@functools.cache
def start():
    """Parameters of the dense graph, the table's values among them."""
    params = amp.Trainer(dense(), optax.sgd(0.1)).params
    return {"output": params["output"], "embed": VALUES}
