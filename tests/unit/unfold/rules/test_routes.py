"""Routing: who handles which control node."""

from ampjax.ir.control_nodes import CONTROL, Group
from ampjax.ir.state import Layout
from ampjax.unfold.rules.message_columns import MessageTable
from ampjax.unfold.rules.routes import Router


def test_each_control_node_but_a_group_has_a_handler():
    """A group is a stage, so no route goes through it."""
    router = Router(Layout(()), MessageTable(), {}, lambda port, batch: None)
    assert set(router.handlers) == {*CONTROL} - {Group}
