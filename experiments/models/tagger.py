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
from ampjax.errors import SettingsError
from ampjax.nn import Linear
from ampjax.sparse import Table
from experiments.data.wikiner import N_TAGS, OUTSIDE
from experiments.models.layers.drawing import drawing
from experiments.models.layers.host_rows import check_table


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
                "tagger, sizes",
                "sizes of at least 1 and noise of at least 0",
                f"{self}",
                "Change what is outside.",
            )

    @property
    def word(self) -> int:
        """Features of a word vector, E."""
        return 2 * self.char_hidden


SPEC = {"words": "int32[w]", "chars": "int32[w,c]", "tags": "int32[w]"}
"""What an instance looks like: a rare word is -1 and spelled, a frequent one has no characters. `experiments.data.wikiner.plain` gives such instances."""


def init(
    key: jax.Array,
    n_words: int,
    n_characters: int,
    sizes: Sizes = Sizes(),
    table: Table | None = None,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      n_words: Frequent words in the vocabulary.
      n_characters: Characters in the vocabulary.
      sizes: The sizes.
      table: The vectors of frequent words `[n_words, word]`, in host memory and with an optimizer of their own; None keeps them on a device.

    Returns:
      `char_embed` and `embed`, tables of vectors; `char_input` and `word_input`, as `init_gates` makes them; `char_forward`, `char_backward`,
      `word_forward` and `word_backward`, matrices from `h` to the gates; the matrix `hidden`, and the linear layer `output`.

    Raises:
      SettingsError: If a count is below 1, or the table has another shape.
    """
    for name, value in {"n_words": n_words, "n_characters": n_characters}.items():
        if value < 1:
            raise SettingsError(
                f"tagger, `{name}`", "at least 1", f"{value}", "Give a positive number."
            )
    of_char = sizes.char_hidden
    of_word = sizes.word_hidden
    makers = {
        "char_embed": random_table(n_characters, sizes.char),
        "embed": random_table(n_words, sizes.word),
        "char_input": init_gates(sizes.char, of_char),
        "char_forward": glorot(of_char, 4 * of_char),
        "char_backward": glorot(of_char, 4 * of_char),
        "word_input": init_gates(sizes.word, of_word),
        "word_forward": glorot(of_word, 4 * of_word),
        "word_backward": glorot(of_word, 4 * of_word),
        "hidden": glorot(2 * of_word, sizes.mlp),
        "output": Linear(sizes.mlp, N_TAGS, bias=False, init_scale="glorot").init,
    }
    keys = jax.random.split(key, len(makers))
    params = {}
    for (name, make), one in zip(makers.items(), keys, strict=True):
        params[name] = make(one)
    if table is not None:
        check_table("tagger", table, n_words, sizes.word)
        params["embed"] = table
    return params


def tagger(
    noise: float = 0.1,
    replicas: int = 1,
) -> Callable[[Any, Any], jax.Array]:
    """Makes the model: two LSTMs over a sentence's words, one each way; a rare word's vector comes from two LSTMs over its characters.

    Args:
      noise: Standard deviation of the Gaussian noise on word vectors, in training only.
      replicas: The number of copies of the two LSTM cells over words, each for some instances (figure 4b).

    Returns:
      A function of parameters and an instance to the summed cross entropy of all words, in nats; with the metrics `accuracy` (over all words) and
      `accuracy_without_o` (over words inside entities), and the output `logits`: a row `[9]` for each word, in the order of `experiments.data.wikiner.TAGS`.

    Raises:
      SettingsError: If there is no replica.
    """
    if replicas < 1:
        raise SettingsError(
            "tagger, `replicas`", "at least 1", f"{replicas}", "Give a positive number."
        )

    def model(p: Any, s: Any) -> jax.Array:
        def lstm(
            name: str,
            gates: Any,
            reverse: bool,
            replicas: int,
        ) -> tuple[jax.Array, Any]:
            def cell(gate: jax.Array, state: jax.Array) -> jax.Array:
                return lstm_cell(p[name], gate, state)

            if replicas == 1:
                turn = cell
            else:
                turn = amp.node(name, replicas=replicas)(cell)

            def step(
                state: jax.Array,
                gate: jax.Array,
            ) -> tuple[jax.Array, jax.Array]:
                state = turn(gate, state)
                return state, state

            return amp.scan(
                step,
                jnp.zeros(2 * p[name].shape[0]),
                gates,
                reverse=reverse,
            )

        def both_ways(
            kind: str,
            vector: Callable[..., Any],
            *xs: Any,
            replicas: int = 1,
        ) -> Any:
            left, right = amp.map(
                lambda *x: input_gates(p[f"{kind}_input"], vector(*x)),
                *xs,
            )
            return lstm(f"{kind}_forward", left, False, replicas), lstm(
                f"{kind}_backward", right, True, replicas
            )

        def word(number: jax.Array, chars: Any) -> jax.Array:
            def spell() -> jax.Array:
                (left, _), (right, _) = both_ways(
                    "char", lambda c: amp.look_up(p["char_embed"], c), chars
                )
                return lstm_outputs(left, right)

            vector = amp.cond(
                number < 0,
                spell,
                lambda: amp.look_up(p["embed"], number),
            )
            return drawing(noise > 0, Noise(noise), vector)

        def score(
            left: jax.Array,
            right: jax.Array,
            tag: jax.Array,
        ) -> jax.Array:
            logits = jnp.tanh(lstm_outputs(left, right) @ p["hidden"]) @ p["output"]["w"]
            amp.output("logits", logits)
            hit = jnp.argmax(logits) == tag
            inside = tag != OUTSIDE
            amp.metric("accuracy", hit)
            amp.metric("accuracy_without_o", hit & inside, inside)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tag)

        (_, left), (_, right) = both_ways(
            "word",
            word,
            s["words"],
            s["chars"],
            replicas=replicas,
        )
        return amp.sum(amp.map(score, left, right, s["tags"]))

    return model


def lstm_cell(
    w: jax.Array,
    gates: jax.Array,
    state: jax.Array,
) -> jax.Array:
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
    return _state(
        jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g),
        o,
    )


def _state(c: jax.Array, o: jax.Array) -> jax.Array:
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])


def init_gates(
    features: int,
    hidden: int,
) -> Callable[[jax.Array], dict[str, Any]]:
    """Makes the initialiser of the parameters of `input_gates`.

    Args:
      features: Features of an input.
      hidden: Features of `h`.

    Returns:
      From a PRNG key to `w [features, 4H]` and `b [4H]` for each direction.
    """

    def init(key: jax.Array) -> dict[str, Any]:
        ways = zip(
            ("forward", "backward"),
            jax.random.split(key),
            strict=True,
        )
        result = {}
        for way, k in ways:
            result[way] = {
                "w": glorot(features, 4 * hidden)(k),
                "b": jnp.zeros(4 * hidden),
            }
        return result

    return init


def input_gates(
    params: Any,
    x: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Computes an input's part of the gates of both LSTMs.

    Args:
      params: As `init_gates` makes them.
      x: `[features]`.

    Returns:
      Left to right and right to left, `[4H]` each.
    """
    return tuple(x @ params[way]["w"] + params[way]["b"] for way in ("forward", "backward"))  # type: ignore[return-value]


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

    def __call__(
        self,
        x: jax.Array,
        key: Any = None,
    ) -> jax.Array:
        """`x` with noise.

        Args:
          x: Features of any shape.
          key: A PRNG key; None in inference.
        """
        if key is None:
            return x
        return x + self.deviation * jax.random.normal(key, x.shape)


def glorot(
    n_in: int,
    n_out: int,
) -> Callable[[jax.Array], jax.Array]:
    """Makes the initialiser of a matrix, Glorot uniform.

    Args:
      n_in: Its rows.
      n_out: Its columns.

    Returns:
      From a PRNG key to the matrix `[n_in, n_out]` float32.
    """
    return lambda key: jax.nn.initializers.glorot_uniform()(
        key,
        (n_in, n_out),
        jnp.float32,
    )


def random_table(
    n_rows: int,
    features: int,
) -> Callable[[jax.Array], jax.Array]:
    """Makes the initialiser of a table of vectors, uniform within `sqrt(6 / features)`.

    Args:
      n_rows: Vectors.
      features: Features of each.

    Returns:
      From a PRNG key to the table `[n_rows, features]` float32.
    """
    bound = (6 / features) ** 0.5
    return lambda key: jax.random.uniform(
        key,
        (n_rows, features),
        jnp.float32,
        -bound,
        bound,
    )
