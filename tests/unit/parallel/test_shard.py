import jax
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import SettingsError
from ampjax.parallel.shard import split_batch


class Dataset:
    """What grain's MapDataset offers: a length, elements, and slices that are data sets again."""

    def __init__(self, elements):
        self.elements = list(elements)

    def __len__(self):
        return len(self.elements)

    def slice(self, span):
        return Dataset(self.elements[span])

    def __getitem__(self, place):
        return self.slice(place) if isinstance(place, slice) else self.elements[place]


def test_arrays_are_dealt_by_row_and_what_is_left_over_is_dropped():
    parts = px.shard(
        {
            "x": np.arange(9),
            "y": np.arange(18).reshape(9, 2),
        }
    )
    assert [part["x"].tolist() for part in parts.batches] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert all((part["y"][:, 0] == 2 * part["x"]).all() for part in parts.batches)


def generated(elements):
    yield from elements


@pytest.mark.filterwarnings("error")  # JAX warns that it will refuse generators as leaves
@pytest.mark.parametrize("kind", [list, Dataset, iter, generated])
def test_elements_are_dealt_in_turn(kind):
    assert [parts.batches for parts in px.shard(kind(range(9)), count=2)] == [
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    ]


def test_a_loader_can_be_iterated_again():
    class Loader:
        def __iter__(self):
            return iter("abcd")

    shards = px.shard(Loader(), count=2)
    assert [p.batches for p in shards] == [p.batches for p in shards] == [("a", "b"), ("c", "d")]


def test_one_replicas_part():
    assert px.shard(np.arange(6), index=1, count=3).tolist() == [1, 4]
    assert list(
        px.shard(
            iter(range(7)),
            index=1,
            count=3,
        )
    ) == [1, 4]
    assert list(
        px.shard(
            Dataset(range(7)),
            index=2,
            count=3,
        )
    ) == [2, 5]


def test_a_joined_batch_is_cut_and_scalars_go_to_all():
    cut = split_batch(
        {"x": np.arange(4), "rate": np.float32(2.0)},
        2,
    )
    assert [part["x"].tolist() for part in cut] == [[0, 1], [2, 3]]
    assert [float(part["rate"]) for part in cut] == [2.0, 2.0]


def test_numbers_of_python_become_arrays():
    for parts in (
        split_batch({"x": np.arange(4), "rate": 2.0}, 2),
        split_batch(
            px.Parts(({"rate": 2.0},) * 2),
            2,
        ),
    ):
        assert [(part["rate"].shape, part["rate"].dtype.kind) for part in parts] == [((), "f")] * 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: split_batch(np.arange(5), 2),
            "a leading size above 0 that 2 replicas divide, got 5",
        ),
        (
            lambda: split_batch(
                {"a": np.arange(4), "b": np.arange(2)},
                2,
            ),
            "leaf `b`: expected the leading size of `a`, 4",
        ),
        (
            lambda: split_batch(
                px.Parts((1, 2)),
                3,
            ),
            "3 parts, one for each replica",
        ),
        (
            lambda: split_batch(
                px.Parts(
                    (
                        np.zeros(2),
                        np.zeros(3),
                    )
                ),
                2,
            ),
            "part 1: expected the shapes and dtypes of",
        ),
        (
            lambda: split_batch(
                px.Parts(
                    (
                        np.zeros(2),
                        np.zeros(2, int),
                    )
                ),
                2,
            ),
            "of part 0, .*float32.* got .*int32",
        ),
        (lambda: px.shard(np.arange(3)), "at least 4 rows"),
        (lambda: px.shard(3), "arrays, a data set or an iterable, got int"),
        (
            lambda: px.shard(
                [1, 2],
                index=2,
                count=2,
            ),
            "0 <= index < count",
        ),
        (
            lambda: px.shard([1, 2], index=-1, count=2),
            "`index`: expected an integer of at least 0, got -1",
        ),
        (
            lambda: px.shard([1, 2], index=0.5, count=2),
            "`index`: expected an integer of at least 0, got 0.5",
        ),
        (lambda: px.shard([1, 2], count=0), "`count`: expected an integer of at least 1, got 0"),
        (
            lambda: px.shard([1, 2], count=2.0),
            "`count`: expected an integer of at least 1, got 2.0",
        ),
    ],
)
def test_mistakes(call, text):
    with pytest.raises(SettingsError, match=text):
        call()


@pytest.mark.slow
def test_a_next_batch_that_can_not_be_cut_stops_no_step():
    two = Resources(
        tuple(
            Machine(name, (device,))
            for name, device in zip("ab", jax.local_devices(), strict=False)
        )
    )
    runner = px.get_runner(
        lambda p, batch: (p["w"] * batch["x"]).mean(),
        {"w": np.ones(1)},
        optax.sgd(0.1),
        two,
    )
    runner.run(
        {"x": np.ones(2)},
        following={"x": np.ones(3)},
    )
    assert runner.steps == 1
    with pytest.raises(SettingsError, match="2 replicas divide, got 3"):
        runner.run({"x": np.ones(3)})
