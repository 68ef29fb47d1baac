"""Tables that an optimizer treats alike share a rule, and their rows lie one after the other: against plain optax on the whole tree."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.optimizers import ROW_WISE, worst

from ampjax.optim.average import parameter_average
from ampjax.optim.split_by_rows import split_rows

RNG = np.random.default_rng(0)
SIZES = {
    "a": (7, 3),
    "b": (5, 3),
    "c": (11, 3),
    "d": (7, 3),
    "wide": (7, 4),
    "half": (6, 3),
}
PARAMS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in SIZES.items()} | {"w": np.ones((7, 3), np.float32)}  # fmt: skip
PARAMS["half"] = PARAMS["half"].astype(jnp.bfloat16)
TABLES = [f"['{name}']" for name in SIZES]
ALL = "abcd"
BY_NAME = {
    "a": "one",
    "b": "other",
    "c": "one",
    "d": "one",
    "wide": "other",
    "half": "one",
    "w": "one",
}
TRANSFORMS = {
    **{name: (tx, [ALL]) for name, tx in ROW_WISE.items()},
    "two norms": (optax.chain(optax.clip_by_global_norm(5), optax.clip(0.3), optax.clip_by_global_norm(0.5), optax.sgd(0.1),), [ALL]),
    "hyperparameters": (optax.inject_hyperparams(optax.adam)(learning_rate=optax.cosine_decay_schedule(0.1, 10,)), [ALL]),
    "finite": (optax.apply_if_finite(optax.chain(optax.zero_nans(), optax.sgd(0.1),), 3,), [ALL]),
    "every second": (optax.MultiSteps(optax.sgd(0.1), 2), [ALL]),
    "row means": (optax.chain(optax.centralize(), optax.lion(0.01),), [ALL]),
    "block norm": (optax.chain(optax.clip_by_block_rms(0.1), optax.sgd(0.1),), []),
    "by the range": (optax.chain(optax.stateless(lambda u, _: jax.tree.map(lambda x: x / (1 + x.max() - x.min()), u)), optax.sgd(0.1),), []),
    "labelled": (optax.multi_transform({"one": optax.adagrad(0.1), "other": optax.sgd(0.1, 0.9)}, BY_NAME,), ["acd"]),
    "labelled rates": (optax.multi_transform({"one": optax.adam(0.1), "other": optax.adam(0.2)}, BY_NAME,), ["acd"]),
    "masked": (optax.chain(optax.adam(0.1), optax.masked(optax.add_decayed_weights(0.1), {name: name in "ab" for name in PARAMS}),), ["ab", "cd"]),
    "average of some": (optax.chain(optax.sgd(0.1), optax.masked(parameter_average(0.5), {name: name in "bd" for name in PARAMS}),), ["ac", "bd"]),
    "rate by the number of rows": (optax.chain(optax.stateless(lambda u, _: jax.tree.map(lambda x: x / len(x), u)), optax.sgd(0.1),), ["ad"]),
    "weight by equal rows": (optax.chain(optax.stateless(lambda u, _: jax.tree.map(lambda x: x * jnp.ones_like(x).sum(), u)), optax.sgd(0.1),), ["ad"]),
}  # fmt: skip
ORDINARY = {
    "adam",
    "clipped",
    "finite",
    "masked",
    "labelled rates",
    "by the range",
    "weight by equal rows",
}


@pytest.fixture(autouse=True)
def any_number(monkeypatch):
    monkeypatch.setattr(sys.modules["ampjax.optim.split_by_rows"], "FEWEST_STACKED", 2)


def plain(tx, grads, state, params):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state


class Stacked:
    """A transform's parts, the tables that share a rule stacked."""

    def __init__(self, tx):
        self.split = split_rows(
            tx,
            PARAMS,
            TABLES,
            alike=dict.fromkeys(TABLES),
        )
        self.dense, by_leaf = self.split.params.split(PARAMS)
        self.state = jax.jit(self.split.init)(self.dense)
        self.rows = self.stacked({leaf: values[0] for leaf, values in by_leaf.items()})
        row_states = {}
        for t, rule in self.split.rules.items():
            row_states[t] = jax.jit(rule.init)(self.rows[t])
        self.row_states = row_states

    def stacked(self, by_leaf):
        result = {}
        for t, members in self.split.members.items():
            result[t] = np.concatenate([by_leaf[m] for m in members])
        return result

    def apart(self, by_table):
        """By leaf its part of each array of its table."""
        result = {}
        for table, members in self.split.members.items():
            cuts = self.split.rules[table].starts[1:]
            each = [np.split(array, cuts) for array in by_table[table]]
            result |= {
                member: [parts[place] for parts in each] for place, member in enumerate(members)
            }
        return result

    def step(self, grads):
        split = self.split
        dense_grads, by_leaf = split.params.split(grads)
        row_grads = self.stacked({leaf: values[0] for leaf, values in by_leaf.items()})
        totals = []
        for turn in range(split.n_rounds):
            shared = split.shared(turn, self.dense, self.state, dense_grads, totals)
            totals.append(
                {
                    t: self.reduced(turn, rule, shared[t], row_grads[t])
                    for t, rule in split.rules.items()
                }
            )
        self.dense, self.state, shared = split.jitted_update(
            self.dense, self.state, dense_grads, totals
        )
        for t, rule in split.rules.items():
            self.rows[t], self.row_states[t] = jax.jit(rule.update)(
                shared[t],
                self.rows[t],
                self.row_states[t],
                row_grads[t],
            )

    def reduced(self, turn, rule, shared, grads):
        """In two pieces, the second of which stands for rows without gradient, too."""
        parameters = (
            np.searchsorted(
                rule.starts,
                np.arange(len(grads)),
                "right",
            ).astype(np.int32)
            - 1
        )
        n = len(grads)
        m = len(rule.starts)
        touched = np.array(
            [grad.any() for grad in grads],
            np.int32,
        )
        first = rule.partials(
            turn,
            shared,
            grads[: n // 2],
            touched[: n // 2],
            parameters[: n // 2],
        )
        weights = np.concatenate(
            [
                touched[n // 2 :],
                np.bincount(parameters[touched == 0], minlength=m),
            ]
        )
        rest = np.concatenate(
            [
                grads[n // 2 :],
                np.zeros_like(grads[:1]).repeat(
                    m,
                    0,
                ),
            ]
        )
        second = rule.partials(
            turn,
            shared,
            rest,
            weights.astype(np.int32),
            np.concatenate(
                [
                    parameters[n // 2 :],
                    np.arange(m),
                ]
            ),
        )
        return rule.combine(turn, [first, second])

    def joined(self):
        """Parameters and optimizer state as plain optax would have them."""
        params = self.split.params.fill(
            jax.tree.leaves(self.dense),
            self.apart({t: [r] for t, r in self.rows.items()}),
        )
        return params, self.split.state.fill(
            jax.tree.leaves(self.state), self.apart(self.row_states)
        )


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n in ORDINARY else pytest.param(n, marks=pytest.mark.nightly) for n in TRANSFORMS]
)
def test_stacked_tables_are_plain_optax(name):
    tx, stacks = TRANSFORMS[name]
    parts = Stacked(tx)
    rng = np.random.default_rng(1)
    several = []
    for members in parts.split.members.values():
        if len(members) > 1:
            several.append(members)
    assert several == [tuple(f"['{leaf}']" for leaf in names) for names in stacks]
    params = PARAMS
    state = jax.jit(tx.init)(PARAMS)
    update = jax.jit(lambda *args: plain(tx, *args))
    for _ in range(3):
        grads = jax.tree.map(
            lambda p: rng.normal(size=p.shape).astype(p.dtype),
            PARAMS,
        )
        for leaf in SIZES:
            grads[leaf][rng.choice(len(grads[leaf]), 3, replace=False)] = 0
        params, state = update(grads, state, params)
        parts.step(grads)
    got = parts.joined()
    wanted = (params, state)
    in_half = [leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(got)]
    for tolerance, half in (
        (1e-5, False),
        (2e-2, True),
    ):  # sums in another order; bfloat16 has 8 bits
        chosen = []
        for tree in (got, wanted):
            chosen.append(
                [
                    leaf
                    for leaf, is_half in zip(jax.tree.leaves(tree), in_half, strict=True)
                    if is_half == half
                ]
            )
        assert worst(*chosen) < tolerance


def test_only_what_may_be_stacked_is():
    alike = {table: table in ("['a']", "['c']", "['wide']") for table in TABLES}
    split = split_rows(optax.adam(0.1), PARAMS, TABLES, alike=alike)
    assert split.members["['a'] and 1 other"] == ("['a']", "['c']")
    assert split.members["['b'] and 1 other"] == ("['b']", "['d']")
    assert split.rules["['a'] and 1 other"].starts == (0, 7)
    assert all(
        len(members) == 1
        for members in split_rows(optax.adam(0.1), PARAMS, TABLES).members.values()
    )
