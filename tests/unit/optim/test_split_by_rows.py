"""Optax transforms cut into rows and a shared part, put together again, against plain optax on the whole tree."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.calls import one_call
from support.optimizers import ROW_WISE, STILL, worst

from ampjax.errors import SettingsError, TableError
from ampjax.optim.average import parameter_average
from ampjax.optim.split_by_rows import split_rows

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
PARAMS = {
    "w": RNG.normal(size=(12, 3)).astype(np.float32),  # dense, of the same shape as a table
    "emb": RNG.normal(size=(12, 3)).astype(np.float32),
    "bias": RNG.normal(size=(9,)).astype(np.float32),
    "none": None,
}
TABLES = ("['emb']", "['bias']")
MORE = {
    "two norms": optax.chain(optax.clip_by_global_norm(5), optax.clip(0.3), optax.clip_by_global_norm(0.5), optax.sgd(0.1),),
    "masked": optax.chain(optax.masked(optax.adam(0.1), {"w": False, "emb": True, "bias": False, "none": None}), optax.scale(0.5),),
    "labelled": optax.multi_transform(
        {"a": optax.adagrad(0.1), "b": optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, 0.9)),},
        {"w": "b", "emb": "a", "bias": "b", "none": None},
    ),
    "average of some": optax.chain(optax.sgd(0.1), optax.masked(parameter_average(0.5), {"w": True, "emb": True, "bias": False, "none": None}),),
    "hyperparameters": optax.inject_hyperparams(optax.adam)(learning_rate=optax.cosine_decay_schedule(0.1, 10)),
    "block norm": optax.chain(optax.clip_by_block_rms(0.1), optax.sgd(0.1),),
    "finite": optax.apply_if_finite(optax.chain(optax.zero_nans(), optax.sgd(0.1),), 3,),
    "every second": optax.MultiSteps(optax.sgd(0.1), 2),
    "by the range": optax.chain(optax.stateless(lambda u, _: jax.tree.map(lambda x: x / (1 + x.max() - x.min()), u)), optax.sgd(0.1),),
    "in calls": optax.chain(optax.stateless(lambda u, _: jax.checkpoint(one_call(lambda u: jax.tree.map(jnp.tanh, u)))(u)), optax.sgd(0.1),),
    "row means": optax.chain(optax.centralize(), optax.lion(0.01)),
}  # fmt: skip


def optax_step(tx, grads, state, params):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state


class Apart:
    """A transform's parts, each run as it would be somewhere else, compiled once."""

    def __init__(self, tx):
        self.split = split_rows(tx, PARAMS, TABLES)
        self.dense, rows = self.split.params.split(PARAMS)
        self.state = jax.jit(self.split.init)(self.dense)
        self.rows = {t: leaves[0] for t, leaves in rows.items()}
        row_states = {}
        for t, rule in self.split.rules.items():
            row_states[t] = jax.jit(rule.init)(self.rows[t])
        self.row_states = row_states
        updates = {}
        for t, rule in self.split.rules.items():
            updates[t] = jax.jit(rule.update)
        self.updates = updates
        partials = {}
        for t, rule in self.split.rules.items():
            partials[t] = jax.jit(rule.partials, static_argnums=0)
        self.partials = partials

    def step(self, grads, touched):
        shared_of = self.split.jitted_shared
        update = self.split.jitted_update
        dense_grads, row_grads = self.split.params.split(grads)
        totals = []
        for turn in range(self.split.n_rounds):
            shared = shared_of(turn, self.dense, self.state, dense_grads, totals)
            totals.append(
                {t: self.reduced(t, turn, shared[t], row_grads[t][0], touched[t]) for t in TABLES}
            )
        self.dense, self.state, shared = update(
            self.dense,
            self.state,
            dense_grads,
            totals,
        )
        for t in TABLES:
            row = self.rows[t], self.row_states[t], row_grads[t][0]
            self.rows[t], self.row_states[t] = self.updates[t](
                shared[t],
                *row,
            )

    def reduced(self, table, turn, shared, grads, touched):
        # Rows 1 to 3 and one that is left out; row 4 and a zero row that stands for all that were not touched.
        first = self.partials[table](
            turn,
            shared,
            grads[touched],
            np.array([1, 1, 1, 0], np.int32),
        )
        rest = np.zeros_like(grads[:4])
        rest[0] = grads[touched[3]]
        second = self.partials[table](
            turn,
            shared,
            rest,
            np.array(
                [1, len(grads) - 4, 0, 0],
                np.int32,
            ),
        )
        return self.split.rules[table].combine(turn, [first, second])

    def joined(self):
        """Parameters and optimizer state as plain optax would have them."""
        params = self.split.params.fill(
            jax.tree.leaves(self.dense),
            {t: [rows] for t, rows in self.rows.items()},
        )
        return params, self.split.state.fill(
            jax.tree.leaves(self.state),
            self.row_states,
        )


ALIKE = "sgd", "nesterov", "rmsprop", "adamw", "scheduled"
"""Rules that work row by row as others do that ordinary runs try."""


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly) if name in ALIKE else name
        for name in [*ROW_WISE, *MORE]
    ],
)
def test_the_parts_together_are_plain_optax(name):
    tx = (ROW_WISE | MORE)[name]
    parts = Apart(tx)
    rng = np.random.default_rng(1)
    params = PARAMS
    opt_state = jax.jit(tx.init)(PARAMS)
    update = jax.jit(lambda *args: optax_step(tx, *args))
    for _ in range(4):
        touched = {}
        for t in TABLES:
            touched[t] = np.sort(
                rng.choice(
                    len(parts.rows[t]),
                    4,
                    replace=False,
                )
            )
        grads = jax.tree.map(
            lambda p: rng.normal(size=p.shape).astype(np.float32),
            PARAMS,
        )
        for t, leaf in zip(TABLES, ("emb", "bias"), strict=True):
            grads[leaf][np.setdiff1d(np.arange(len(grads[leaf])), touched[t])] = 0
        params, opt_state = update(grads, opt_state, params)
        parts.step(grads, touched)
    # 1e-5: sums in another order; found are 4e-7 at most
    assert worst(parts.joined(), (params, opt_state)) < 1e-5


@pytest.mark.parametrize("name", ROW_WISE)
def test_which_transforms_leave_untouched_rows_alone(name):
    split = split_rows(ROW_WISE[name], PARAMS, TABLES)
    assert {rule.zero_gradient_is_noop for rule in split.rules.values()} == {name in STILL}


def test_what_is_shared_and_what_is_by_row():
    split = split_rows(ROW_WISE["clipped"], PARAMS, TABLES)
    assert split.n_rounds == 1
    assert [s.name for s in split.rules["['emb']"].state] == [
        "[2][0].mu['emb']",
        "[2][0].nu['emb']",
    ]
    # The norm, whether it is above the limit, two bias corrections: numbers, not arrays.
    assert {var.aval.shape for var in split.rules["['emb']"].step.shared} == {()}
    assert split.init(split.params.split(PARAMS)[0])[2][0].mu["emb"] is None


def test_half_precision_keeps_its_dtypes():
    params = jax.tree.map(
        lambda p: jax.ShapeDtypeStruct(p.shape, jnp.bfloat16),
        PARAMS,
    )
    rule = split_rows(ROW_WISE["clipped"], params, TABLES).rules["['emb']"]
    assert rule.dtype == jnp.bfloat16
    rows = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
    state = jax.eval_shape(rule.init, rows)
    shared = []
    for var in rule.step.shared:
        shared.append(
            jax.ShapeDtypeStruct(
                var.aval.shape,
                var.aval.dtype,
            )
        )
    new = jax.eval_shape(rule.update, shared, rows, state, rows)
    assert jax.tree.map(lambda s: s.dtype, new) == jax.tree.map(lambda s: s.dtype, (rows, state))


def test_constants_from_outside_are_shared():
    scale = jnp.arange(3.0)
    tx = optax.stateless(
        lambda updates, _: jax.tree.map(
            lambda u: u * scale if u.ndim == 2 else u,
            updates,
        )
    )
    rule = split_rows(tx, PARAMS, TABLES).rules["['emb']"]
    split = split_rows(tx, PARAMS, TABLES)
    dense, _ = split.params.split(PARAMS)
    _, _, shared = split.update(
        dense,
        split.init(dense),
        dense,
        [],
    )
    new, _ = rule.update(
        shared["['emb']"],
        np.zeros((2, 3)),
        [],
        np.ones((2, 3)),
    )
    assert new.tolist() == [[0, 1, 2], [0, 1, 2]]


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED = {
    "folds parameters": (optax.lamb(0.1), "table `['emb']`: expected an update that works row by row, got operation `reduce_sum`, which folds all rows of its parameters or states"),
    "factored state": (optax.adafactor(0.1, min_dim_size_to_factor=2), "table `['emb']`"),
    "noise by row": (optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(0)), optax.sgd(0.1),), "got operation `add`, which joins its rows with what `mul` made, float32[12,3]"),
    "across rows": (optax.stateless(lambda u, _: jax.tree.map(lambda x: x[::-1], u)), "got operation `rev`, which works across its rows, or is unknown here"),
    "running sum": (optax.stateless(lambda u, _: jax.tree.map(lambda x: jnp.cumsum(x, 0), u)), "got operation `cumsum`"),
    "normed along rows": (optax.stateless(lambda u, p: jax.tree.map(lambda x, y: x / jnp.sqrt((y**2).sum(0, keepdims=True)), u, p)), "got operation `reduce_sum`, which folds all rows of its parameters"),
    "two tables": (optax.stateless(lambda u, _: u | {"emb": u["emb"] + u["bias"].sum() * 0 + jnp.broadcast_to(u["emb"][:, :1], (12, 3))}), "got operation `slice`"),
    "rows by number": (optax.stateless(lambda u, _: u | {"emb": u["emb"] * jnp.arange(12.0)[:, None]}), "joins its rows with what `broadcast_in_dim` made"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_row_wise_is_refused(name):
    tx, text = REFUSED[name]
    with pytest.raises(TableError, match=re.escape(text)):
        split_rows(tx, PARAMS, ["['emb']"])


def test_a_state_that_is_not_by_row_is_named():
    def init(params):
        return {
            "square": jnp.zeros((len(params["emb"]),) * 2),
        }

    tx = optax.GradientTransformation(
        init,
        lambda updates, state, params=None: (updates, state),
    )
    with pytest.raises(
        TableError,
        match=re.escape("table `['emb']`, `['square']`: expected one entry per row, or none"),
    ):
        split_rows(tx, PARAMS, TABLES)


def test_a_shared_state_made_of_rows_is_named():
    def update(updates, state, params=None):
        return updates, {"last": updates["emb"]}

    tx = optax.GradientTransformation(
        lambda params: {"last": jnp.zeros((12, 3))},
        update,
    )
    with pytest.raises(
        TableError,
        match=re.escape(
            "`['last']`: expected one entry per row, or none, got a new value made of rows"
        ),
    ):
        split_rows(tx, PARAMS, TABLES)


@pytest.mark.parametrize(
    ("tx", "table", "error", "text"),
    [
        (
            optax.sgd(0.1),
            "emb",
            TableError,
            "table `emb`: expected one of ['bias'], ['emb'], ['w'], got no such leaf",
        ),
        (
            optax.sgd(0.1),
            "['n']",
            TableError,
            "table `['n']`: expected floats, [n_rows, *row], got int32[4]",
        ),
        (
            optax.sgd(0.1),
            "['s']",
            TableError,
            "table `['s']`: expected floats, [n_rows, *row], got float32[]",
        ),
        (0.1, "['emb']", SettingsError, "tx: expected an optax transform, got float"),
    ],
)
def test_mistakes(tx, table, error, text):
    if table == "emb":
        extra = {}
    else:
        extra = {
            "n": np.zeros(4, np.int32),
            "s": np.float32(1),
        }
    with pytest.raises(error, match=re.escape(text)):
        split_rows(tx, PARAMS | extra, [table])


def test_trees_that_still_have_their_tables():
    split = split_rows(optax.sgd(0.1), PARAMS, TABLES)
    with pytest.raises(
        TableError,
        match=re.escape("params: expected 1 leaves, and None in place of tables, got 3."),
    ):
        split.init(PARAMS)
    with pytest.raises(TableError, match="tree of leaves: expected structure"):
        split.params.split({"w": 1})
