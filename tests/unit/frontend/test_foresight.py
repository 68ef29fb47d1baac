"""Choices in a loop: the state tells those of the elements to come, in as many words as a sequence needs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.model_laws import Compiled64

import ampjax as amp

SPEC = {"order": "int32[t]", "also": "int32[t]", "x": "float64[2]"}
PARAMS = {
    "turn": {"w": np.array([[0.6, -0.8], [0.8, 0.6]])},
}


def model_of(n_choices: int, reverse: bool, twice: bool = True):
    def model(p, s):
        def step(h, xs):
            choice, also = xs
            turns = [lambda h, k=k: jnp.tanh(h @ p["turn"]["w"] + k) for k in range(n_choices - 1)]
            h = amp.switch(
                choice,
                [*turns, lambda h: 0.9 * h],
                h,
            )
            return amp.cond(
                also > 0,
                lambda h: h - 0.1,
                lambda h: h,
                h,
            ) if twice else h, None

        return jnp.sum(
            amp.scan(step, s["x"] * 1.0, (s["order"], s["also"]), reverse=reverse)[0] ** 2
        )

    return model


def instances_of(n_choices: int, lengths):
    rng = np.random.default_rng(0)
    result = []
    for n in lengths:
        result.append(
            {
                "order": rng.integers(0, n_choices, n).astype(np.int32),
                "also": rng.integers(0, 2, n).astype(np.int32),
                "x": rng.normal(size=2),
            }
        )
    return result


def two_wires(p, s):
    """A carry of two dtypes, of which one choice takes one and another choice both."""

    def step(carry, xs):
        h, n = carry
        choice, also = xs
        h = amp.switch(
            choice,
            [lambda h, k=k: jnp.tanh(h @ p["turn"]["w"] + k) for k in range(8)],
            h,
        )
        return amp.cond(
            also > 0,
            lambda h, n: (0.5 * h, n + 1),
            lambda h, n: (h * 0.9, n),
            h,
            n,
        ), None

    (h, n), _ = amp.scan(
        step,
        (
            s["x"] * 1.0,
            jnp.sum(s["x"] @ p["turn"]["w"] > 0),
        ),
        (s["order"], s["also"]),
    )
    return jnp.sum(h**2) * (n + 1)


def test_wires_of_one_carry_are_told_the_same():
    with jax.enable_x64(True):
        Compiled64(
            two_wires,
            PARAMS,
            SPEC,
            instances_of(8, (0, 3, 22, 70)),
        ).check_direction()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("n_choices", "reverse", "lengths"),
    [
        (2, False, (0, 1, 62, 63, 125)),  # a word has 62 digits in base 2
        (8, True, (0, 19, 20, 21, 41)),  # and 20 in base 8
        (8, False, (5, 5, 5)),  # sequences of one length are a matrix
        (8, True, (20, 20)),
    ],
)
def test_sequences_of_any_length_are_gone_through_as_the_model_says(n_choices, reverse, lengths):
    with jax.enable_x64(True):
        compiled = Compiled64(
            model_of(n_choices, reverse), PARAMS, SPEC, instances_of(n_choices, lengths)
        )
        compiled.check_direction()


def test_words_are_pumped_only_where_one_is_used_up():
    with jax.enable_x64(True):
        compiled = amp.compile(
            model_of(8, False, twice=False),
            PARAMS,
            SPEC,
        )
        all_lengths = ((3, 20), (3, 21), (3, 45))
        all_data = [compiled.data(instances_of(8, lengths)) for lengths in all_lengths]
    of_short, of_next, of_long = (data.gather(np.arange(2)) for data in all_data)
    assert set(of_short) == {"t/init"}
    assert of_next["t/word_2/place"].fields["t_i"].tolist() == [19]
    assert of_long["t/word_2/place"].fields["t_i"].tolist() == [19, 39]
