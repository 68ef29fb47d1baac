"""Nodes that send messages their ways by the state alone: branches, joins, loops, changes of the state."""

from __future__ import annotations

from collections.abc import Callable

from ampjax.errors import GraphError
from ampjax.ir.builders.add_node import add_with_one_output
from ampjax.ir.graph import current_graph
from ampjax.ir.nodes import infer
from ampjax.ir.ops import control_nodes
from ampjax.ir.ops.join_keys import Key
from ampjax.ir.ops.payload_nodes import RouteBy
from ampjax.ir.state import State, StateFn
from ampjax.ir.wires import Wire


def cond(
    wire: Wire,
    function: StateFn,
    n: int = 2,
    name: str | None = None,
) -> tuple[Wire, ...]:
    """Sends each message to one of several wires by its state (AMPNet §4).

    Args:
      wire: The messages.
      function: State function that gives the wire's number in `[0, n)`; or, for two wires, a truth value: wire 0 if true, wire 1 if not.
      n: Number of wires.
      name: The node's name.

    Returns:
      The `n` wires.

    Raises:
      GraphError: If the function does not work on the states.
    """
    return (
        current_graph()
        .add(
            name,
            control_nodes.Cond(function, n),
            (wire,),
            n,
        )
        .outputs
    )


def route_by(
    wire: Wire,
    choice: Wire,
    *fields: str,
    assume: StateFn | None = None,
    join: Key = None,
    name: str | None = None,
) -> Wire:
    """Puts a small payload of integers into the state, so that a later `cond` or `flatmap` can act on the integers.

    AMPNet's control flow depends on states only. This node reads a payload back to the host, which has to wait for the device.
    No gradient flows through the choice.

    Args:
      wire: The messages that go on, with their payload as it is.
      choice: Their choices: integers or truth values, of shape `()` for one field or `(k,)` for `k`.
      *fields: The state fields that get the choices; they may be there already.
      assume: State function that gives the choices (a tuple of columns for several) when nothing is computed: when arenas are sized, when
        kernels are compiled ahead, and in simulations without numerics. It should visit every branch, and stay in loops as long as instances
        will; by default the choice is 0.
      join: What makes a message and its choice belong together; by default the whole state.
      name: The node's name.

    Returns:
      The messages, with the choices in their states.

    Raises:
      GraphError: If the choices do not fit the fields, or the message is ragged.
    """
    return add_with_one_output(
        RouteBy(fields, assume, join),
        (wire, choice),
        name=name,
    )


class PhiWire(Wire):
    """The output of a phi; `connect` adds the phi's inputs."""

    def connect(self, *wires: Wire) -> PhiWire:
        """Connects all inputs.

        Args:
          *wires: All inputs, in any order.

        Returns:
          The phi's output.

        Raises:
          GraphError: If the phi has been connected already.
        """
        node = self.source
        if node.inputs:
            raise GraphError(
                f"node `{node.name}`",
                "one call of connect",
                "a second one",
                "Give connect all wires at once.",
            )
        graph = current_graph()
        for wire in wires:
            node.inputs.append(None)
            graph.connect(node, len(node.inputs) - 1, wire)
        infer(node)
        return self


def phi(name: str | None = None, *wires: Wire) -> PhiWire:
    """Merges several wires into one (AMPNet §4); needed wherever a loop closes.

    Wires of a loop are given later: `h = phi("h"); ...; h.connect(start, back)`.

    Args:
      name: The node's name.
      *wires: The wires; none, if `connect` is to give them.

    Returns:
      The merged wire.

    Raises:
      GraphError: If the wires carry different payloads or state fields.
    """
    node = current_graph().add(
        name,
        control_nodes.Phi(),
        (),
        1,
    )
    out = PhiWire(node, 0)
    node.outputs = (out,)
    return out.connect(*wires) if wires else out


def isu(
    wire: Wire,
    function: Callable[[State], State],
    inverse: Callable[[State], State],
    name: str | None = None,
    samples: State | None = None,
) -> Wire:
    """Changes the state by `function`; `inverse` undoes the change. See `relabel` for changes that can't be undone.

    Args:
      wire: The messages.
      function: From states to states, with the same number of rows.
      inverse: `inverse(function(s)) == s`.
      name: The node's name.
      samples: States that can occur, `State.of(...)`, on which the inverse is checked. By default it is checked on small integers; an
        inverse that works only for states that can occur may fail there.

    Returns:
      The messages with their new states.

    Raises:
      GraphError: If the inverse does not invert.
    """
    return add_with_one_output(
        control_nodes.Isu(function, inverse, samples),
        (wire,),
        name=name,
    )


def relabel(
    wire: Wire,
    function: Callable[[State], State],
    name: str | None = None,
) -> Wire:
    """Changes the state by a function that need not have an inverse; for example, a function that drops fields.

    Payloads and gradients pass unchanged. Two messages that get equal states stay two messages; a join that has to tell them apart raises
    an error.

    Args:
      wire: The messages.
      function: From states to states, with the same number of rows.
      name: The node's name.

    Returns:
      The messages with their new states.

    Raises:
      GraphError: If the function does not work on the states.
    """
    return add_with_one_output(control_nodes.Relabel(function), (wire,), name=name)


def bcast(
    wire: Wire,
    n: int = 2,
    name: str | None = None,
) -> tuple[Wire, ...]:
    """Sends each message to several wires. Using one wire several times does the same.

    Args:
      wire: The messages.
      n: Number of wires.
      name: The node's name.

    Returns:
      The `n` wires.
    """
    return (
        current_graph()
        .add(
            name,
            control_nodes.Bcast(n),
            (wire,),
            n,
        )
        .outputs
    )
