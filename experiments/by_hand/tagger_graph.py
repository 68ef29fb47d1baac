"""A tagger of words with a model of characters for rare ones, by hand; `experiments.models.tagger` has its sizes and cells.

The first element of each LSTM has a cell of its own, without the product with a state of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.state import State, StateFn
from ampjax.ir.wires import Wire
from ampjax.nn import TableEmbed
from ampjax.nn.layers import ChosenEmbed
from ampjax.sparse import Table
from experiments.data.wikiner import N_TAGS, OUTSIDE
from experiments.models.layers.host_rows import check_table
from experiments.models.tagger import (
    Noise,
    Sizes,
    glorot,
    init_gates,
    input_gates,
    lstm_cell,
    lstm_outputs,
    random_table,
)

DYNETS = Sizes()
"""The sizes of DyNet's benchmark."""


def tagger(
    n_words: int,
    n_characters: int,
    sizes: Sizes = DYNETS,
    replicas: int = 1,
    embedding_interval: int | None = None,
    copies: int = 1,
    *,
    table: Table | ChosenEmbed | None = None,
) -> Graph:
    """Makes a tagger of sentences; the pumps are those of `experiments.data.wikiner.SentenceInstances`.

    A Cond sends frequent words (field `rare` 0) to the table, and rare ones to the node where their characters' last states arrive; a Phi
    merges the two. In each LSTM a message whose `first` (right to left: `last`) is 1 starts from its gates alone. An Isu moves each state to
    the next place, where the cell joins it with the gates of that place.

    Args:
      n_words: Frequent words in the vocabulary.
      n_characters: Characters in the vocabulary.
      sizes: Sizes and noise.
      replicas: The number of copies of the two LSTM cells over words, each for some instances (figure 4b).
      embedding_interval: `min_update_interval` of the table of words; by default the trainer's.
      copies: The number of copies of the whole network, each for some instances and on a worker of its own.
      table: The vectors of frequent words `[n_words, word]`, in host memory and with an optimizer of their own; None keeps them on a device. Or what
        `amp.nn.choose_embed` has chosen.

    Returns:
      The graph, with the parameterised nodes `embed`, `char_embed`, `char_input`, `char_forward`, `char_backward`, `word_input`,
      `word_forward`, `word_backward`, `hidden` and `output`, the loss `xent` with the metrics `accuracy` (over all words) and
      `accuracy_without_o` (over words inside entities), and the sinks `logits`: a row `[9]` for each word, in the order of
      `experiments.data.wikiner.TAGS`, and `word_forward/end` and `word_backward/end`: the LSTMs' last states.

    Raises:
      SettingsError: If a count is below 1, or the table has another shape.
    """
    counts = {
        "n_words": n_words,
        "n_characters": n_characters,
        "replicas": replicas,
        "copies": copies,
    }
    for name, value in counts.items():
        if value < 1:
            raise SettingsError(
                f"tagger, `{name}`", "at least 1", f"{value}", "Give a positive number."
            )
    ends = ("first", "last")
    if table is not None:
        check_table("tagger", table, n_words, sizes.word)
    rows = TableEmbed(table) if isinstance(table, Table) else table

    def network(words: Wire, characters: Wire, labels: Wire) -> None:
        char_embed = ag.ppt(
            "char_embed", amp.look_up, params=random_table(n_characters, sizes.char)
        )
        inputs = _inputs("char_input", char_embed(characters), sizes.char, sizes.char_hidden)
        (_, spelled), (_, spelled_back) = _both_ways(
            "char",
            inputs,
            "c",
            sizes.char_hidden,
        )

        rare, frequent = ag.cond(words, lambda s: s.rare == 1)
        if rows is None:
            body = amp.look_up
            initial = random_table(n_words, sizes.word)
        else:
            body = rows
            initial = None
        embed = ag.ppt("embed", body, params=initial, min_update_interval=embedding_interval)
        spell = ag.npt("spell", _spell, join=("t",))
        vectors = ag.phi(
            "vectors",
            embed(frequent),
            spell(rare, spelled, spelled_back),
        )
        if sizes.noise > 0:
            vectors = ag.npt("noise", Noise(sizes.noise), rng=True)(vectors)

        inputs = _inputs("word_input", vectors, sizes.word, sizes.word_hidden)
        left, right = _both_ways("word", inputs, "t", sizes.word_hidden, replicas)
        for way, (_, end) in (("forward", left), ("backward", right)):
            ag.sink(f"word_{way}/end", end)
        hidden = ag.ppt("hidden", _hidden, params=glorot(2 * sizes.word_hidden, sizes.mlp))(
            left[0], right[0]
        )
        logits = ag.ppt(
            "output",
            amp.nn.Linear(sizes.mlp, N_TAGS, bias=False, init_scale="glorot"),
        )(hidden)
        ag.sink("logits", logits)
        ag.loss("xent", _loss)(logits, labels)

    with ag.Graph() as graph:
        words = ag.pump(
            "words",
            (),
            "int32",
            ("t", *ends, "rare"),
        )
        characters = ag.pump(
            "characters",
            (),
            "int32",
            ("t", "c", *ends),
        )
        labels = ag.pump(
            "labels",
            (),
            "int32",
            ("t", *ends, "rare"),
        )
        ag.replicate(network, copies)(words, characters, labels)
    return graph


def _inputs(
    name: str,
    vectors: Wire,
    features: int,
    hidden: int,
) -> tuple[Wire, Wire]:
    """What the vectors add to the gates `[4H]` of both LSTMs, all in one product outside of the loops."""
    return ag.ppt(name, input_gates, params=init_gates(features, hidden), outputs=2)(vectors)


def _both_ways(
    name: str,
    inputs: tuple[Wire, Wire],
    place: str,
    hidden: int,
    replicas: int = 1,
) -> tuple[tuple[Wire, Wire], tuple[Wire, Wire]]:
    """LSTMs left to right and right to left along the field `place`: for each, all its states `[2H]`, and the last one."""

    def is_first(s: State) -> Any:
        return s.first == 1

    def is_last(s: State) -> Any:
        return s.last == 1

    left, right = inputs
    return (
        _lstm(
            f"{name}_forward",
            left,
            _Direction(place, 1, is_first, is_last),
            hidden,
            replicas,
        ),
        _lstm(
            f"{name}_backward", right, _Direction(place, -1, is_last, is_first), hidden, replicas
        ),
    )


@dataclass(frozen=True)
class _Direction:
    """The way in which a recurrent network reads a sequence.

    Args:
      place: The state field that numbers the elements.
      step: 1 from left to right, -1 from right to left.
      starts: Where it begins: a state function that is true there.
      ends: Where it ends.
    """

    place: str
    step: int
    starts: StateFn
    ends: StateFn

    def next(self, s: State) -> State:
        """The element that is read next."""
        return s.replace(**{self.place: getattr(s, self.place) + self.step})

    def previous(self, s: State) -> State:
        """The element that was read before."""
        return s.replace(**{self.place: getattr(s, self.place) - self.step})


def _lstm(
    name: str, gates: Wire, direction: _Direction, hidden: int, replicas: int
) -> tuple[Wire, Wire]:
    """One LSTM as a loop over the elements of a sequence: all its states `[2H]`, and the last one."""
    first, later = ag.cond(gates, direction.starts)
    states = ag.phi(f"{name}/states")
    last, more = ag.cond(states, direction.ends)
    node = ag.ppt(
        name,
        lstm_cell,
        params=glorot(hidden, 4 * hidden),
        join=(direction.place,),
    )
    begun = ag.npt(f"{name}/start", _start)(first)
    before = ag.isu(more, direction.next, direction.previous)
    states.connect(begun, ag.replicate(node, replicas)(later, before))
    return states, last


def _start(gates: jax.Array) -> jax.Array:
    """The cell where the state before is zero: no product, and no forget gate."""
    i, _, o, g = jnp.split(gates, 4)
    c = jax.nn.sigmoid(i) * jnp.tanh(g)
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])


def _spell(
    _: jax.Array,
    left: jax.Array,
    right: jax.Array,
) -> jax.Array:
    """The last states `[2H]` of both LSTMs to a word vector `[2H]`: `h` of each."""
    return lstm_outputs(left, right)


def _hidden(
    w: jax.Array,
    left: jax.Array,
    right: jax.Array,
) -> jax.Array:
    return jnp.tanh(lstm_outputs(left, right) @ w)


def _loss(logits: jax.Array, tag: jax.Array) -> Any:
    """Cross entropy of one word, in nats."""
    hit, inside = (x.astype(jnp.float32) for x in (jnp.argmax(logits) == tag, tag != OUTSIDE))
    metrics = {
        "accuracy": (hit, 1.0),
        "accuracy_without_o": (hit * inside, inside),
    }
    return optax.softmax_cross_entropy_with_integer_labels(logits, tag), metrics
