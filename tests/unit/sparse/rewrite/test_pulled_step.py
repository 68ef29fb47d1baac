"""The step on pulled rows gives what the program gives, touches no table, and says what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.effort import left_to_nightly
from support.sparse_programs import IDS, PARAMS, SOFTMAX, SPARSE, D, T, V, W, end, sampled_softmax
from support.sparse_steps import arrays_with, assert_equal, quick_jit, reference, step_inside

from ampjax.errors import DataError, ParameterError, SettingsError
from ampjax.sparse.detection.detect import find_sparse
from ampjax.sparse.rewrite.pulled_step import MAX_SHAPES, rewrite
from ampjax.sparse.rewrite.unique_ids import pad_rows, pulled_size, unique_rows

pytestmark = pytest.mark.slow

PATH = "['T']"


def plain(p, ids):
    return end(p, p["T"][ids])


@pytest.fixture
def program():
    return rewrite(plain, PARAMS, IDS)


@pytest.mark.parametrize(
    "group",
    [0, *left_to_nightly(range(1, 8))],
)
def test_losses_aux_and_gradients_are_those_of_the_programs(group):
    cases = SPARSE[group::8]  # compiled together, which takes half the time
    programs = [rewrite(case.loss, case.params, case.batch) for case in cases]

    @quick_jit
    def both(inputs):
        result = []
        for case, program, args in zip(cases, programs, inputs, strict=True):
            result.append(beside(case, program, *args))
        return result

    for case, (got, want) in zip(
        cases,
        both([(case.params, case.batch) for case in cases]),
        strict=True,
    ):
        assert_equal(got, want, case.name)


def beside(case, program, params, batch):
    assert tuple(program.tables) == find_sparse(case.loss, case.params, case.batch).sparse
    has_aux = program.split_loss(batch).traced.has_aux
    return step_inside(program, params, batch), reference(case.loss, params, batch, has_aux)


@pytest.mark.nightly
def test_no_array_has_the_tables_rows():
    for case in SPARSE:
        program = rewrite(case.loss, case.params, case.batch)
        dense = program.split(case.params)[0]
        n = program.n_ids(case.batch)
        rows = {}
        for p, leaf in program.tables.items():
            rows[p] = jnp.zeros(
                (n[p], *leaf.shape[1:]),
                leaf.dtype,
            )
        own = [
            leaf for leaf in jax.tree.leaves(dense) if V in leaf.shape
        ]  # a dense table stays what it is
        if not own:
            assert (
                arrays_with(
                    V,
                    jax.make_jaxpr(program.value_and_grad)(dense, rows, case.batch),
                )
                == []
            ), case.name
        assert (
            arrays_with(
                V,
                jax.make_jaxpr(program.ids)(dense, case.batch),
            )
            == []
        ), case.name


def test_such_arrays_would_be_seen():
    jaxpr = jax.make_jaxpr(jax.value_and_grad(jax.checkpoint(lambda p: plain(p, IDS))))(PARAMS)
    assert {"gather", "scatter-add"} <= set(arrays_with(V, jaxpr))


def test_a_second_call_compiles_nothing(program):
    dense, tables = program.split(PARAMS)
    step = quick_jit(program.value_and_grad)
    rows = {PATH: tables[PATH][:8]}
    for shift in range(3):
        step(
            dense,
            rows,
            IDS + shift,
            {PATH: jnp.arange(6) % 4 + shift},
        )
    assert step._cache_size() == 1


# ---- ids -------------------------------------------------------------------------------------------------------------


def ids_of(loss, batch, params=PARAMS):
    program = rewrite(loss, params, batch)
    return program.ids(
        program.split(params)[0],
        batch,
    )[PATH].tolist()


def test_ids_come_in_the_order_of_the_reads():
    assert ids_of(lambda p, i: end(p, p["T"][i[1]]) + end(p, p["T"][i[0]]), IDS) == [
        96,
        0,
        41,
        3,
        5,
        5,
    ]


def test_ids_of_a_scan_come_step_by_step():
    def loss(p, ids):
        return jax.lax.scan(
            lambda h, i: (h + p["T"][i].sum(), None),
            0.0,
            ids.T,
        )[0]

    assert ids_of(loss, IDS) == [3, 96, 5, 0, 5, 41]


@pytest.mark.parametrize(
    ("mode", "ids"),
    [
        ("clip", [0, 96, 0, 3]),
        ("fill", [97, 97, 97, 3]),
        ("promise_in_bounds", [0, 96, 0, 3]),
    ],
)
def test_ids_outside_the_table(mode, ids):
    outside = jnp.array([-98 - V, 97, -V - 1, 3])
    assert (
        ids_of(
            lambda p, i: end(
                p,
                p["T"].at[i].get(mode=mode),
            ),
            outside,
        )
        == ids
    )


def test_ids_of_a_branch_that_is_not_taken_read_nothing():
    def loss(p, i):
        return jax.lax.cond(
            i[0, 0] > 50,
            lambda: end(p, p["T"][i[0]]),
            lambda: end(p, p["T"][i[1, 1]]),
        )

    assert sorted(ids_of(loss, IDS)) == [0, V, V, V]


def test_the_program_of_ids_computes_nothing_else():
    def loss(p, ids):
        def step(h, i):
            return jnp.tanh(h @ p["W"] + p["T"][i]), None

        return end(
            p,
            jax.lax.scan(step, jnp.zeros((2, D)), ids.T)[0],
        )

    program = rewrite(loss, PARAMS, IDS)
    text = str(
        jax.make_jaxpr(program.ids)(
            program.split(PARAMS)[0],
            IDS,
        )
    )
    assert "tanh" not in text and "dot_general" not in text


def test_a_callback_runs_in_the_step_only():
    seen = []

    def loss(p, ids):
        jax.debug.callback(
            lambda i: seen.append(i.tolist()),
            ids[0],
        )
        return plain(p, ids)

    program = rewrite(loss, PARAMS, IDS)
    dense, tables = program.split(PARAMS)
    ids = jax.jit(program.ids)(dense, IDS)
    jax.effects_barrier()
    assert seen == []
    jax.jit(program.loss)(
        dense,
        {PATH: tables[PATH][ids[PATH]]},
        IDS,
    )
    jax.effects_barrier()
    assert seen == [[3, 5, 5]]


# ---- forms of the step -----------------------------------------------------------------------------------------------


def test_rows_one_by_one_have_gradients_of_their_own(program):
    dense, tables = program.split(PARAMS)
    _, (_, grads) = quick_jit(program.value_and_grad)(
        dense,
        {PATH: tables[PATH][IDS.ravel()]},
        IDS,
    )
    whole = np.zeros((V, D), np.float32)
    np.add.at(whole, IDS.ravel(), grads[PATH])
    assert_equal(
        whole,
        quick_jit(jax.grad(plain))(PARAMS, IDS)["T"],
    )


def test_rows_may_travel_in_half_precision(program):
    dense, tables = program.split(PARAMS)
    half = tables[PATH][IDS.ravel()].astype(jnp.bfloat16)
    value, (_, grads) = quick_jit(program.value_and_grad)(
        dense,
        {PATH: half},
        IDS,
    )
    assert value.dtype == jnp.float32
    assert grads[PATH].dtype == jnp.bfloat16
    rounded = {
        "T": PARAMS["T"].astype(jnp.bfloat16).astype(jnp.float32),
        "W": W,
    }
    assert_equal(value, plain(rounded, IDS))


def test_other_sizes_of_batch_are_traced_when_they_come(program):
    dense, tables = program.split(PARAMS)
    for size in (1, 4):
        ids = np.arange(2 * size).reshape(2, size)
        assert program.n_ids(ids) == {PATH: 2 * size}
        loss = quick_jit(program.loss)(
            dense,
            {PATH: np.asarray(tables[PATH])[ids.ravel()]},
            ids,
        )
        assert_equal(loss, quick_jit(plain)(PARAMS, ids))


def test_the_traces_that_are_kept_are_bounded(program):
    for size in range(MAX_SHAPES + 5):
        program.split_loss(
            jax.ShapeDtypeStruct(
                (2, size + 1),
                jnp.int32,
            )
        )
    assert len(program._splits) == MAX_SHAPES


def test_some_of_the_sparse_leaves_may_be_left_dense():
    program = rewrite(sampled_softmax_loss, SOFTMAX, IDS, sparse=["['U']"])
    assert list(program.tables) == ["['U']"]
    both = quick_jit(
        lambda p, b: (
            step_inside(program, p, b),
            reference(sampled_softmax_loss, p, b, True),
        )
    )
    assert_equal(*both(SOFTMAX, IDS))


def sampled_softmax_loss(p, ids):
    return sampled_softmax(p, ids, jax.random.key(1))


def test_a_program_without_tables_is_the_program():
    program = rewrite(
        lambda p, ids: jnp.sum(p["W"]) * ids.sum(),
        {"W": W},
        IDS,
    )
    assert program.ids({"W": W}, IDS) == {}
    value, (grads, rows) = quick_jit(program.value_and_grad)(
        {"W": W},
        {},
        IDS,
    )
    assert rows == {}
    assert_equal(
        (value, grads["W"]),
        (
            jnp.sum(W) * IDS.sum(),
            jnp.full(
                (D, D),
                IDS.sum(),
                jnp.float32,
            ),
        ),
    )


def test_split_and_join_are_inverses(program):
    dense, tables = program.split(PARAMS)
    assert dense["T"] is None and list(tables) == [PATH]
    joined = program.join(dense, tables)
    assert all(joined[name] is PARAMS[name] for name in PARAMS)


def test_replicas_under_pmap(program):
    dense, tables = program.split(PARAMS)
    batches = jnp.stack([IDS, IDS + 1])
    rows = {
        PATH: jnp.stack([tables[PATH][batch.ravel()] for batch in batches]),
    }
    step = jax.pmap(
        program.value_and_grad,
        in_axes=(None, 0, 0),
        devices=jax.devices()[:2],
    )
    values, _ = step(dense, rows, batches)
    assert_equal(
        values,
        jnp.stack([plain(PARAMS, batch) for batch in batches]),
    )


# ---- duplicates ------------------------------------------------------------------------------------------------------


def test_unique_rows_of_nothing():
    rows = unique_rows(np.array([], np.int32), 5)
    assert rows.ids.tolist() == rows.inverse.tolist() == []


@pytest.mark.parametrize("wrong", [-1, 6])
def test_unique_rows_checks_its_ids(wrong):
    with pytest.raises(
        SettingsError, match=rf"row ids: expected numbers in \[0, 5\], got {wrong}\. Take them from"
    ):
        unique_rows(np.array([1, wrong, 5]), 5)


def test_padding_wastes_at_most_a_third():
    sizes = [pulled_size(k) for k in range(9, 5000)]
    assert all(k <= size < 1.5 * k for k, size in zip(range(9, 5000), sizes, strict=True))
    assert len(set(sizes)) <= 20
    assert pad_rows(np.ones((2, 3), np.float32), 4).tolist() == [[1] * 3, [1] * 3, [0] * 3, [0] * 3]


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_an_unknown_path():
    with pytest.raises(
        ParameterError,
        match=r"sparse: expected paths among .*, got `T`\. Use a path of the parameters",
    ):
        rewrite(plain, PARAMS, IDS, sparse=["T"])


def test_a_dense_leaf_as_sparse():
    with pytest.raises(
        ParameterError,
        match=r"sparse, `\['W'\]`: expected a sparse leaf, got a dense one \(.*dot_general",
    ):
        rewrite(plain, PARAMS, IDS, sparse=["['W']"])


def test_a_loss_that_is_no_scalar():
    with pytest.raises(SettingsError, match=r"expected a float scalar"):
        rewrite(lambda p, ids: p["T"][ids], PARAMS, IDS)


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ({"ids": IDS}, r"batch: expected the structure PyTreeDef\(\*\)"),
        (IDS.astype(jnp.float32), r"the dtype and rank of int32\[2,3\].*got float32\[2,3\]"),
        (IDS[0], r"the dtype and rank of int32\[2,3\].*got int32\[3\]"),
        (3, r"got int 3"),
    ],
    ids=["structure", "dtype", "rank", "number"],
)
def test_a_batch_that_does_not_fit(program, batch, got):
    with pytest.raises(DataError, match=got):
        program.ids(program.split(PARAMS)[0], batch)


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        (PARAMS, r"parameter `\['T'\]`: expected none, as the leaf is sparse, got float32\[97,4\]"),
        (
            {"T": None, "W": W[:2]},
            r"parameter `\['W'\]`: expected float32\[4,4\], got float32\[2,4\]",
        ),
        ({"T": None, "W": None}, r"parameter `\['W'\]`: expected float32\[4,4\], got none"),
        ({"T": None, "W": W.astype(jnp.bfloat16)}, r"expected float32\[4,4\], got bfloat16\[4,4\]"),
        ({"W": W}, r"parameters: expected the structure .*, None at sparse leaves, got"),
    ],
    ids=["table", "shape", "nothing", "dtype", "structure"],
)
def test_dense_parameters_that_do_not_fit(program, dense, message):
    with pytest.raises(ParameterError, match=message):
        program.value_and_grad(dense, {PATH: T[:6]}, IDS)


@pytest.mark.parametrize(
    ("rows", "got"),
    [
        ({}, "none"),
        ({PATH: T[:6, :2]}, r"float32\[6,2\]"),
        ({PATH: T[0]}, r"float32\[4\]"),
    ],
    ids=["missing", "too narrow", "one row"],
)
def test_rows_that_do_not_fit(program, rows, got):
    with pytest.raises(
        ParameterError,
        match=rf"rows of `\['T'\]`: expected shape \[m, 4\], got {got}\. Pull the rows",
    ):
        program.loss({"T": None, "W": W}, rows, IDS)


@pytest.mark.parametrize(
    "inverse",
    [{}, {PATH: np.arange(5)}],
    ids=["missing", "too short"],
)
def test_positions_that_do_not_fit(program, inverse):
    with pytest.raises(
        DataError, match=r"inverse of `\['T'\]`: expected shape \(6,\), a position for each id, got"
    ):
        program.loss(
            {"T": None, "W": W},
            {PATH: T[:6]},
            IDS,
            inverse,
        )


def test_join_without_a_table(program):
    with pytest.raises(ParameterError, match=r"join: expected a table for `\['T'\]`, got \[\]\."):
        program.join({"T": None, "W": W}, {})


def test_a_leaf_that_is_dense_for_another_size_of_batch():
    def loss(p, ids):
        return end(
            p,
            p["T"][ids] if ids.shape[0] == 2 else ids.sum() * p["T"][None, :],
        )

    program = rewrite(loss, PARAMS, IDS)
    with pytest.raises(
        ParameterError, match=r"sparse, `\['T'\]`: expected a sparse leaf, got a dense one"
    ):
        program.n_ids(IDS[:1])
