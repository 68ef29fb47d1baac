"""The base classes of nodes' operations, and a guide to adding a node of either sort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import WireType


class Op(ABC):
    """The operation of a node."""

    @abstractmethod
    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the types of the outputs, and tries users' functions on samples or shapes, so that mistakes show when a graph is built.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If the node can't take its inputs.
        """


class ControlOp(Op):
    """The operation of a control node, which reads states and never a payload.

    Before you add one, see whether those that are there do it together: one that changes states is a `relabel`, one that drops messages a `cond` and
    a `discard`, one that makes several of one a `flatmap`. `Relabel` is the smallest example. A new one needs:

    1. A frozen dataclass in `ir/ops/control_nodes.py` or `ragged_nodes.py`, with state functions and numbers as its fields, and `infer`, whose result
       says which state fields there are.
    2. A handler in `Router.handlers` (`unfold/rules/routes.py`): what it does to columns of messages. `Parts` there is the contract.
    3. A case in `InstanceRun._consume` (`testing/interpreter.py`): what it means for a single message. (Only
       for the paper's Cond, Bcast, Isu and Phi it is in `InstanceRun._step`, with another case in `testing/way_back.py`.)
    4. A builder in `ir/builders`, exported there and in `ampjax/__init__.py`; with a line in `docs/reference/graphs.md`, in the table of
       `docs/concepts/messages.md` and in the pinned names of `tests/docs/test_exports.py`.
    5. An entry in `KINDS` of `tests/support/node_kinds.py`, by which tests find it, and compare the handler with
       the oracle.

    Everything else follows from the attributes below, whose defaults are safe.

    Attributes:
      kind: The node's kind, as texts and pictures show it. `utils/drawing/colours.py` may give it another colour than other control nodes have.
      sends_exactly_one: Whether every message that comes in leaves by exactly one output, exactly once and with the rows that it had. Plans
        rely on it: if all messages of a stage have exactly one consumer, their adjoint rows need not start from zero (`plan/consumers.py`). So
        if it is wrongly True, a dropped message has the gradient of an earlier one, and of two copies one gradient is lost.
      function_name: What errors call its state function.
    """

    kind: ClassVar[str]
    sends_exactly_one: ClassVar[bool] = False
    function_name: ClassVar[str] = "f"


class PayloadOp(Op):
    """The operation of a payload node, which computes with rows.

    First see whether a row-wise function does it, as an `npt`: that needs no new node. `Reduce` is the smallest example. A new one needs:

    1. A frozen dataclass in `ir/ops/payload_nodes.py` with `infer`, a `kind` as control nodes have it, and `join` (`join_keys.Key`) if what makes the
       messages of several ports belong together is not their whole state.
    2. A kind of stage that runs it: `plan/stage_kinds.py` says how to add one; `KIND_OF` (`plan/planner.py`) maps the class to it.
    3. A case in `InstanceRun._consume` (`testing/interpreter.py`), or in `_join` there if it has several ports: what it means for a single message.
    4. A builder and an entry in `KINDS`, as for a control node (4. and 5. there). It looks like an `npt` unless `utils/drawing/colours.py` has its kind.
    """
