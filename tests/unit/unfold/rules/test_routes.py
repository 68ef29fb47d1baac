"""Routing: who handles which control node, and what becomes of messages there."""

import numpy as np
import pytest
from support.node_kinds import build

from ampjax.ir.ops.op_classes import ControlOp
from ampjax.ir.ops.ragged_nodes import Group
from ampjax.ir.state import Layout
from ampjax.plan.stages import ControlStep
from ampjax.unfold.rules.message_columns import MessageTable
from ampjax.unfold.rules.routes import MessageBatch, Router


def test_each_control_node_but_a_group_has_a_handler():
    """A group is a stage, so no route goes through it."""
    router = Router(
        Layout(()),
        MessageTable(),
        {},
        lambda port, batch: None,
    )
    assert set(router.handlers) == {*ControlOp.__subclasses__()} - {Group}


@pytest.mark.parametrize(
    "kind", [op.kind for op in ControlOp.__subclasses__() if op.sends_exactly_one]
)
@pytest.mark.parametrize(
    "t",
    [[4], [0, 3, 6], [5, 1, 3, 2, 4, 0, 7]],
)
def test_what_promises_to_send_each_message_once_does(kind, t):
    g, node = build(kind)
    states = np.zeros(
        (len(t), g.layout.width),
        np.int64,
    )
    states[:, g.layout.column("t")] = t
    table = MessageTable()
    messages = table.emit(
        np.arange(len(t)),
        np.arange(len(t)),
        1,
    )
    step = ControlStep(node)
    parts = Router(g.layout, table, {}, lambda port, batch: None).handlers[step.kind](
        step, MessageBatch(states, messages)
    )
    assert (
        sorted(np.concatenate([part.messages for _, part in parts]).tolist()) == messages.tolist()
    )
