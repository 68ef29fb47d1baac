"""An epoch's batches: the examples of each, their shapes, and the thread that packs the batches."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import DataError, GraphError
from ampjax.frontend.batches.epoch_batches import EpochBatches
from ampjax.frontend.instances.instance_columns import Columns
from ampjax.frontend.instances.instance_spec import parse

SPEC = {"x": "float32[n]", "chars": "int32[n,c]", "number": "int32[]"}
RNG = np.random.default_rng(0)
PARAMS = {
    "w": RNG.normal(size=3).astype(np.float32),
}


def example(number, n):
    sizes = RNG.integers(0, 4, n)
    n_chars = int(sizes.sum())
    chars = RNG.integers(0, 3, n_chars)
    return {
        "x": RNG.normal(size=n).astype(np.float32),
        "chars": amp.Ragged(
            chars.astype(np.int32),
            sizes,
        ),
        "number": np.int32(number),
    }


EXAMPLES = [example(i, n) for i, n in enumerate(RNG.integers(0, 30, 41))]


def model(p, s):
    amp.output("number", s["number"])

    def step(h, element):
        x, chars = element
        own = amp.sum(
            amp.map(
                lambda c: p["w"][c],
                chars,
            )
        )
        return jnp.tanh(h * p["w"][0] + x * own), None

    h, _ = amp.scan(
        step,
        0.1,
        (s["x"], s["chars"]),
    )
    return h**2


def packing_threads():
    found = []
    for thread in threading.enumerate():
        if thread.name.startswith("ampjax-pack"):
            found.append(thread)
    return found


def numbers_of(batched, batch):
    """The numbers of a batch's examples, in order."""
    told = batched.reports(PARAMS, batch)
    numbers = told.outputs["number"].tolist()
    found = []
    for own in numbers[: batch.n_examples]:
        found.append(int(own[0]))
    return found


def numbers_of_each(batched, batches):
    found = []
    for batch in batches:
        found.append(numbers_of(batched, batch))
    return found


def joined(lists):
    found = []
    for each in lists:
        found += each
    return found


def shapes_of(batch):
    return tuple(array.shape for array in batch.arrays)


def losses_one_by_one(examples):
    losses = []
    for each in examples:
        losses.append(float(model(PARAMS, each)))
    return losses


def weighted(batch, losses):
    return float(jnp.sum(losses * batch.weights))


def test_an_epoch_has_each_example_once_in_the_trainers_order():
    batched = amp.vmap(model, SPEC, params=PARAMS)
    batches = batched.batches(EXAMPLES, size=8, seed=3)
    assert len(batches) == 6 and repr(batches) == "EpochBatches(6 of 41 examples)"
    found = numbers_of_each(batched, batches)
    order = np.random.default_rng(3).permutation(41)
    assert joined(found) == order.tolist()
    assert numbers_of_each(batched, batches) == found
    plain = numbers_of_each(
        batched,
        batched.batches(EXAMPLES, 8, None),
    )
    assert joined(plain) == list(range(41))
    other = numbers_of_each(
        batched,
        batched.batches(EXAMPLES, 8, 4),
    )
    assert sorted(joined(other)) == list(range(41))
    assert other != found


def test_batches_by_size_have_neighbours_in_random_order():
    batched = amp.vmap(model, SPEC, params=PARAMS)
    n_elements = []
    for each in EXAMPLES:
        n_elements.append(1 + len(each["x"]) + len(each["chars"].values))
    elements = np.array(n_elements)
    means = []
    for batch in batched.batches(EXAMPLES, 8, 0, by_size=True):
        own = elements[numbers_of(batched, batch)]
        assert own.std() < elements.std() / 2
        means.append(own.mean())
    assert len(means) == 6
    assert means != sorted(means)
    small = numbers_of_each(
        batched,
        batched.batches(EXAMPLES, 8, None, by_size=True),
    )
    order = np.argsort(elements, kind="stable")
    assert joined(small) == order.tolist()


@pytest.mark.first_case
@pytest.mark.parametrize("by_size", [False, True])
def test_an_epoch_has_few_shapes_and_all_values(by_size):
    batched = amp.vmap(model, SPEC, params=PARAMS)
    shapes = set()
    want = sum(losses_one_by_one(EXAMPLES))
    for seed in range(3):
        total = 0.0
        for batch in batched.batches(EXAMPLES, 4, seed, by_size=by_size):
            assert batch.size == 4
            shapes.add(shapes_of(batch))
            total += weighted(batch, batched(PARAMS, batch))
        np.testing.assert_allclose(total, want, rtol=1e-5)
    assert len(shapes) <= 4


def test_a_small_data_set_has_one_shape_over_many_epochs():
    batched = amp.vmap(model, SPEC, params=PARAMS)
    shapes = set()
    for seed in range(20):
        for batch in batched.batches(EXAMPLES, size=16, seed=seed):  # the last one has 9 examples
            shapes.add(shapes_of(batch))
    assert len(shapes) == 1


def test_an_example_larger_than_any_that_was_drawn_has_a_shape_of_its_own():
    batched = amp.vmap(model, SPEC, params=PARAMS)
    rng = np.random.default_rng(5)
    few = []
    for i, n in enumerate(rng.integers(0, 4, 6)):
        few.append(example(i, int(n)))
    batched.batches(few, 2)
    few[0] = example(0, 40)
    losses = []
    for batch in batched.batches(few, 2, None):
        losses.append(batched(PARAMS, batch))
    np.testing.assert_allclose(
        np.concatenate(losses),
        losses_one_by_one(few),
        rtol=1e-5,
    )


def test_parts_are_of_equal_shapes_and_may_be_empty():
    batched = amp.vmap(model, SPEC, params=PARAMS)
    total = 0.0
    for batch in batched.batches(EXAMPLES, 6, parts=4):
        assert batch.weights.shape == (4, 6)
        losses = jax.vmap(batched, (None, 0))(PARAMS, batch)
        total += weighted(batch, losses)
    want = sum(losses_one_by_one(EXAMPLES))
    np.testing.assert_allclose(total, want, rtol=1e-5)
    n_examples = 0
    for batch in batched.batches(EXAMPLES[:26], 6, parts=4):
        n_examples += batch.n_examples
    assert n_examples == 26


def test_batches_are_equal_to_the_bit_each_time():
    batched = amp.vmap(model, SPEC, params=PARAMS)
    again = amp.vmap(model, SPEC, params=PARAMS)
    one = list(batched.batches(EXAMPLES, 8, 1))
    other = list(again.batches(EXAMPLES, 8, 1))
    same = jax.tree.map(np.array_equal, one, other)
    assert jax.tree.all(same)


def test_predictions_need_no_labels():
    def outputs(p, s):
        amp.output("y", s["x"] * p["w"][0])
        return (s["y"] - s["x"]) ** 2

    batched = amp.vmap(
        outputs,
        {"x": "float32[]", "y": "float32[]"},
        params=PARAMS,
    )
    examples = [{"x": float(i)} for i in range(5)]
    found = []
    for batch in batched.batches(examples, 2, None, labels=False):
        told = batched.reports(PARAMS, batch).outputs
        found += told["y"].tolist()
    want = PARAMS["w"][0] * np.arange(5)
    np.testing.assert_allclose(
        np.concatenate(found),
        want,
        rtol=1e-6,
    )


def test_a_thread_packs_one_ahead_and_ends_with_the_iterator():
    packed = []
    groups = np.arange(9).reshape(9, 1)
    batches = EpochBatches(
        groups,
        lambda numbers: packed.append(int(numbers[0])),
    )
    assert not packing_threads()
    iterator = iter(batches)
    next(iterator)
    assert packing_threads()
    iterator.close()
    assert not packing_threads() and packed == [0, 1]
    assert len(list(batches)) == 9 and not packing_threads()
    assert packed[2:] == list(range(9))


def test_errors_of_the_thread_come_to_the_caller():
    def pack(numbers):
        if numbers[0] == 2:
            raise DataError("pack", "a number below 2", "2", "Take another.")
        return int(numbers[0])

    found = []
    with pytest.raises(DataError, match="a number below 2"):
        for batch in EpochBatches(
            np.arange(4).reshape(4, 1),
            pack,
        ):
            found.append(batch)
    assert found == [0, 1] and not packing_threads()


def test_the_thread_computes_in_as_many_bits_as_the_caller():
    def squares(p, s):
        return p["w"] * amp.sum(s["x"] ** 2)

    with jax.enable_x64(True):
        batched = amp.vmap(
            squares,
            {"x": "float64[2]"},
            params={"w": np.float64(1)},
        )
        (batch,) = batched.batches(
            [{"x": np.array([1.0, 1 + 1e-12])}],
            1,
        )
        assert float(batched({"w": np.float64(1)}, batch)[0]) != 2.0


def test_columns_of_some_instances_are_theirs():
    leaves, _ = parse(SPEC)
    whole = Columns(leaves, EXAMPLES)
    numbers = np.array([7, 0, 7, 23])
    part = whole.some(numbers)
    want = Columns(leaves, [EXAMPLES[i] for i in numbers])
    for leaf in leaves:
        np.testing.assert_array_equal(
            part.leaf(leaf.path),
            want.leaf(leaf.path),
        )
    for dimensions in (("n",), ("n", "c")):
        np.testing.assert_array_equal(
            part.sizes(dimensions),
            want.sizes(dimensions),
        )
    np.testing.assert_array_equal(
        part.n_elements(),
        whole.n_elements()[numbers],
    )


def test_mistakes_have_errors():
    with pytest.raises(GraphError, match="batches: expected types of the parameters, got none"):
        amp.vmap(model, SPEC).batches(EXAMPLES)
    batched = amp.vmap(model, SPEC, params=PARAMS)
    with pytest.raises(DataError, match="at least one example, got none"):
        batched.batches([])
    with pytest.raises(DataError, match="size: expected a whole number from 1, got 0"):
        batched.batches(EXAMPLES, 0)
    with pytest.raises(DataError, match="seed: expected a whole number from 0, or None, got -1"):
        batched.batches(EXAMPLES, 4, -1)
    with pytest.raises(DataError, match="a number from -3 to 2, of one of 3 entries"):
        batched.batches(
            [
                {
                    **EXAMPLES[0],
                    "chars": [[3]],
                    "x": [1.0],
                }
            ]
        )
