"""The path of a gradient message back through control nodes, found by the state alone, as in the paper.

A cond or bcast has only one input to go back to, an isu applies its inverse, and a phi remembers from which port a state came.
"""

from __future__ import annotations

from ampjax.errors import InvariantError, MessageError
from ampjax.ir.nodes import Node
from ampjax.ir.ops.control_nodes import Bcast, Cond, Isu, Phi
from ampjax.ir.wires import Wire
from ampjax.testing.message_states import StateDict, StateFunctions, StateKey, state_key

_FIX = "An isu's f_inv does not undo its f for this state."


class WayBack:
    """A walk of messages back to the nodes that made them.

    Args:
      states: Evaluates the inverses of isus.
    """

    def __init__(self, states: StateFunctions):
        self._states = states
        self._ports: dict[tuple[str, StateKey], int] = {}  # at phis

    def remember(self, phi: str, port: int, state: StateDict) -> None:
        """Notes the port of a phi at which a message arrived.

        Raises:
          MessageError: If a message with the same state arrived at another port.
        """
        if self._ports.setdefault((phi, state_key(state)), port) != port:
            want = "states that are unique at a phi"
            fix = "Tell the messages apart by an isu."
            raise MessageError(f"node `{phi}`", want, f"{state} again, on port {port}", fix)

    def check(
        self,
        node: Node,
        port: int,
        state: StateDict,
        made: tuple[Wire, StateDict],
    ) -> None:
        """Checks that the path back from a node ends where the message was made.

        Args:
          node: The node at which the message has arrived.
          port: The port there.
          state: The message's state.
          made: The wire on which it was sent first, and its state there.

        Raises:
          InvariantError: If it ends elsewhere.
          MessageError: If an inverse fails.
        """
        wire = node.inputs[port]
        reached = state
        assert wire is not None
        while isinstance(wire.source.op, Cond | Bcast | Isu | Phi):
            source = wire.source
            back = 0
            if isinstance(source.op, Isu):
                reached = self._states.after(
                    f"node `{source.name}`, f_inv", source.op.inverse, reached
                )
            elif isinstance(source.op, Phi):
                back = self._ports.get(
                    (source.name, state_key(reached)),
                    -1,
                )
            if back < 0 or (wire := source.inputs[back]) is None:
                raise InvariantError(
                    f"node `{source.name}`", "a message seen before", f"{reached}", _FIX
                )
        made_on, emitted = made
        if wire is not made_on or state_key(reached) != state_key(emitted):
            where = f"node `{node.name}`, port {node.port_name(port)}"
            want = f"the way back of {state} to end at `{made_on.name}` with {emitted}"
            raise InvariantError(where, want, f"`{wire.name}` with {reached}", _FIX)
