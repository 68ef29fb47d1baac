"""A small neural programmer-interpreter (Reed and de Freitas 2016): one core LSTM runs programs that call programs, until each halts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from experiments.data.generated.additions import CALL, CARRY, HALT, MOST_STEPS, N_COLUMNS, WRITE
from experiments.models.functions.zoo.small_cells import cross_entropy, init_linears, lstm
from experiments.models.layers.linear import linear

SPEC = {
    "numbers": f"int32[2,{N_COLUMNS}]",
    "columns": "int32[]",
    "operations": f"int32[{MOST_STEPS}]",
    "digits": f"int32[{MOST_STEPS}]",
    "label": f"int32[{N_COLUMNS}]",
}
"""What an instance looks like: two numbers, and the trace of the program that adds them."""
ADD, ADD1 = range(2)
MOST_OF = {ADD: 2 * N_COLUMNS + 1, ADD1: 3}
"""Steps of a call of each program at most."""
SEEN = (2, 10, 10, 2, 2)
"""What the core sees, as one-hot vectors of these lengths: the program, the column's two digits, the carry, and whether a column is left."""


def init(
    key: jax.Array,
    hidden: int = 32,
) -> dict[str, Any]:
    """Makes the parameters.

    Args:
      key: A PRNG key.
      hidden: Features of the core.
    """
    sizes = {
        "see": (sum(SEEN), 4 * hidden),
        "core": (5 * hidden, 4 * hidden),
        "operate": (hidden, CALL + 1),
        "say": (hidden, 10),
    }
    return init_linears(key, **sizes)


def core(
    p: Any,
    state: jax.Array,
    seen: Sequence[Any],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The core: an LSTM with two outputs.

    Args:
      p: The parameters.
      state: `[2 H]`.
      seen: What it sees: five numbers.

    Returns:
      The next state, and logits of the operation `[5]` and of the digit that goes with it `[10]`.
    """
    x = jnp.concatenate([jax.nn.one_hot(value, n) for value, n in zip(seen, SEEN, strict=True)])
    state = lstm(
        p["core"],
        state,
        jax.nn.relu(linear(p["see"], x)),
    )
    h, _ = jnp.split(state, 2)
    return state, linear(p["operate"], h), linear(p["say"], h)


def programmer_interpreter(
    p: Any,
    s: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """In training it does what the trace says (and learns to predict it), elsewhere what it predicts.

    Args:
      p: The parameters.
      s: `numbers` `[2, 5]`, `columns` `[]`, `operations` and `digits` `[21]`, and `label` `[5]`.

    Returns:
      The summed cross entropy of the trace; and how many sums are right.
    """

    def run(program: int, env: Any) -> Any:
        def step(carry: Any) -> Any:
            _, state, (at, column, carried, written, loss) = carry
            seen = program, *s["numbers"][:, column], carried, jnp.int32(column < s["columns"])
            state, scores, says = core(p, state, seen)
            given = (s["operations"][at], s["digits"][at])
            own = (jnp.argmax(scores), jnp.argmax(says))
            operation, digit = amp.stochastic(
                lambda _, own, given: given, lambda own, given: own, own, given
            )
            has_digit = (given[0] == WRITE) | (given[0] == CARRY)
            loss = (
                loss
                + cross_entropy(scores, given[0])
                + jnp.where(has_digit, cross_entropy(says, given[1]), 0.0)
            )
            at = jnp.minimum(at + 1, MOST_STEPS - 1)
            right = jnp.minimum(column + 1, N_COLUMNS - 1)
            env = at, column, carried, written, loss
            choices = [
                lambda: env,
                lambda: (
                    at,
                    column,
                    carried,
                    written.at[column].set(digit),
                    loss,
                ),
                lambda: (at, column, digit, written, loss),
                lambda: (at, right, carried, written, loss),
                *([lambda: run(ADD1, env)] if program == ADD else []),
            ]
            env = amp.switch(amp.read(operation), choices)
            return (operation != HALT).astype(jnp.int32), state, env

        begin = jnp.int32(1), jnp.zeros(2 * p["say"]["w"].shape[0]), env
        return amp.while_loop(
            lambda carry: amp.read(carry[0]) == 1,
            step,
            begin,
            most=MOST_OF[program],
        )[2]

    start = *(jnp.int32(0),) * 3, jnp.zeros(N_COLUMNS, jnp.int32), jnp.zeros(())
    *_, written, loss = run(ADD, start)
    return loss, {"accuracy": jnp.all(written == s["label"])}
