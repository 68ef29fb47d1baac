"""The two base classes of what a node does, and how to add a node of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import WireType


class ControlOp(ABC):
    """What a control node does: it reads states and never a payload. A node whose `op` is one is part of a route, not of a stage.

    Before you add one, see whether those that are there do it together: a node that drops messages is a `cond` and a `discard`, one that
    makes several of one is a `flatmap`. `Relabel` is the smallest example (`ops/control_nodes.py`). A new one needs:

    1. A frozen dataclass here in `ops` with state functions and numbers as its fields, and `infer`.
    2. A handler in `Router.handlers` (`unfold/rules/routes.py`): what it does to columns of messages. `Parts` there is the contract.
    3. A case in `Run._consume` (`testing/interpreter.py`): what it means for a single message. The oracle of all tests.
    4. A builder in `ir/builders` (exported there and in `ampjax/__init__.py`), with a line in `docs/reference/graphs.md`, in the table of
       `docs/concepts/messages.md` and in the pinned names of `tests/docs/test_exports.py`; an entry in `KINDS` of `tests/support/node_kinds.py`, by which tests find it.

    Everything else follows from the attributes below, whose defaults are safe. Only a node that the paper would give a way back by the state
    alone has its case in `Run._step` and one in `testing/way_back.py` instead.

    Attributes:
      kind: The node's kind, as texts and pictures show it; `utils/colours.py` may give it another colour than control nodes have.
      sends_exactly_one: Whether every message that comes in leaves by exactly one output, exactly once and with the rows that it had. Planning
        relies on it: where all messages of a stage have one consumer, adjoint rows are not set to zero but written (`plan/consumers.py`), so a
        message that was dropped would keep the gradient of an earlier one, and of two copies one gradient would be lost.
      function_name: What errors call its state function.
    """

    kind: ClassVar[str]
    sends_exactly_one: ClassVar[bool] = False
    function_name: ClassVar[str] = "f"

    @abstractmethod
    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the types of the outputs, and tries state functions on sample states, so that mistakes show when a graph is built.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If the node can't take its inputs.
        """


class PayloadOp(ABC):
    """What a payload node does: it computes with rows. It has a `kind` as a control node has.

    First see whether a row-wise function does it, as an `npt`: that needs no new node. `Reduce` is the smallest example. A new one needs:

    1. A frozen dataclass in `ops/payload_nodes.py` with `kind` and `infer`.
    2. A kind of stage that runs it: `plan/stage_kinds.py` says how to add one; `KIND_OF` (`plan/planner.py`) maps the class to it.
    3. A case in `Run._consume` (`testing/interpreter.py`): what it means for a single message.
    4. A builder, and what comes with it, as for a control node (4. there). It looks like an `npt` unless `utils/colours.py` has its kind.
    """

    @abstractmethod
    def infer(self, node: Node, types: tuple[WireType, ...]) -> tuple[WireType, ...]:
        """Infers the types of the outputs.

        Args:
          node: The node, for its name and sources in errors.
          types: What its inputs carry, by port.

        Returns:
          What each output carries.

        Raises:
          GraphError: If the node can't take its inputs.
        """
