"""Leaves that are read in passes over all examples, beside the same leaves read example by example."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.effort import examples

import ampjax as amp
from ampjax.errors import DataError
from ampjax.frontend.instances import instance_spec
from ampjax.frontend.instances.instance_spec import parse
from ampjax.frontend.instances.plain_leaves import plain_rows


def read(leaf, instances):
    """A leaf's rows and sizes, or the text of the error."""
    try:
        rows, sizes = leaf.read(instances)
    except DataError as error:
        return str(error)
    return rows.dtype, rows.shape, rows.tobytes(), [(s.dtype, s.tolist()) for s in sizes]


def require_same(spec, instances):
    """The number of leaves that the quick way reads, after a check of each leaf both ways."""
    leaves, _ = parse(spec)
    n_plain = 0
    for leaf in leaves:
        given = (instances, leaf.keys, len(leaf.dimensions), leaf.shape)
        n_plain += plain_rows(*given) is not None
        quick = read(leaf, instances)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(instance_spec, "plain_rows", lambda *_: None)
            assert quick == read(leaf, instances)
    return n_plain


def in_form(rng, rows, form):
    """A sequence of numbers as an array or a list."""
    if form == "array":
        return np.array(rows, np.int32)
    return [np.int16(row) for row in rows] if form == "scalars" else list(rows)


@hypothesis_settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["array", "list", "scalars"]),
)
def test_both_ways_read_the_same(seed, form):
    rng = np.random.default_rng(seed)
    instances = []
    for _ in range(int(rng.integers(1, 5))):
        lengths = rng.integers(0, 4, rng.integers(0, 4))
        words = []
        for n in lengths:
            words.append(
                in_form(
                    rng,
                    rng.integers(0, 9, n).tolist(),
                    form,
                )
            )
        nested = amp.Ragged.of(words, np.int32) if seed % 2 and words else words
        one = {
            "words": in_form(
                rng,
                rng.integers(0, 9, len(words)).tolist(),
                form,
            ),
            "chars": nested,
            "x": rng.normal(size=(len(words), 3)).astype(np.float32),
            "size": len(words),
            "scale": float(len(words)),
            "row": np.arange(2.0),
        }
        instances.append(one)
    spec = {
        "words": "int32[w]",
        "chars": "int32[w,c]",
        "x": "float32[w,3]",
        "size": "int32[]",
        "scale": "float32[]",
        "row": "float32[2]",
    }
    assert require_same(spec, instances) >= 3


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("int32[n]", [[1, 2], np.array([3], np.int32)]),  # a list and an array
        ("int32[n]", [[1, True], [2]]),
        (
            "int32[n]",
            [
                np.zeros(
                    2,
                    np.int64,
                ),
                np.zeros(1, np.int32),
            ],
        ),
        ("int32[n]", [np.zeros(0), np.zeros(0)]),  # no row that could tell the dtype
        (
            "int32[n]",
            [
                np.zeros(
                    0,
                    np.float64,
                ),
                np.ones(2, np.int32),
            ],
        ),
        (
            "int32[n]",
            [
                np.zeros(
                    (2, 1),
                    np.int32,
                ),
                np.zeros(1, np.int32),
            ],
        ),
        ("int32[n]", [np.ones(2, np.int32), np.array(1)]),
        ("int32[n]", [[1.5], [2.0]]),
        ("int32[n]", [np.ma.array([1, 2]), np.ma.array([1])]),
        ("int32[]", [1, 2**40]),
        ("uint32[]", [1, 2**70]),
        ("int32[]", [np.array(1), np.array(2)]),
        ("int32[]", [1, [2]]),
        ("float32[2]", [[1.0, 2.0], [3.0, 4.0]]),
        ("float32[2]", [np.ones(2), np.ones(3)]),
        ("float32[n]", [jax.numpy.ones(2), jax.numpy.ones(3)]),
        ("float32[n,m]", [amp.Ragged.of([[1.0], []]), [[2.0]]]),
        (
            "float32[n,m]",
            [
                amp.Ragged(
                    np.ones((3, 2)),
                    np.array([1, 2]),
                )
            ],
        ),
        ("int32[n]", ["ab", "c"]),
    ],
)
def test_what_is_unusual_or_wrong_is_left_to_the_other_way(spec, values):
    require_same({"x": spec}, [{"x": value} for value in values])


def test_examples_that_lack_a_leaf_are_named():
    leaves, _ = parse({"x": "int32[n]"})
    with pytest.raises(DataError, match="instance 1"):
        leaves[0].read([{"x": [1]}, {"y": [1]}])


def test_lists_of_structures_are_columns():
    spec = {"tree": {"word": "int32[v]"}}
    instances = [{"tree": [{"word": 1}, {"word": 2}]}, {"tree": [{"word": 3}]}]
    assert require_same(spec, instances) == 0


def test_trees_and_edges_are_read_in_passes():
    spec = {"tree": amp.Tree("int32[v]", "int32[v]", "int32[v]"), "n": "float32[u,1]"}
    spec["edges"] = amp.Edges("u", kinds=2)
    tree = amp.Tree.of(((1, 2), 3))
    edges = amp.Edges(
        np.array([0], np.int32),
        np.array([1], np.int32),
        None,
    )
    instance = {
        "tree": tree,
        "n": np.ones((2, 1), np.float32),
        "edges": edges,
    }
    # Kinds are left out, which the other way reads as zeros.
    assert require_same(spec, [instance, instance]) == 6
