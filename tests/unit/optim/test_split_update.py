"""The order of one update: nothing is written before everything that can fail is over."""

import pytest

from ampjax.errors import TableError
from ampjax.optim.split_update import Proposal, prepare_update


class Parts:
    """A shared part and two tables that write down what they are asked for; one of them may fail."""

    def __init__(self, fails=()):
        self.story = []
        self.fails = fails
        self.tables = {name: Table(self, name) for name in ("a", "b")}

    def tell(self, *event):
        self.story.append(event)
        if event in self.fails:
            raise TableError("table", "rows that fit", f"{event}", "Give others.")

    def shared(self, turn, grads, totals):
        self.tell(
            "shared",
            turn,
            grads,
            [dict(total) for total in totals],
        )
        return {"a": ["for a", turn], "b": ["for b", turn]}

    def propose(self, grads, totals):
        self.tell("propose", grads, [dict(total) for total in totals])
        return Proposal(
            "params",
            "state",
            {"a": ["new a"], "b": ["new b"]},
        )

    def adopt(self, proposal):
        self.tell("adopt", proposal.params, proposal.state)


class Table:
    def __init__(self, parts, name):
        self.parts = parts
        self.name = name

    def partials(self, turn, shared):
        return [f"{self.name}{turn} {shared}"]

    def prepare(self, shared):
        self.parts.tell("prepare", self.name, *shared)
        return lambda: self.parts.tell("write", self.name)


def test_reductions_then_the_shared_part_then_rows():
    parts = Parts()
    commit = prepare_update(2, parts, "grads", parts.tables)
    first = {name: [f"{name}0 ['for {name}', 0]"] for name in "ab"}
    second = {name: [f"{name}1 ['for {name}', 1]"] for name in "ab"}
    assert parts.story == [
        ("shared", 0, "grads", []),
        ("shared", 1, "grads", [first]),
        ("propose", "grads", [first, second]),
        ("prepare", "a", "new a"),
        ("prepare", "b", "new b"),
    ]
    commit()
    assert parts.story[5:] == [("write", "a"), ("write", "b"), ("adopt", "params", "state")]


def test_nothing_is_written_if_a_table_refuses():
    parts = Parts([("prepare", "b", "new b")])
    with pytest.raises(TableError, match="rows that fit"):
        prepare_update(0, parts, "grads", parts.tables)
    assert not {kind for kind, *_ in parts.story} & {"write", "adopt"}
