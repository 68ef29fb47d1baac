"""Groups, message by message."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.control import plan_for

import ampjax.graphs as ag
from ampjax.errors import MessageError
from ampjax.ir.state import HANDLE
from ampjax.unfold.rules.groups import Groups

WITH_OPENER = ("n", "k", "i")


def graph(
    opened=True,
    order=None,
    by=("k",),
    size=lambda s: s.n,
):
    with ag.Graph() as g:
        x = ag.pump(
            "x",
            fields=("k", "i") if opened else ("n", "k", "i"),
        )
        if opened:
            opener = ag.pump("opener", fields=("n", "k"))
        else:
            opener = None
        ag.sink(
            "rows",
            ag.group(
                x,
                by=by,
                size=size,
                order=order,
                opener=opener,
                name="group",
            ),
        )
    return g


class Bench:
    """One group node, fed by hand: members `(k, i)` and openers `(k, n)`; cells are counted from 1."""

    def __init__(self, **options):
        self.graph = graph(**options)
        stage = next(s for s in plan_for(self.graph).stages if not s.kind.is_dispatched)
        self.groups = Groups(stage, self.graph.layout)
        self.cell = 0
        self.of = {}

    def states(self, handle, **columns):
        n = max(np.size(v) for v in columns.values())
        states = np.zeros(
            (n, self.graph.layout.width),
            np.int64,
        )
        states[:, HANDLE] = handle
        for name, value in columns.items():
            states[:, self.graph.layout.column(name)] = value
        return states

    def put(self, port, handle=0, **columns):
        states = self.states(handle, **columns)
        cells = np.arange(
            self.cell + 1,
            self.cell + 1 + len(states),
        )
        self.cell += len(states)
        closed = self.groups.put(port, states, cells)
        return [(c.members.tolist(), c.opener) for c in closed]

    def members(self, handle=0, **columns):
        return self.put(0, handle, **columns)

    def open(self, handle=0, **columns):
        return self.put(1, handle, **columns)


def test_a_group_of_size_0_is_emitted_at_once():
    bench = Bench()
    assert bench.open(k=[3], n=[0]) == [([], 1)]
    assert bench.groups.waiting == 0


@pytest.mark.parametrize("first", ["opener", "members"])
def test_the_opener_may_come_before_or_after_the_members(first):
    bench = Bench()
    if first == "opener":
        assert bench.open(k=[1], n=[2]) == []
        assert bench.members(k=1, i=[0]) == []
        assert bench.groups.waiting == 2
        assert bench.members(k=1, i=[1]) == [([2, 3], 1)]
    else:
        assert bench.members(k=1, i=[0, 1]) == []
        assert bench.open(k=[1], n=[2]) == [([1, 2], 3)]
    assert bench.groups.waiting == 0


def test_without_an_opener_the_members_tell_the_size():
    bench = Bench(opened=False)
    assert bench.members(k=1, i=[5], n=2) == []
    assert bench.members(k=1, i=[3], n=2) == [([2, 1], 0)]


def test_instances_and_keys_are_kept_apart():
    bench = Bench(opened=False)
    assert bench.members(handle=0, k=[1, 2], i=0, n=2) == []
    assert bench.members(handle=1, k=[1], i=0, n=2) == []
    assert bench.members(handle=0, k=[2, 1], i=1, n=2) == [([2, 4], 0), ([1, 5], 0)]
    assert bench.groups.waiting == 1


@given(st.permutations(range(6)))
def test_rows_are_in_the_order_of_the_members_states(arrival):
    bench = Bench(opened=False)
    closed = []
    for i in arrival:
        for c in bench.members(k=0, i=[i], n=6):
            closed.append(c)
    assert closed == [([arrival.index(i) + 1 for i in range(6)], 0)]


@given(st.permutations(range(6)))
def test_or_as_the_order_function_says(arrival):
    bench = Bench(opened=False, order=lambda s: -s.i)
    closed = []
    for i in arrival:
        for c in bench.members(k=0, i=[i], n=6):
            closed.append(c)
    assert closed == [([arrival.index(i) + 1 for i in reversed(range(6))], 0)]


def test_the_state_is_the_openers_or_the_keys():
    opened = Bench()
    keyed = Bench(opened=False)
    opened.members(handle=4, k=7, i=[9])
    (closed,) = opened.groups.put(
        1,
        opened.states(4, k=[7], n=[1]),
        np.array([2]),
    )
    assert closed.state.tolist() == opened.states(4, k=7, n=1)[0].tolist()
    (closed,) = keyed.groups.put(
        0,
        keyed.states(
            4,
            k=[7],
            n=[1],
            i=[9],
        ),
        np.array([1]),
    )
    assert closed.state.tolist() == keyed.states(4, k=7)[0].tolist()


def test_a_keying_function():
    bench = Bench(opened=False, by=lambda s: s.i // 2)
    assert bench.members(k=0, i=[0, 2, 1, 3], n=2) == [([1, 3], 0), ([2, 4], 0)]


@pytest.mark.parametrize(
    ("feed", "text"),
    [
        (
            lambda b: (
                b.open(k=[1], n=[1]),
                b.members(k=1, i=[0, 1, 2]),
            ),
            None,  # a closed group is forgotten: further members open another
        ),
        (
            lambda b: (
                b.members(k=1, i=[0, 1]),
                b.open(k=[1], n=[1]),
            ),
            r"node `group`, port opener: expected 1 members, the group's size, got 2, with State\(instance=0, n=1, k=1\)\. Let each group have a key of its own \(`by`\), and let its messages agree on its size\.",
        ),
        (
            lambda b: b.open(k=[1, 1], n=2),
            r"node `group`, port opener: expected one opener per key, got a second one, with State\(instance=0, n=2, k=1\)\. Let each group have a key of its own \(`by`\), and let its messages agree on its size\.",
        ),
        (
            lambda b: b.open(k=[1], n=[-1]),
            r"node `group`, port opener: expected one size of at least 0 for all of a group, got -1, with State\(instance=0, n=-1, k=1\)\. Let each group have a key of its own \(`by`\), and let its messages agree on its size\.",
        ),
    ],
    ids=["late members", "too many members", "two openers", "negative size"],
)
def test_what_groups_refuse(feed, text):
    bench = Bench()
    if text is None:
        feed(bench)
        assert bench.groups.waiting == 2
        return
    with pytest.raises(MessageError, match=text):
        feed(bench)


def test_members_that_do_not_agree_on_the_size():
    bench = Bench(opened=False)
    bench.members(k=1, i=[0], n=3)
    text = r"node `group`, port x: expected one size of at least 0 for all of a group, got 2 after 3, with State\(instance=0, n=2, k=1, i=1\)\. Let each group have a key of its own \(`by`\), and let its messages agree on its size\."
    with pytest.raises(MessageError, match=text):
        bench.members(k=1, i=[1], n=2)


def test_a_group_of_size_0_without_an_opener_cannot_have_a_member():
    text = r"node `group`, port x: expected 0 members, the group's size, got 1, with State\(instance=0, n=0, k=1, i=0\)\. Let each group have a key of its own \(`by`\), and let its messages agree on its size\."
    with pytest.raises(MessageError, match=text):
        Bench(opened=False).members(
            k=1,
            i=[0],
            n=0,
        )
