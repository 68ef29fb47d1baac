"""Orders of instances: what follows what, and that nothing is left out."""

import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import graphs

import ampjax as amp
from ampjax.drivers.controller import LoopInstances
from ampjax.errors import DataError, SettingsError
from ampjax.ir.instances import InstanceList, Subset
from ampjax.train.grouping import POOL, Orders, in_groups, largest_run, sizes_of
from experiments.data import list_reduction, qm9, sst, wikiner

sizes = st.lists(
    st.integers(0, 9),
    max_size=60,
).map(lambda s: np.array(s, np.int64))


@given(
    sizes,
    st.integers(1, 70),
    st.integers(0, 99),
)
def test_every_instance_comes_once_and_groups_are_alike(sizes, group, seed):
    order = in_groups(sizes, group, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(sizes)))
    n = len(sizes) // group * group
    in_order = np.sort(sizes)
    groups = []
    for own in sizes[order[:n]].reshape(-1, group):
        groups.append(sorted(own.tolist()))
    assert sorted(groups) == in_order[:n].reshape(-1, group).tolist(), (
        "one pool: the sizes in order, cut"
    )
    assert sorted(sizes[order[n:]].tolist()) == in_order[n:].tolist(), "one with fewer comes last"


def test_large_data_sets_are_put_in_order_pool_by_pool():
    sizes = np.arange(4 * POOL * 8)
    spans = np.ptp(
        in_groups(sizes, 8, np.random.default_rng(0)).reshape(
            -1,
            8,
        ),
        axis=1,
    )
    assert np.median(spans) < len(sizes) / 20, "random eights span nearly all"
    assert spans.min() > 7, (
        "one order of everything would let the same instances meet in every epoch"
    )


def test_another_epoch_brings_another_order():
    data = InstanceList(graphs.chain_data(40))
    rng = np.random.default_rng(0)
    first, second = (Orders(4).training_order(data, rng) for _ in range(2))
    assert not np.array_equal(first, second)


def test_groups_of_one_are_the_random_order():
    data = InstanceList(graphs.chain_data(9))
    drawn = Orders(1).training_order(data, np.random.default_rng(5))
    assert np.array_equal(
        drawn,
        np.random.default_rng(5).permutation(9),
    )
    assert np.array_equal(
        Orders(1).evaluation_order(data),
        np.arange(9),
    )


@given(
    sizes,
    st.integers(1, 70),
    st.integers(0, 99),
)
def test_no_run_is_larger_than_the_largest(sizes, n, seed):
    order = np.random.default_rng(seed).permutation(len(sizes))
    runs = []
    for i in range(max(1, len(order) - n + 1)):
        runs.append(order[i : i + n].tolist())
    found = largest_run(order, sizes, n).tolist()
    assert found in runs
    assert sizes[found].sum() == max(sizes[run].sum() for run in runs)


def test_the_largest_that_are_under_way_together():
    data = InstanceList(graphs.rnn_data([1, 7, 2, 9, 3, 8]))
    rng = np.random.default_rng(0)
    assert sorted(Orders(3).largest(data, 3, True, rng).tolist()) == [1, 3, 5]
    assert Orders(3).largest(data, 2, False, rng).tolist() == [5, 3]
    assert not len(Orders(1).largest(data, 3, True, rng)), "at random, nobody knows which"


def test_sizes_are_counted_again_where_instances_have_been_added():
    instances = graphs.rnn_data([5, 1, 2])
    data = InstanceList(instances)
    orders = Orders(2)
    assert orders.evaluation_order(data).tolist() == [1, 2, 0]
    instances += graphs.rnn_data([3])
    assert orders.evaluation_order(data).tolist() == [1, 2, 3, 0]


def test_sizes_are_messages_and_rows():
    sequences = list_reduction.generate(5, 0)
    assert np.array_equal(
        sizes_of(list_reduction.Sequences(sequences)), sequences.lengths + 2
    )  # `h0` and the label
    trees, _ = sst.synthetic(6, 1, 0)
    assert len(set(sizes_of(sst.TreeInstances(trees)).tolist())) > 1
    molecules = qm9.split(
        qm9.synthetic(8, 0),
        1,
        0,
    ).train
    assert len(set(sizes_of(molecules).tolist())) > 1, "rows of ragged messages count"


def test_a_data_set_may_say_itself_how_large_instances_are():
    sentences, _ = wikiner.synthetic(6, 1, 0)
    words = np.diff(sentences.ptr)
    assert np.array_equal(sizes_of(wikiner.SentenceInstances(sentences)), words), (
        "not counting characters"
    )
    assert np.array_equal(
        sizes_of(
            Subset(
                wikiner.SentenceInstances(sentences),
                np.array([4, 1]),
            )
        ),
        words[[4, 1]],
    )
    assert sizes_of(
        Subset(
            InstanceList(graphs.rnn_data([1, 4])),
            np.array([1, 0]),
        )
    ).tolist() == [
        6,
        3,
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        [1, 2],
        "large",
        np.ones((3, 2)),
    ],
)
def test_sizes_that_are_none_are_told(sizes):
    data = InstanceList(graphs.chain_data(3))
    data.sizes = sizes
    with pytest.raises(
        DataError, match=r"InstanceList\.sizes: expected a number for each of the 3 instances"
    ):
        sizes_of(data)
    with pytest.raises(DataError, match="a number for each of the 3 instances"):
        sizes_of(Subset(data, np.array([0, 2])))


def test_a_controllers_messages_count_too():
    loops = LoopInstances(
        lambda n: ({"x": i} for i in range(n)),
        [1, 3, 2],
    )
    assert sizes_of(loops).tolist() == [1, 3, 2]
    assert (
        sizes_of(LoopInstances(iter, sentences())).tolist()
        == np.diff(sentences().data.ptr).tolist()
    )
    assert Orders(2).evaluation_order(loops).tolist() == [0, 2, 1]


def sentences():
    return wikiner.SentenceInstances(wikiner.synthetic(6, 1, 0)[0])


class Taken(InstanceList):
    """Remembers what is gathered a few at a time: what is let in."""

    def __init__(self, instances):
        super().__init__(instances)
        self.batches = []

    def gather(self, ids):
        if self.batches and self.batches[-1][: len(ids)] == ids.tolist():
            self.batches.pop()  # that was to unfold it and others ahead
        self.batches.append(ids.tolist())
        return super().gather(ids)


@pytest.mark.nightly
@pytest.mark.slow
def test_training_and_evaluation_go_by_size():
    lengths = [
        4,
        1,
        3,
        1,
        4,
        3,
        1,
        3,
        4,
    ]
    data = Taken(graphs.rnn_data(lengths))
    settings = {
        "max_active_keys": 3,
        "min_admission": 3,
        "min_update_interval": 10_000,
        "memory_limit": 1 << 40,
    }
    trainer = amp.Trainer(
        graphs.rnn(),
        optax.sgd(0.1),
        group_by_size=3,
        **settings,
    )
    trainer.warm_up(data, progress=False)
    data.batches.clear()
    trainer.fit(data, epochs=2, progress=False)
    waves = [[lengths[i] for i in batch] for batch in data.batches if len(batch) == 3][-6:]
    assert sorted(waves) == sorted(2 * [[1, 1, 1], [3, 3, 3], [4, 4, 4]])
    trainer.evaluate(data)
    assert [[lengths[i] for i in batch] for batch in data.batches[-3:]] == [
        [1, 1, 1],
        [3, 3, 3],
        [4, 4, 4],
    ]


def test_what_is_computed_does_not_depend_on_the_order():
    data = graphs.rnn_data([2, 5, 1, 3, 2, 4])
    settings = {"min_update_interval": 10_000}
    one, grouped = (
        amp.Trainer(graphs.rnn(), optax.sgd(0.1), group_by_size=n, **settings) for n in (1, 2)
    )
    assert one.evaluate(data) == pytest.approx(grouped.evaluate(data), rel=1e-5)


def test_what_a_group_can_be():
    with pytest.raises(
        SettingsError, match="setting `group_by_size`: expected an integer of at least 1"
    ):
        amp.Trainer(
            graphs.chain(1),
            optax.sgd(0.1),
            group_by_size=0,
        )
