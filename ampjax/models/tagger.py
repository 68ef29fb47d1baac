"""A tagger of words with a model of characters for rare ones: DyNet's `bilstm-tagger-withchar`, AMPNet's WikiNER experiment (B.5).

A frequent word's vector comes from a table. A rare word's is what two LSTMs over its characters end with, left to right and right to left.
Two LSTMs over the word vectors, one each way, give every word a context, which a small network without biases classifies.

The LSTMs are ordinary ones, without peepholes and with 1 added to the forget gate. A state `[2H]` holds `h` and `c`, one after the other;
row vectors throughout. Matrices start Glorot uniform (one of `[n_in, 4H]` for all gates, as in DyNet), tables uniform within `sqrt(6 /
features)` (DyNet's Glorot for them), biases zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import ampjax as amp
from ampjax.data.wikiner import N_TAGS, OUTSIDE
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.state import State, StateFn
from ampjax.ir.wires import Wire
from ampjax.models.layers.host_rows import table_of
from ampjax.nn import ChosenEmbed
from ampjax.sparse import Table


@dataclass(frozen=True)
class Sizes:
    """The tagger's sizes; the defaults are those of DyNet's benchmark.

    Args:
      char: Features of a character's vector.
      char_hidden: Features of `h` in each LSTM over characters: half of a word vector's.
      word_hidden: Features of `h` in each LSTM over words.
      mlp: Features between the two layers of the classifier.
      noise: Standard deviation of the Gaussian noise on word vectors, in training only (DyNet's program leaves it on in evaluation).

    Raises:
      SettingsError: If a size is below 1, or the noise below 0.
    """

    char: int = 20
    char_hidden: int = 64
    word_hidden: int = 50
    mlp: int = 32
    noise: float = 0.1

    def __post_init__(self) -> None:
        if min(self.char, self.char_hidden, self.word_hidden, self.mlp) < 1 or self.noise < 0:
            raise SettingsError(
                "tagger, sizes", "sizes of at least 1 and noise of at least 0", f"{self}", "Change what is outside."
            )

    @property
    def word(self) -> int:
        """Features of a word vector, E."""
        return 2 * self.char_hidden


def tagger(
    n_words: int,
    n_characters: int,
    sizes: Sizes = Sizes(),
    replicas: int = 1,
    embedding_interval: int | None = None,
    copies: int = 1,
    *,
    table: Table | ChosenEmbed | None = None,
) -> Graph:
    """Makes a tagger of sentences; the pumps are those of `ampjax.data.wikiner.SentenceInstances`.

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
      `ampjax.data.wikiner.TAGS`, and `word_forward/end` and `word_backward/end`: the LSTMs' last states.

    Raises:
      SettingsError: If a count is below 1, or the table has another shape.
    """
    counts = {"n_words": n_words, "n_characters": n_characters, "replicas": replicas, "copies": copies}
    for name, value in counts.items():
        if value < 1:
            raise SettingsError(f"tagger, `{name}`", "at least 1", f"{value}", "Give a positive number.")
    ends = ("first", "last")
    rows = None if table is None else table_of("tagger", table, n_words, sizes.word)

    def network(words: Wire, characters: Wire, labels: Wire) -> None:
        char_embed = amp.ppt("char_embed", amp.look_up, params=random_table(n_characters, sizes.char))
        inputs = _inputs("char_input", char_embed(characters), sizes.char, sizes.char_hidden)
        (_, spelled), (_, spelled_back) = _both_ways("char", inputs, "c", sizes.char_hidden)

        rare, frequent = amp.cond(words, lambda s: s.rare == 1)
        body, initial = (amp.look_up, random_table(n_words, sizes.word)) if rows is None else (rows, None)
        embed = amp.ppt("embed", body, params=initial, min_update_interval=embedding_interval)
        spell = amp.npt("spell", _spell, join=("t",))
        vectors = amp.phi("vectors", embed(frequent), spell(rare, spelled, spelled_back))
        if sizes.noise > 0:
            vectors = amp.npt("noise", Noise(sizes.noise), rng=True)(vectors)

        inputs = _inputs("word_input", vectors, sizes.word, sizes.word_hidden)
        left, right = _both_ways("word", inputs, "t", sizes.word_hidden, replicas)
        for way, (_, end) in (("forward", left), ("backward", right)):
            amp.sink(f"word_{way}/end", end)
        hidden = amp.ppt("hidden", _hidden, params=glorot(2 * sizes.word_hidden, sizes.mlp))(left[0], right[0])
        logits = amp.ppt("output", amp.nn.Linear(sizes.mlp, N_TAGS, bias=False, init_scale="glorot"))(hidden)
        amp.sink("logits", logits)
        amp.loss("xent", _loss)(logits, labels)

    with amp.Graph() as graph:
        words = amp.pump("words", (), "int32", ("t", *ends, "rare"))
        characters = amp.pump("characters", (), "int32", ("t", "c", *ends))
        labels = amp.pump("labels", (), "int32", ("t", *ends, "rare"))
        amp.replicate(network, copies)(words, characters, labels)
    return graph


def _inputs(name: str, vectors: Wire, features: int, hidden: int) -> tuple[Wire, Wire]:
    """What the vectors add to the gates `[4H]` of both LSTMs, all in one product outside of the loops."""
    return amp.ppt(name, input_gates, params=init_gates(features, hidden), outputs=2)(vectors)


def _both_ways(
    name: str, inputs: tuple[Wire, Wire], place: str, hidden: int, replicas: int = 1
) -> tuple[tuple[Wire, Wire], tuple[Wire, Wire]]:
    """LSTMs left to right and right to left along the field `place`: for each, all its states `[2H]`, and the last one."""

    def is_first(s: State) -> Any:
        return s.first == 1

    def is_last(s: State) -> Any:
        return s.last == 1

    left, right = inputs
    return (
        _lstm(f"{name}_forward", left, _Direction(place, 1, is_first, is_last), hidden, replicas),
        _lstm(f"{name}_backward", right, _Direction(place, -1, is_last, is_first), hidden, replicas),
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


def _lstm(name: str, gates: Wire, direction: _Direction, hidden: int, replicas: int) -> tuple[Wire, Wire]:
    """One LSTM as a loop over the elements of a sequence: all its states `[2H]`, and the last one."""
    first, later = amp.cond(gates, direction.starts)
    states = amp.phi(f"{name}/states")
    last, more = amp.cond(states, direction.ends)
    node = amp.ppt(name, lstm_cell, params=glorot(hidden, 4 * hidden), join=(direction.place,))
    begun = amp.npt(f"{name}/start", _start)(first)
    before = amp.isu(more, direction.next, direction.previous)
    states.connect(begun, amp.replicate(node, replicas)(later, before))
    return states, last


def lstm_cell(w: jax.Array, gates: jax.Array, state: jax.Array) -> jax.Array:
    """Takes a step of an LSTM, given the input's part of the gates.

    Args:
      w: `[H, 4H]`: the matrix from `h` to the gates.
      gates: `[4H]`: the input's part of the gates.
      state: The previous state, `[2H]`.

    Returns:
      The state `[2H]`: `h` and `c`.
    """
    h, c = jnp.split(state, 2)
    i, f, o, g = jnp.split(gates + h @ w, 4)
    return _state(jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g), o)


def _start(gates: jax.Array) -> jax.Array:
    """The cell where the state before is zero: no product, and no forget gate."""
    i, _, o, g = jnp.split(gates, 4)
    return _state(jax.nn.sigmoid(i) * jnp.tanh(g), o)


def _state(c: jax.Array, o: jax.Array) -> jax.Array:
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])


def init_gates(features: int, hidden: int) -> Callable[[jax.Array], dict[str, Any]]:
    """Makes the initialiser of the parameters of `input_gates`.

    Args:
      features: Features of an input.
      hidden: Features of `h`.

    Returns:
      From a PRNG key to `w [features, 4H]` and `b [4H]` for each direction.
    """

    def init(key: jax.Array) -> dict[str, Any]:
        ways = zip(("forward", "backward"), jax.random.split(key), strict=True)
        return {way: {"w": glorot(features, 4 * hidden)(k), "b": jnp.zeros(4 * hidden)} for way, k in ways}

    return init


def input_gates(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes an input's part of the gates of both LSTMs.

    Args:
      params: As `init_gates` makes them.
      x: `[features]`.

    Returns:
      Left to right and right to left, `[4H]` each.
    """
    return tuple(x @ params[way]["w"] + params[way]["b"] for way in ("forward", "backward"))  # type: ignore[return-value]


def _spell(_: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """The last states `[2H]` of both LSTMs to a word vector `[2H]`: `h` of each."""
    return lstm_outputs(left, right)


def lstm_outputs(left: jax.Array, right: jax.Array) -> jax.Array:
    """Concatenates the outputs `h` of both LSTMs.

    Args:
      left: The state `[2H]` of the LSTM left to right.
      right: The state `[2H]` of the LSTM right to left.

    Returns:
      `[2H]`.
    """
    return jnp.concatenate([state[: state.shape[0] // 2] for state in (left, right)])


@dataclass(frozen=True)
class Noise:
    """Adds Gaussian noise; without a key, as in inference, it changes nothing.

    Args:
      deviation: Its standard deviation.
    """

    deviation: float

    def __call__(self, x: jax.Array, key: Any = None) -> jax.Array:
        """`x` with noise.

        Args:
          x: Features of any shape.
          key: A PRNG key; None in inference.
        """
        return x if key is None else x + self.deviation * jax.random.normal(key, x.shape)


def _hidden(w: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.tanh(lstm_outputs(left, right) @ w)


def _loss(logits: jax.Array, tag: jax.Array) -> Any:
    """Cross entropy of one word, in nats."""
    hit, inside = (x.astype(jnp.float32) for x in (jnp.argmax(logits) == tag, tag != OUTSIDE))
    metrics = {"accuracy": (hit, 1.0), "accuracy_without_o": (hit * inside, inside)}
    return optax.softmax_cross_entropy_with_integer_labels(logits, tag), metrics


def glorot(n_in: int, n_out: int) -> Callable[[jax.Array], jax.Array]:
    """Makes the initialiser of a matrix, Glorot uniform.

    Args:
      n_in: Its rows.
      n_out: Its columns.

    Returns:
      From a PRNG key to the matrix `[n_in, n_out]` float32.
    """
    return lambda key: jax.nn.initializers.glorot_uniform()(key, (n_in, n_out), jnp.float32)


def random_table(n_rows: int, features: int) -> Callable[[jax.Array], jax.Array]:
    """Makes the initialiser of a table of vectors, uniform within `sqrt(6 / features)`.

    Args:
      n_rows: Vectors.
      features: Features of each.

    Returns:
      From a PRNG key to the table `[n_rows, features]` float32.
    """
    bound = (6 / features) ** 0.5
    return lambda key: jax.random.uniform(key, (n_rows, features), jnp.float32, -bound, bound)
