"""Proves that replicas compute the joined batch's loss: for any parameters, and for any batch, or for batches of equal weights.

The loss of a part is followed beside that of the joined batch (`cut_flow`). Losses alone are compared, so what is proved of a loss holds for
its gradients wherever JAX derives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from ampjax.jaxprs import primitives
from ampjax.jaxprs.flat_calls import Program, without_calls
from ampjax.parallel.equivalence.cut_flow import CutFlow
from ampjax.parallel.equivalence.cuts import SAME, Cut, Value, cut_of
from ampjax.sparse.detection.loss_jaxpr import TracedLoss

Leaf = Any


class ProofVerdict(NamedTuple):
    """The state of the proof for a batch.

    Args:
      holds: Whether replicas are proved to compute its loss.
      why: If not, the operation that mixes examples, as far as is known, with the user's source line.
    """

    holds: bool
    why: str = ""


class Proof:
    """The proofs for batches of one shape.

    Args:
      part: The loss function for a part, without randomness.
      whole: The same for the joined batch.
      n: The number of replicas.
      scales: What the parts' losses may add up to, as multiples of the joined loss.
      are_rows: By leaf of the batch, whether each replica has its own rows of it; if not, all have the same.
    """

    def __init__(
        self,
        part: TracedLoss,
        whole: TracedLoss,
        n: int,
        scales: Sequence[int],
        are_rows: Sequence[bool],
    ):
        self._n = n
        self._n_params = len(part.leaves)
        self._traced = part, whole
        self._scales = [Fraction(scale) for scale in scales]
        leaves = [Cut("rows") if is_rows else SAME for is_rows in are_rows]
        self._cuts = [*[SAME] * self._n_params, *leaves]
        self._asked: list[tuple[Any, Any]] = []
        self._verdicts: dict[tuple[Value, ...], ProofVerdict] = {}
        self._values: tuple[Values, Values] | None = None

    def verdict(
        self,
        parts: Sequence[Sequence[Leaf]],
        joined: Callable[[int], Leaf],
    ) -> ProofVerdict:
        """Returns the verdict on a batch.

        Args:
          parts: By replica the leaves of its part.
          joined: Gives a leaf of the joined batch, by its number.
        """
        while True:
            answers = self._answers(parts, joined)
            if answers not in self._verdicts:
                known = dict(zip([part for part, _ in self._asked], answers, strict=True))
                verdict, new = self._follow(known)
                if new:
                    self._asked = [*self._asked, *new]
                    self._values = None
                    continue
                self._verdicts[answers] = verdict
            return self._verdicts[answers]

    def _follow(
        self,
        known: dict[Any, Value],
    ) -> tuple[ProofVerdict, list[tuple[Any, Any]]]:
        """Follows the program with some answers; returns a verdict, and the questions that are still open."""
        new: dict[Any, Any] = {}

        def ask(part: Any, whole: Any) -> Value:
            if part not in known:
                new[part] = whole
            return known.get(part)

        flow = CutFlow(self._n, ask)
        of_batch = [i >= self._n_params for i in range(len(self._cuts))]
        (loss,) = flow.run(*self._programs, self._cuts, of_batch)
        holds = loss is not None and self._is_whole(loss)
        if holds or flow.mixing is None:
            return ProofVerdict(holds), list(new.items())
        line = primitives.source_line(flow.mixing)
        return ProofVerdict(
            holds, f"`{flow.mixing.primitive.name}`" + (f" ({line})" if line else "")
        ), list(new.items())

    def _is_whole(self, loss: Cut) -> bool:
        """Tells whether the joined loss follows from the parts' losses. A loss that all replicas share is its own mean."""
        is_same = loss.kind == "same" and loss.scale == 1 and self._n in self._scales
        return is_same or (loss.kind == "total" and loss.scale in self._scales)

    def _answers(
        self,
        parts: Sequence[Sequence[Leaf]],
        joined: Callable[[int], Leaf],
    ) -> tuple[Value, ...]:
        """The cuts of all that has been asked for."""
        if not self._asked:
            return ()
        if self._values is None:
            first, second = zip(*self._asked, strict=True)
            part, whole = self._programs
            self._values = (
                Values(part, first, self._n_params),
                Values(whole, second, self._n_params),
            )
        of_part, of_whole = self._values
        whole = of_whole(joined)
        each = [of_part(leaves.__getitem__) for leaves in parts]
        result = []
        for own, value in zip(zip(*each, strict=True), whole, strict=True):
            result.append(cut_of(own, value))
        return tuple(result)

    @cached_property
    def _programs(self) -> tuple[Program, Program]:
        """The two programs without calls, and without all that the loss does not need."""
        part, whole = (_flat(traced) for traced in self._traced)
        return part, whole


def uneven_divisors(
    part: TracedLoss,
    parts: Sequence[Sequence[Leaf]],
) -> list[str]:
    """The user's lines that divide by a number which follows from the batch alone and is not the same for all replicas.

    Args:
      part: The loss function for a part, without randomness.
      parts: By replica the leaves of its part.
    """
    program = _flat(part)
    n_params = len(part.leaves)
    jaxpr, _ = program
    divisors = _divisors_of_batch(jaxpr, {*jaxpr.invars[n_params:], *jaxpr.constvars})
    values = Values(program, list(divisors), n_params)
    each = [values(leaves.__getitem__) for leaves in parts]
    uneven = []
    for scalars in zip(*each, strict=True):
        uneven.append(not np.allclose(scalars, scalars[0], equal_nan=True))
    lines = []
    for eqn, is_uneven in zip(divisors.values(), uneven, strict=True):
        if is_uneven:
            lines.append(primitives.source_line(eqn))
    return list(dict.fromkeys(line or "the program" for line in lines))


def _divisors_of_batch(
    jaxpr: Any,
    alone: set[Any],
) -> dict[Any, Any]:
    """Finds the numbers by which a program divides and which follow from the batch alone, each with its last equation.

    Args:
      jaxpr: The program.
      alone: The variables of the batch.
    """
    divisors = {}
    for eqn in jaxpr.eqns:
        if not eqn.effects and all(hasattr(v, "val") or v in alone for v in eqn.invars):
            alone |= set(eqn.outvars)
        elif eqn.primitive.name == "div":
            divisor = eqn.invars[1]
            is_number = not divisor.aval.shape and not hasattr(divisor, "val")
            if is_number and divisor in alone:
                divisors[divisor] = eqn
    return divisors


class Values:
    """Some values of a program that follow from the batch alone.

    Args:
      program: Of parameters and a batch.
      wanted: The variables.
      n_params: How many of its inputs are parameters.
    """

    def __init__(
        self,
        program: Program,
        wanted: Sequence[Any],
        n_params: int,
    ):
        jaxpr, constants = program
        needed = set(wanted)
        equations = []
        for eqn in reversed(jaxpr.eqns):
            if any(v in needed for v in eqn.outvars):
                equations.append(eqn)
                needed |= {v for v in eqn.invars if not hasattr(v, "val")}
        inputs = {}
        for i, v in enumerate(jaxpr.invars):
            if v in needed:
                inputs[v] = i - n_params
        self._leaves = list(inputs.values())
        first = {}
        for v, value in zip(jaxpr.constvars, constants, strict=True):
            if v in needed:
                first[v] = value

        def values(leaves: Sequence[Any]) -> list[Any]:
            env = first | dict(zip(inputs, leaves, strict=True))
            for eqn in reversed(equations):
                results = primitives.bind(
                    eqn,
                    [primitives.value_of(v, env) for v in eqn.invars],
                )
                env.update(zip(eqn.outvars, results, strict=True))
            return [env[v] for v in wanted]

        self._compiled = jax.jit(values)

    def __call__(
        self,
        leaf: Callable[[int], Leaf],
    ) -> list[np.ndarray]:
        """The values for a batch.

        Args:
          leaf: Gives a leaf of the batch, by its number.
        """
        result = []
        for value in self._compiled([leaf(i) for i in self._leaves]):
            result.append(np.asarray(value))
        return result


def _flat(traced: TracedLoss) -> Program:
    """The loss alone, without equations that only call another jaxpr."""
    return without_calls(traced.jaxpr, traced.consts, traced.mapped, n_results=1)
