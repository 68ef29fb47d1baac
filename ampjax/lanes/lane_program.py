"""A lane program: the function of one element as straight-line blocks, between which jumps lead.

Variables are those of jaxprs. One that lives across blocks has a register: an array with a row for each lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ampjax.jaxprs.primitives import value_of, variables


class LaneStep(NamedTuple):
    """A computation inside a block.

    Args:
      compute: From the values of its operands to those of its results.
      inputs: Its operands: variables and literals.
      outputs: Variables, one for each result.
    """

    compute: Callable[[Sequence[Any]], Sequence[Any]]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


class Put(NamedTuple):
    """A row that a loop's trip writes into an array with an axis for the trips.

    Args:
      array: The variable of the array.
      place: Which of its rows.
      row: What is written.
    """

    array: Any
    place: Any
    row: Any


@dataclass(eq=False)
class LaneBlock:
    """Steps without a jump, and the jump behind the last step.

    Args:
      number: Its place among the blocks: what a lane's program counter says.
      steps: What it computes, in order.
      assigns: Registers, and the atoms that they get behind the steps, all at once.
      puts: Rows that it writes.
      clears: Arrays of rows that a loop is about to write.
      choice: What picks one of the targets, an integer or a truth value; None with a single one.
      targets: Blocks; None is the end.
      is_test: Whether the choice is whether a loop goes on.
      is_trip: Whether a trip of a loop ends here.
      sees_all: Whether some step sees all lanes at once, so that lanes which stand elsewhere must not show.
    """

    number: int
    steps: list[LaneStep] = field(default_factory=list)
    assigns: list[tuple[Any, Any]] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    clears: list[Any] = field(default_factory=list)
    choice: Any = None
    targets: tuple[LaneBlock | None, ...] = (None,)
    is_test: bool = False
    is_trip: bool = False
    sees_all: bool = False

    def reads(self) -> set[Any]:
        """Collects the variables that the block takes from registers or from shared values."""
        used: list[Any] = []
        if self.choice is not None:
            used.append(self.choice)
        written: set[Any] = set()
        for step in self.steps:
            used.extend(step.inputs)
            written.update(step.outputs)
        used.extend(atom for _, atom in self.assigns)
        for put in self.puts:
            used.extend((put.place, put.row))
        return variables(used) - written

    def defines(self) -> set[Any]:
        """The variables that its steps compute."""
        written: set[Any] = set()
        for step in self.steps:
            written.update(step.outputs)
        return written


@dataclass(eq=False)
class LaneLoop:
    """A loop: its blocks and inner loops, in order.

    Args:
      items: They.
    """

    items: list[LaneBlock | LaneLoop] = field(default_factory=list)

    @property
    def is_innermost(self) -> bool:
        """Whether the loop has no loop inside."""
        return not any(isinstance(item, LaneLoop) for item in self.items)

    @property
    def blocks(self) -> Iterator[LaneBlock]:
        """All blocks of the loop, the blocks of inner loops included."""
        for item in self.items:
            if isinstance(item, LaneLoop):
                yield from item.blocks
            else:
                yield item


@dataclass(frozen=True)
class LaneProgram:
    """A function of one element, in blocks.

    Args:
      blocks: All blocks, by number.
      body: The same as a tree of loops.
      prologue: What is the same for all elements, computed once.
      constants: Values of variables.
      inputs: The variable of each argument.
      is_mapped: By argument, whether each element has its own.
      results: The atoms of the results.
      registers: The variables that have a row for each lane.
      shared: Those that all lanes share.
    """

    blocks: tuple[LaneBlock, ...]
    body: LaneLoop
    prologue: tuple[LaneStep, ...]
    constants: Mapping[Any, Any]
    inputs: tuple[Any, ...]
    is_mapped: tuple[bool, ...]
    results: tuple[Any, ...]
    registers: tuple[Any, ...]
    shared: frozenset[Any]

    @cached_property
    def numbers(self) -> dict[Any, int]:
        """The number of each register, by variable."""
        return {var: number for number, var in enumerate(self.registers)}

    @property
    def finished(self) -> int:
        """The program counter of a lane whose element is finished."""
        return len(self.blocks)

    @property
    def idle(self) -> int:
        """The program counter of a lane without an element."""
        return len(self.blocks) + 1

    @property
    def has_loops(self) -> bool:
        """Whether there is a loop or a choice, so that elements can take different ways."""
        return len(self.blocks) > 1


def take_steps(
    steps: Sequence[LaneStep],
    values: dict[Any, Any],
) -> None:
    """Computes steps, and adds their results to the values.

    Args:
      steps: The steps, in order.
      values: By variable its value.
    """
    for step in steps:
        operands = [value_of(atom, values) for atom in step.inputs]
        values.update(
            zip(
                step.outputs,
                step.compute(operands),
                strict=True,
            )
        )
