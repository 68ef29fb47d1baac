"""The work of packing: none for rows that nobody reads, none twice."""

import tracemalloc

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.frontend.batches import packed_data
from ampjax.frontend.batches.batch_shapes import BatchShapes
from ampjax.frontend.batches.packed_data import PackedData
from ampjax.frontend.instances.instance_columns import Columns
from ampjax.train.grouping import in_batches


def neighbours(params, example):
    """For each element of a sequence, an element of another one."""

    def one(at):
        return amp.take(example["x"], at) * params

    return amp.sum(amp.map(one, example["at"]))


def test_what_is_taken_is_found_without_a_list_of_all_copies():
    n = 3000
    rng = np.random.default_rng(0)
    batched = amp.vmap(
        neighbours,
        {"x": "float32[n]", "at": "int32[m]"},
        params=1.0,
    )
    x = rng.normal(size=n).astype(np.float32)
    at = rng.integers(-n, n, n).astype(np.int32)
    example = {"x": x, "at": at}
    batched.pack([example])
    tracemalloc.start()
    try:
        batch = batched.pack(
            [
                example,
                {
                    "x": x[:5],
                    "at": at[:0],
                },
            ]
        )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < n * n  # a byte for each copy; indices would be eight
    found = batched(1.0, batch)
    assert np.allclose(
        found,
        [x[at].sum(), 0],
        rtol=1e-4,
    )  # sums of thousands in another order


def rounds(params, example):
    """Several rounds of messages over the same edges."""
    edges = example["edges"]
    h = example["x"]
    for weight in params:
        sent = amp.propagate(
            [
                lambda row, w=weight: row * w,
                lambda row, w=weight: row - w,
            ],
            edges,
            h,
        )
        h = amp.map(lambda own, new: own + new, h, sent)
    return amp.sum(h)


def test_rounds_over_the_same_edges_share_arrays():
    spec = {"x": "float32[v]", "edges": amp.Edges("v", kinds=2)}
    edges = amp.Edges(
        np.array([0, 1, 2, 0], np.int32),
        np.array([1, 2, 0, 2], np.int32),
        np.array([0, 1, 0, 1], np.int32),
    )
    example = {
        "x": np.array([1.0, 2.0, 3.0], np.float32),
        "edges": edges,
    }

    def n_arrays(n_rounds):
        batched = amp.vmap(rounds, spec, params=jnp.ones(n_rounds))
        batch = batched.pack([example])
        assert np.allclose(
            batched(jnp.ones(n_rounds), batch),
            by_hand(n_rounds),
        )
        return len(batch.arrays)

    def by_hand(n_rounds):
        h = example["x"]
        for _ in range(n_rounds):
            sent = np.where(
                edges.kinds == 0,
                h[edges.senders],
                h[edges.senders] - 1,
            )
            h = h + np.bincount(edges.receivers, sent, 3)
        return [h.sum()]

    assert n_arrays(4) == n_arrays(2)


def sum_of_squares(params, example):
    return (
        amp.sum(
            amp.map(
                lambda x: x**2,
                example["x"],
            )
        )
        * params
    )


def arrays_of(batches):
    """The bytes of all arrays of some batches."""
    found = []
    for batch in batches:
        found.append([np.asarray(array).tobytes() for array in (batch.weights, *batch.arrays)])
    return found


def counted_packs(monkeypatch):
    """A list that gets an entry for each batch that is packed."""
    packed = []
    pack = BatchShapes.pack

    def counted(shapes, columns, groups):
        packed.extend(groups)
        return pack(shapes, columns, groups)

    monkeypatch.setattr(BatchShapes, "pack", counted)
    return packed


def test_batches_that_come_again_are_kept(monkeypatch):
    examples = []
    for n in (3, 1, 4, 1, 5):
        examples.append({"x": np.arange(n, dtype=np.float32)})
    batched = amp.vmap(sum_of_squares, {"x": "float32[n]"}, params=1.0)
    batches = batched.batches(examples, 2, None)
    packed = counted_packs(monkeypatch)
    first = arrays_of(batches)
    assert arrays_of(batches) == first and len(packed) == 6
    assert arrays_of(batches) == first and len(packed) == 6
    kept = next(iter(batches))
    assert not kept.arrays[0].flags.writeable  # others may have the same arrays


@pytest.mark.parametrize("parts", [None, 3])
def test_batches_are_packed_together_as_one_by_one(parts):
    """Batches of several shapes, some too large for the shape of their number of elements, and a short one at the end."""
    rng = np.random.default_rng(0)
    examples = []
    for n in [
        *rng.integers(0, 4, 60),
        *rng.integers(0, 9, 40),
        40,
        41,
        42,
    ]:
        examples.append(
            {
                "x": np.arange(n, dtype=np.float32),
                "y": np.arange(50.0 - n),
            }
        )
    spec = {"x": "float32[n]", "y": "float32[m]"}

    def loss(params, example):
        last, _ = amp.scan(
            lambda h, x: (h * params + x, None),
            0.0,
            example["x"],
        )
        return last + sum_of_squares(params, {"x": example["y"]})

    batched = amp.vmap(loss, spec, params=1.0)
    columns = Columns(batched._leaves, examples)
    shapes = BatchShapes(batched._last, 4, parts)
    groups = in_batches(
        np.arange(len(examples)),
        4 * (parts or 1),
    )
    shapes.find(columns, groups[::3], columns.n_elements())
    packed = PackedData(columns, shapes)
    together = arrays_of(packed.batches(groups))
    assert together == arrays_of(map(packed.batch, groups))
    assert (
        len({tuple(map(len, own)) for own in together}) > 1
    )  # those that are too large have another shape


def test_a_few_batches_without_room_leave_others_packed_together(monkeypatch):
    examples = [{"x": np.ones(3, np.float32)} for _ in range(320)]
    for number in range(20, 320, 40):
        examples[number] = {"x": np.ones(60, np.float32)}
    batched = amp.vmap(sum_of_squares, {"x": "float32[n]"}, params=1.0)
    columns = Columns(batched._leaves, examples)
    groups = in_batches(np.arange(len(examples)), 2)
    program = batched._last
    shapes = BatchShapes(program, 2)
    shapes.find(columns, groups[:5], columns.n_elements())
    runs = []
    pack = program.pack_in
    monkeypatch.setattr(program, "pack_in", lambda *args: runs.append(args) or pack(*args))
    shapes.pack(columns, groups)
    assert len(runs) < 0.7 * len(groups)


def test_only_so_many_bytes_are_kept(monkeypatch):
    monkeypatch.setattr(packed_data, "KEPT_BYTES", 0)
    examples = []
    for n in (3, 1):
        examples.append({"x": np.arange(n, dtype=np.float32)})
    batched = amp.vmap(sum_of_squares, {"x": "float32[n]"}, params=1.0)
    batches = batched.batches(examples, 2, None)
    each = [next(iter(batches)) for _ in range(3)]
    assert len({id(batch) for batch in each}) == 3


def test_a_trainer_packs_what_it_evaluates_on_twice_at_most(monkeypatch):
    examples = []
    for n in (3, 1, 4, 1):
        examples.append({"x": np.ones(n, np.float32)})
    model = lambda params, example: sum_of_squares(params["w"], example)
    compiled = amp.compile(
        model,
        {"w": jnp.ones(())},
        {"x": "float32[n]"},
    )
    trainer = amp.Trainer(
        compiled.graph,
        optax.sgd(0.0),
        mode="batch",
        max_active_keys=2,
    )
    data = compiled.data(examples)
    packed = counted_packs(monkeypatch)
    losses = [trainer.evaluate(data)["loss"] for _ in range(4)]
    assert len({*losses}) == 1
    groups = {numbers.tobytes() for numbers in packed}
    assert 0 < len(packed) <= 2 * len(groups)
