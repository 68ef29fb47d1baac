"""The host's tables of a loop in steps, and the way through the steps: in rounds, with trip counts that are known at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.lanes.rewriting.linear_pairs import IS_DIFFERENTIATED
from ampjax.lanes.rewriting.one_kernel import in_one_kernel


@dataclass(frozen=True, eq=False)
class StepTables:
    """The host's tables of a loop.

    Args:
      sizes: The row counts.
      steps: `[steps]`: where each step's rows begin.
      rounds: As `StepFrame.rounds` gives it.
      reads: Where the states lie that each row reads, `[rows]` each.
      readers: As `StepFrame.readers` gives it.
    """

    sizes: Sequence[int]
    steps: Any
    rounds: Any
    reads: Sequence[Any]
    readers: Any

    def arrays(self) -> list[Any]:
        """All arrays, one after the other."""
        return [self.steps, self.rounds, self.readers, *self.reads]

    def with_arrays(self, arrays: Sequence[Any]) -> StepTables:
        """The same with other arrays in their places."""
        steps, rounds, readers, *reads = arrays
        return StepTables(self.sizes, steps, rounds, reads, readers)

    def over(
        self,
        step: Callable[[int, Any, Any], Any],
        carry: Any,
        reverse: bool = False,
        is_small: bool = False,
    ) -> Any:
        """Goes through all steps.

        Args:
          step: From the row count, where the step's rows begin, and what is carried to what is carried on.
          carry: What is carried.
          reverse: Whether the last step comes first.
          is_small: Whether steps compute so little that starting their operations takes longer: then all are one kernel, where it can be.
        """
        if IS_DIFFERENTIATED.get():
            return self._as_scan(step, carry, reverse)
        all_steps = lambda carry: self._in_rounds(step, carry, reverse)
        found = in_one_kernel(all_steps, carry) if is_small else None
        return all_steps(carry) if found is None else found

    def _in_rounds(
        self,
        step: Callable[[int, Any, Any], Any],
        carry: Any,
        reverse: bool,
    ) -> Any:
        """Goes through the steps of each row count, round by round."""
        n_rounds = self.rounds[0, 0]
        n_steps = self.rounds[0, 1]

        def of_size(
            size: int,
            first: Any,
            end: Any,
            carry: Any,
        ) -> Any:
            def one(i: Any, carry: Any) -> Any:
                number = end - 1 - i if reverse else first + i
                return step(size, self.steps[number], carry)

            return jax.lax.fori_loop(
                0,
                end - first,
                one,
                carry,
            )

        if len(self.sizes) == 1:
            return of_size(
                self.sizes[0],
                0,
                n_steps,
                carry,
            )
        numbers = list(range(len(self.sizes)))
        if reverse:
            numbers.reverse()

        def round_of(i: Any, carry: Any) -> Any:
            starts = self.rounds[n_rounds - i if reverse else i + 1]
            for number in numbers:
                carry = of_size(
                    self.sizes[number],
                    starts[number],
                    starts[number + 1],
                    carry,
                )
            return carry

        return jax.lax.fori_loop(0, n_rounds, round_of, carry)

    def _as_scan(
        self,
        step: Callable[[int, Any, Any], Any],
        carry: Any,
        reverse: bool,
    ) -> Any:
        """Goes the same way in a form that JAX differentiates alone: the largest possible number of steps, of which idle ones are left out."""
        n_rounds = self.rounds[0, 0]
        n_steps = self.rounds[0, 1]
        ends = self.rounds[1:, 1 : len(self.sizes) + 1]
        is_round = jnp.arange(len(ends)) < n_rounds

        def of_size(size: int, number: Any) -> Callable[[Any], Any]:
            return lambda carry: step(size, self.steps[number], carry)

        def one(carry: Any, number: Any) -> tuple[Any, None]:
            # A step's row count is the first one, in the order of rounds, whose steps end behind it.
            n_ended = jnp.sum((ends <= number) & is_round[:, None])
            branches = [of_size(size, number) for size in self.sizes]
            taken = lambda carry: jax.lax.switch(n_ended % len(self.sizes), branches, carry)
            return jax.lax.cond(number < n_steps, taken, lambda carry: carry, carry), None

        numbers = jnp.arange(len(self.steps))
        return jax.lax.scan(one, carry, numbers, reverse=reverse)[0]
