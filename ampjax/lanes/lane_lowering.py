"""The lowering of a jaxpr of one element to blocks: loops and choices that depend on the element become jumps.

A loop is turned round: its test stands before it and again behind its body, so that a trip of a simple loop is one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.extend.core as jex
import numpy as np
from jax.core import ShapedArray

from ampjax.jaxprs.primitives import bind, called, opened, scan_parts, variables, while_parts
from ampjax.lanes.lane_program import LaneBlock, LaneLoop, LaneProgram, LaneStep, Put
from ampjax.lanes.lane_state import take
from ampjax.lanes.rewriting.whole_batches import alone, looks_at_batch
from ampjax.lanes.splitting import INLINED, sees_all, splits

_COUNTER = ShapedArray((), np.dtype(np.int32))
_TRUTH = ShapedArray((), np.dtype(bool))
_ZERO = jex.Literal(np.int32(0), _COUNTER)
_TRUE = jex.Literal(np.bool_(True), _TRUTH)


def lower(jaxpr: Any, is_mapped: Sequence[bool]) -> LaneProgram:
    """The lane program of a jaxpr, whose arguments are the jaxpr's constants and then its inputs.

    Args:
      jaxpr: An open jaxpr, without effects.
      is_mapped: By input, whether each element has its own.
    """
    lowering = _Lowering()
    of_constants = [False] * len(jaxpr.constvars)
    varying = (*of_constants, *is_mapped)
    variables = [*jaxpr.constvars, *jaxpr.invars]
    inputs = []
    for var, mapped in zip(variables, varying, strict=True):
        inputs.append(jex.Var(var.aval))
        if not mapped:
            lowering.shared.add(inputs[-1])
    if looks_at_batch(jaxpr):
        results = lowering.call(alone(jaxpr), inputs)
    else:
        env = dict(zip(variables, inputs, strict=True))
        results = lowering.inline(jaxpr, env)
    return lowering.finish(inputs, varying, results)


class _Lowering:
    """Blocks in the making.

    It has more than 15 methods: one for each kind of equation that becomes blocks.

    Attributes:
      shared: Variables that are the same for all elements, computed once.
      blocks: All blocks so far; new equations go to the last one.
    """

    def __init__(self):
        self.shared: set[Any] = set()
        self.blocks: list[LaneBlock] = []
        self._constants: dict[Any, Any] = {}
        self._prologue: list[LaneStep] = []
        self._around = [LaneLoop()]
        self._depth = 0
        self._begin()

    @property
    def _at(self) -> LaneBlock:
        """The block that equations go to."""
        return self.blocks[-1]

    def constant(self, aval: Any, value: Any) -> Any:
        """A shared variable with a value.

        Args:
          aval: Its type.
          value: Its value.
        """
        var = jex.Var(aval)
        self.shared.add(var)
        self._constants[var] = value
        return var

    def inline(
        self,
        jaxpr: Any,
        env: dict[Any, Any],
    ) -> list[Any]:
        """Adds a jaxpr's equations, with variables of their own.

        Args:
          jaxpr: An open jaxpr.
          env: By variable of the jaxpr its atom in the program.

        Returns:
          The atoms of its outputs.
        """

        def name_outputs(atoms: Sequence[Any]) -> list[Any]:
            names = []
            for atom in atoms:
                is_literal = isinstance(atom, jex.Literal)
                names.append(atom if is_literal else env[atom])
            return names

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, name_outputs(eqn.invars))
            env.update(zip(eqn.outvars, results, strict=True))
        return name_outputs(jaxpr.outvars)

    def finish(
        self,
        inputs: Sequence[Any],
        is_mapped: Sequence[bool],
        results: Sequence[Any],
    ) -> LaneProgram:
        """The program.

        Args:
          inputs: The variable of each argument.
          is_mapped: By argument, whether each element has its own.
          results: Atoms of the results.
        """
        self._drop_unread(results)
        read = variables(results)
        written: list[Any] = []
        for var, mapped in zip(inputs, is_mapped, strict=True):
            if mapped:
                written.append(var)
        for block in self.blocks:
            read |= block.reads()
            written.extend(target for target, _ in block.assigns)
            written.extend(put.array for put in block.puts)
            for step in block.steps:
                written.extend(step.outputs)
        registers = []
        for var in dict.fromkeys(written):
            if var in read:
                registers.append(var)
        return LaneProgram(
            tuple(self.blocks),
            self._around[0],
            tuple(self._prologue),
            self._constants,
            tuple(inputs),
            tuple(is_mapped),
            tuple(results),
            tuple(registers),
            frozenset(self.shared),
        )

    def _drop_unread(self, results: Sequence[Any]) -> None:
        """Drops assignments to registers that nobody reads, one after another."""
        while True:
            read = variables(results)
            for block in self.blocks:
                read |= block.reads()
            n_before = self._n_written()
            for block in self.blocks:
                assigns = block.assigns
                block.assigns = []
                for var, atom in assigns:
                    if var in read and var is not atom:
                        block.assigns.append((var, atom))
                block.puts = [put for put in block.puts if put.array in read]
                block.clears = [v for v in block.clears if v in read]
            if self._n_written() == n_before:
                return

    def _n_written(self) -> int:
        """Counts the writes of all blocks: to registers, and of rows to arrays."""
        n = 0
        for block in self.blocks:
            n += len(block.assigns) + len(block.puts)
        return n

    def _begin(self) -> LaneBlock:
        """Starts a block behind all others."""
        self.blocks.append(LaneBlock(len(self.blocks)))
        self._around[-1].items.append(self._at)
        return self._at

    def _varies(self, atom: Any) -> bool:
        return not isinstance(atom, jex.Literal) and atom not in self.shared

    def _equation(
        self,
        eqn: Any,
        atoms: list[Any],
    ) -> list[Any]:
        """Adds an equation; returns the atoms of its results."""
        varies = [self._varies(atom) for atom in atoms]
        if any(varies) and splits(eqn, varies):
            return self._split(eqn, atoms)
        outs = [jex.Var(v.aval) for v in eqn.outvars]
        step = LaneStep(
            partial(bind, eqn),
            tuple(atoms),
            tuple(outs),
        )
        if any(varies) or self._depth:
            self._at.steps.append(step)
            self._at.sees_all |= sees_all(eqn)
        else:
            self._prologue.append(step)
            self.shared.update(outs)
        return outs

    def _split(
        self,
        eqn: Any,
        atoms: list[Any],
    ) -> list[Any]:
        """Adds an equation as blocks."""
        name = eqn.primitive.name
        if name in INLINED:
            return self.call(called(eqn), atoms)
        self._depth += 1
        if name == "while":
            results = self._while(eqn, atoms)
        elif name == "scan":
            results = self._scan(eqn, atoms)
        else:
            results = self._cond(eqn, atoms)
        self._depth -= 1
        return results

    def call(
        self,
        jaxpr: Any,
        atoms: Sequence[Any],
    ) -> list[Any]:
        """Adds the equations of a jaxpr with constants.

        Args:
          jaxpr: The jaxpr.
          atoms: The atoms of its inputs.

        Returns:
          The atoms of its outputs.
        """
        body, values = opened(jaxpr)
        env = dict(zip(body.invars, atoms, strict=True))
        for var, value in zip(body.constvars, values, strict=True):
            env[var] = self.constant(var.aval, value)
        return self.inline(body, env)

    def _step(
        self,
        function: Any,
        inputs: Sequence[Any],
        aval: Any,
    ) -> Any:
        """Adds a computation with one result; returns its variable."""
        out = jex.Var(aval)
        compute = lambda operands: [function(*operands)]
        step = LaneStep(compute, tuple(inputs), (out,))
        self._at.steps.append(step)
        return out

    def _turn(self, body: Any) -> None:
        """Adds a loop's body between the block before, which ends with the first test, and the one behind.

        `body()` adds equations and returns the atom of the test of another trip.
        """
        entry = self._at
        self._around.append(LaneLoop())
        first = self._begin()
        again = body()
        back = self._at
        loop = self._around.pop()
        self._around[-1].items.append(loop)
        after = self._begin()
        entry.targets = (after, first)
        entry.is_test = True
        back.choice = again
        back.targets = (after, first)
        back.is_test = True
        back.is_trip = True

    def _while(
        self,
        eqn: Any,
        atoms: list[Any],
    ) -> list[Any]:
        asked, closed, init = while_parts(eqn, atoms)
        test = eqn.params["cond_jaxpr"]
        carry = [jex.Var(v.aval) for v in eqn.outvars]
        (goes_on,) = self.call(test, [*asked, *init])
        self._at.assigns.extend(zip(carry, init, strict=True))
        self._at.choice = goes_on

        def body() -> Any:
            repeated = eqn.params["body_jaxpr"]
            after = self.call(repeated, [*closed, *carry])
            (again,) = self.call(test, [*asked, *after])
            self._at.assigns.extend(zip(carry, after, strict=True))
            return again

        self._turn(body)
        return carry

    def _scan(
        self,
        eqn: Any,
        atoms: list[Any],
    ) -> list[Any]:
        closed, init, rows = scan_parts(eqn, atoms)
        length = eqn.params["length"]
        is_reversed = eqn.params["reverse"]
        results = [jex.Var(v.aval) for v in eqn.outvars]
        carry = results[: len(init)]
        arrays = results[len(init) :]
        counter = jex.Var(_COUNTER)
        # the counter goes up; in a reversed scan rows are read and written from the end
        self._at.assigns.extend(zip(carry, init, strict=True))
        self._at.assigns.append((counter, _ZERO))
        self._at.clears.extend(arrays)
        self._at.choice = _TRUE

        def place() -> Any:
            if not is_reversed:
                return counter
            return self._step(
                lambda i: length - 1 - i,
                [counter],
                _COUNTER,
            )

        def body() -> Any:
            here = place()
            elements = []
            for array in rows:
                aval = array.aval.update(shape=array.aval.shape[1:])
                element = self._step(take, [array, here], aval)
                elements.append(element)
            inputs = [*closed, *carry, *elements]
            after = self.call(eqn.params["jaxpr"], inputs)
            here = place()
            next_one = self._step(
                lambda i: i + 1,
                [counter],
                _COUNTER,
            )
            again = self._step(
                lambda i: i < length,
                [next_one],
                _TRUTH,
            )
            n = len(init)
            self._at.assigns.extend(zip(carry, after[:n], strict=True))
            self._at.assigns.append((counter, next_one))
            for array, row in zip(arrays, after[n:], strict=True):
                self._at.puts.append(Put(array, here, row))
            return again

        self._turn(body)
        return results

    def _cond(
        self,
        eqn: Any,
        atoms: list[Any],
    ) -> list[Any]:
        results = [jex.Var(v.aval) for v in eqn.outvars]
        entry = self._at
        entry.choice = atoms[0]
        firsts: list[LaneBlock | None] = []
        ends = []
        for branch in eqn.params["branches"]:
            body, values = opened(branch)
            if not body.eqns and not values and None not in firsts:
                # a branch that computes nothing: everybody does it, the others write over it
                outputs = self.call(branch, atoms[1:])
                entry.assigns.extend(zip(results, outputs, strict=True))
                firsts.append(None)
            else:
                firsts.append(self._begin())
                outputs = self.call(branch, atoms[1:])
                self._at.assigns.extend(zip(results, outputs, strict=True))
                ends.append(self._at)
        after = self._begin()
        entry.targets = tuple(first or after for first in firsts)
        for end in ends:
            end.targets = (after,)
        return results
