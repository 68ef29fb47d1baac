"""Data sets as columns: the same messages as from instances one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import DataError
from ampjax.frontend.deduction.numpy_equations import numpy_results
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.instances.chosen_messages import RegionMessages, SpaceMessages
from ampjax.frontend.instances.instance_columns import Columns
from experiments.data import list_reduction, permutation, sst, wikiner

SPEC = {"words": "int32[w]", "chars": "int32[w,c]", "x": "float32[3]", "label": "int32[]"}


def model(p, s):
    def word(number, chars):
        return amp.cond(
            number < 0,
            lambda: amp.sum(
                amp.map(
                    lambda c: p["c"][c],
                    chars,
                )
            ),
            lambda: p["w"][number],
        )

    return jnp.sum(
        amp.sum(
            amp.map(
                word,
                s["words"],
                s["chars"],
            )
        )
        * s["x"]
    ) * (s["label"] + 1)


@pytest.fixture(scope="module")
def compiled():
    return amp.compile(
        model,
        {
            "c": jnp.ones((5, 3)),
            "w": jnp.ones((5, 3)),
        },
        SPEC,
    )


def stacked():
    chars = amp.Ragged(
        amp.Ragged(
            np.array([1, 2, 3, 4], np.int32),
            np.array([2, 0, 1, 1]),
        ),
        np.array([3, 0, 1]),
    )
    words = amp.Ragged(
        np.array(
            [-1, 2, -1, -1],
            np.int32,
        ),
        np.array([3, 0, 1]),
    )
    return amp.Stacked(
        {
            "words": words,
            "chars": chars,
            "x": np.eye(3, dtype=np.float32),
            "label": np.arange(3),
        }
    )


def test_columns_are_as_their_instances_one_by_one(compiled):
    data = stacked()
    ids = np.array([2, 0, 1, 0])
    whole = compiled.data(data).gather(ids)
    single = compiled.data([data[i] for i in range(3)]).gather(ids)
    assert set(whole) == set(single)
    for name, messages in whole.items():
        assert np.array_equal(messages.payload, single[name].payload), name
        assert np.array_equal(messages.instance, single[name].instance), name
        assert all(
            np.array_equal(messages.fields[f], single[name].fields[f]) for f in messages.fields
        )


def test_nobody_writes_into_the_users_own_columns(compiled):
    data = stacked()
    (payload,) = (
        messages.payload
        for messages in compiled.data(data).gather(np.array([1])).values()
        if np.shares_memory(messages.payload, data.columns["x"])
    )
    assert not payload.flags.writeable and data.columns["x"].flags.writeable


def test_told_fields_of_all_rows():
    columns = Columns([], [{}, {}])
    space = IndexSpace()
    told = RegionMessages(
        Region(space),
        {
            "next": Column(
                space,
                lambda data: np.array([3, 4]),
            )
        },
        columns,
    )
    assert not told.is_whole
    messages = told.of(
        SpaceMessages(
            space,
            columns,
        ).of_instances(np.array([1, 0]))
    )
    assert messages.rows.tolist() == [1, 0]
    assert messages.fields["next"].tolist() == [4, 3]


def test_a_part_of_the_columns_is_a_data_set(compiled):
    part = stacked()[1:]
    assert len(part) == 2
    assert part[1]["words"].tolist() == [-1]
    assert [len(row) for row in part[1]["chars"]] == [1]
    assert float(compiled.loss(compiled.initial_params, part)) == 3 * 1


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"words": np.zeros(2, np.int32)}, "sequences, 1 deep"),
        ({"x": np.zeros((3, 2), np.float32)}, r"rows of shape \(3,\)"),
        (
            {
                "label": amp.Ragged.of(
                    [
                        [1],
                        [2],
                        [3],
                    ]
                )
            },
            "Ragged",
        ),
    ],
)
def test_columns_that_do_not_fit(compiled, columns, told):
    with pytest.raises(DataError, match=told):
        compiled.data(
            amp.Stacked(
                dict(stacked().columns) | columns if "words" not in columns else _of_two(columns)
            )
        )


def _of_two(columns):
    return (
        jax.tree.map(
            lambda c: c[:2],
            stacked().columns,
            is_leaf=lambda c: isinstance(c, amp.Ragged),
        )
        | columns
    )


def test_columns_of_different_lengths_are_no_data_set():
    with pytest.raises(DataError, match="lengths"):
        amp.Stacked(
            {
                "a": np.zeros(2),
                "b": np.zeros(3),
            }
        )


def test_data_sets_give_their_own_instances():
    lists = list_reduction.generate(3)
    trees = sst.synthetic(2, 1)[0]
    sentences = wikiner.synthetic(3, 1)[0]
    rows = permutation.generate(2, 3)
    first = list_reduction.plain(lists)[1]
    assert first["tokens"].tolist() == lists.tokens[1, : lists.lengths[1]].tolist()
    assert first["label"] == lists.labels[1]
    bucket = list_reduction.Buckets(lists, 2, 4).plain()[0]
    assert bucket["tokens"].shape[1:] == (2,)
    assert bucket["label"].shape == (2,)
    tree = sst.plain(trees)[1]["tree"]
    assert len(tree.children()) == np.diff(trees.ptr)[1]
    sentence = wikiner.plain(sentences)[2]
    assert [len(c) > 0 for c in sentence["chars"]] == (sentence["words"] < 0).tolist()
    assert sorted(permutation.plain(rows)[0]["order"].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: jnp.clip(a, 0, 3),
        lambda a, b: jnp.where(a < b, a, -b),
        lambda a, b: (a <= b) & (a != 2) | ~(b > a),
        lambda a, b: jnp.minimum(a, b) * jnp.maximum(a, 2) + (a - b),
        lambda a, b: (a >= 0).astype(jnp.float32),
        lambda a, b: jax.lax.select_n(
            jnp.abs(a) % 3,
            a,
            b,
            a + b,
        ),
        lambda a, b: jax.lax.select_n(a, a, b, a + b),  # the nearest case, where there is none
        lambda a, b: jax.lax.select_n(
            jnp.abs(a) * 14,
            *(b + i for i in range(70)),
        ),
    ],
)
def test_numpy_does_as_jax_does(function):
    rng = np.random.default_rng(0)
    a, b = rng.integers(
        -5,
        6,
        (2, 50),
    ).astype(np.int32)
    jaxpr = jax.make_jaxpr(function)(a[0], b[0])
    known = dict(
        zip(
            jaxpr.jaxpr.invars,
            (a, b),
            strict=True,
        )
    )
    done = 0

    def run(jaxpr, known):
        nonlocal done

        def read(atom):
            return atom.val if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            values = [read(atom) for atom in equation.invars]
            if equation.primitive.name in ("jit", "pjit"):
                inner = equation.params["jaxpr"].jaxpr
                results = run(
                    inner,
                    dict(zip(inner.invars, values, strict=True)),
                )
            else:
                rows = [np.broadcast_to(value, 50) for value in values]
                wanted = jax.vmap(lambda *v, e=equation: e.primitive.bind(*v, **e.params))(*rows)
                got = numpy_results(equation, rows)
                results = [wanted] if got is None else got
                done += got is not None
                assert np.array_equal(results[0], wanted) and results[0].dtype == wanted.dtype, (
                    equation
                )
            known |= dict(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    run(jaxpr.jaxpr, known)
    assert done
