"""Watches a run: do replicas compute the same as a single device, on the first batch and on all later ones?

The first batch's losses are compared. For later ones a proof is tried; where there is none, their losses are compared, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ampjax.devices.loss_collectives import AXIS
from ampjax.errors import EquivalenceError
from ampjax.parallel.equivalence import causes
from ampjax.parallel.equivalence.compare import HERE, NEARBY, Comparison
from ampjax.parallel.equivalence.joined_batch import JoinedBatch, Skipped
from ampjax.parallel.equivalence.proof import Proof, ProofVerdict, uneven_divisors
from ampjax.parallel.planning.build_runner import RunnerSetup, Step
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.sparse.detection.loss_jaxpr import TracedLoss, abstract, signature, trace_loss
from ampjax.sparse.detection.random_draws import draws_of, without_randomness
from ampjax.sparse.rewrite.pulled_step import MAX_SHAPES

Tree = Any
_OWN = "leaves of the parts differ in their leading sizes, so each part is a batch of its own"


@dataclass(frozen=True)
class Equivalence:
    """The result of the comparison at the first batch, and the verdict on later ones.

    Args:
      joined: The joined batch's loss; NaN if none was compared.
      replicas: The replicas' losses, averaged or summed.
      rounding: How far apart rounding may bring the two.
      skipped: Why none was compared; empty if it was.
      errors: What the user shall know.
      later: What is done about later batches.
    """

    joined: float = math.nan
    replicas: float = math.nan
    rounding: float = 0.0
    skipped: str = ""
    errors: tuple[EquivalenceError, ...] = ()
    later: str = ""

    def __str__(self) -> str:
        if self.skipped:
            compared = f"not compared with the joined batch: {self.skipped}"
        else:
            compared = f"joined batch's loss {self.joined:.6g}, replicas' {self.replicas:.6g}, rounding up to {self.rounding:.2g}"
        later = f"; {self.later}" if self.later else ""
        return "\n".join([f"equivalence: {compared}{later}", *map(str, self.errors)])


@dataclass
class _Shape:
    """The comparisons and proofs for batches of one shape.

    Args:
      setup: What the model is trained with.
      plan: What became of its variables.
      parts: How many parts there are.
      part_shapes: Shapes and dtypes of a part.
      shapes: Those of the joined batch.
      are_rows: By leaf, whether each replica has its own rows of it.
    """

    setup: RunnerSetup
    plan: VariablePlan
    parts: int
    part_shapes: Tree
    shapes: Tree
    are_rows: Sequence[bool]

    @cached_property
    def part(self) -> TracedLoss:
        """The loss function for a part."""
        return self.plan.program.split_loss(self.part_shapes).traced

    @cached_property
    def whole(self) -> TracedLoss:
        """The loss function for the joined batch.

        Raises:
          Skipped: If it does not take such a batch.
        """
        mapped = ((AXIS, 1),) if self.setup.config.sync else ()
        try:
            return trace_loss(
                self.setup.loss_fn,
                self.plan.program.params,
                self.shapes,
                mapped,
            )
        except (
            Exception
        ) as error:  # whatever the user's program raises: it may take parts of one size only
            raise Skipped(
                f"the loss function does not take it ({type(error).__name__}: {error})"
            ) from error

    @cached_property
    def without_chance(self) -> tuple[TracedLoss, TracedLoss]:
        """The loss function for a part and for the joined batch, without randomness.

        Raises:
          Skipped: If the loss function can't be compared.
        """
        try:
            return without_randomness(self.part), without_randomness(self.whole)
        except Skipped:
            raise
        except Exception as error:  # of what the user's program does
            raise Skipped(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _proof(self) -> Proof:
        config = self.setup.config
        n = self.parts
        if config.sync:
            scales = (n if config.average_dense == "mean" else 1,)
        else:
            scales = (1, n)
        return Proof(*self.without_chance, n, scales, self.are_rows)

    @cached_property
    def comparison(self) -> Comparison:
        """The compiled losses.

        Raises:
          Skipped: If the loss function can't be compared.
        """
        part, whole = self.without_chance
        return Comparison(self.setup, self.plan, whole, part)

    def verdict(self, batch: JoinedBatch) -> ProofVerdict:
        """Returns the proof's verdict on a batch.

        Raises:
          Skipped: If the loss function can't be compared.
        """
        proof = self._proof
        try:
            return proof.verdict(batch.leaves, batch.leaf)
        except (
            Exception
        ) as error:  # a program with something in it that nobody foresaw shall train all the same
            return ProofVerdict(False, f"{type(error).__name__}: {error}")


class EquivalenceWatch:
    """Watches over the batches of a run.

    Args:
      setup: What the model is trained with.
      plan: What became of its variables.
      before: What has watched over the run until now, with another plan.

    Attributes:
      found: What came of the first batch.
      is_told: Whether the user has been told that losses differ: a warning comes once.
    """

    def __init__(
        self, setup: RunnerSetup, plan: VariablePlan, before: EquivalenceWatch | None = None
    ):
        self._setup = setup
        self._plan = plan
        self._shapes: dict[Hashable, _Shape] = {}
        self._seen: Sequence[Tree] | None = None  # the batch that was looked at last
        self.found = (
            Equivalence(skipped="there was no batch yet") if before is None else before.found
        )
        self.is_told = before is not None and before.is_told

    def first(self, step: Step, parts: Sequence[Tree]) -> None:
        """Compares the losses of the first batch, and looks for random keys that replicas share. Nothing is changed.

        Args:
          step: The model's step; parameters are read from there.
          parts: By replica its part.

        Raises:
          EquivalenceError: If something is found, and that is to be an error.
        """
        self.found = self._compare_first(step, parts)
        self._require_allowed(self.found.errors)
        self._seen = parts

    def later(
        self,
        number: int,
        step: Step,
        parts: Sequence[Tree],
    ) -> Sequence[EquivalenceError]:
        """Checks a later batch, unless the last check was of the same one. Nothing is changed.

        Args:
          number: The step's.
          step: As for `first`.
          parts: By replica its part.

        Returns:
          What the user is to be warned of.

        Raises:
          EquivalenceError: If something is found, and that is to be an error.
        """
        if (
            parts is self._seen
            or self._is_off
            or len(parts) == 1
            or (self.is_told and self._only_warns)
        ):
            return ()
        errors = self._compare_later(f"the batch of step {number}", step, parts)
        self.is_told = self.is_told or bool(errors)
        self._require_allowed(errors)
        self._seen = parts
        return errors

    def _compare_first(self, step: Step, parts: Sequence[Tree]) -> Equivalence:
        """Compares the first batch's losses, or gives the reason why there is no comparison."""
        if self._is_off:
            return Equivalence(skipped='`check_equivalence="off"`')
        if len(parts) == 1:
            return Equivalence(skipped="there is one replica")
        batch, shape = self._of(parts)
        why = ""
        whole = None
        try:
            batch.require_joinable()
            whole = shape.whole
        except Skipped as reason:
            why = str(reason)
        shared = causes.explain_shared_keys(
            draws_of(shape.part), whole and draws_of(whole), batch.varies
        )
        if whole is None:
            return Equivalence(skipped=why, errors=shared)
        try:
            losses, error = self._compare_losses(
                step,
                batch,
                shape,
                "the first batch",
                (HERE, NEARBY),
            )
        except Skipped as reason:
            return Equivalence(skipped=str(reason), errors=shared)
        self.is_told = error is not None
        errors = shared if error is None else (error, *shared)
        return Equivalence(
            *dataclasses.astuple(losses),
            errors=errors,
            later=_of_later(shape.verdict(batch)),
        )

    def _compare_later(
        self,
        which: str,
        step: Step,
        parts: Sequence[Tree],
    ) -> Sequence[EquivalenceError]:
        """Collects the findings on a later batch."""
        batch, shape = self._of(parts)
        try:
            batch.require_joinable()
            if shape.verdict(batch).holds:
                return ()
            _, error = self._compare_losses(
                step,
                batch,
                shape,
                which,
                (HERE,),
            )
        except Skipped:
            return ()
        return () if error is None else (error,)

    def _require_allowed(self, errors: Sequence[EquivalenceError]) -> None:
        if errors and not self._only_warns:
            raise errors[0]

    @property
    def _only_warns(self) -> bool:
        return self._setup.config.check_equivalence == "warn"

    @property
    def _is_off(self) -> bool:
        return self._setup.config.check_equivalence == "off"

    def _of(self, parts: Sequence[Tree]) -> tuple[JoinedBatch, _Shape]:
        """Joins a batch, and looks up the findings for its shape."""
        batch = JoinedBatch(parts, self._setup.config.shared)
        key = signature(parts[0])
        if key not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            shapes = abstract(parts[0]), batch.shapes, batch.are_rows
            self._shapes[key] = _Shape(
                self._setup,
                self._plan,
                len(parts),
                *shapes,
            )
        return batch, self._shapes[key]

    def _compare_losses(
        self,
        step: Step,
        batch: JoinedBatch,
        shape: _Shape,
        which: str,
        places: Sequence[tuple[float, float]],
    ) -> tuple[causes.Losses, EquivalenceError | None]:
        """Compares losses. Of parts that are batches of their own, such as bags with offsets, nobody knows the joined batch."""
        losses, error = shape.comparison.compare(step, batch, which, places)
        if error is None or batch.is_one_batch:
            return losses, error
        lines = uneven_divisors(shape.without_chance[0], batch.leaves)
        if not lines:
            raise Skipped(_OWN)
        return losses, causes.explain_divisors(lines, len(batch.parts), which)


def _of_later(verdict: ProofVerdict) -> str:
    """Describes the checks of later batches, for the explanation."""
    if verdict.holds:
        return "proved for all batches like it"
    return f"not proved ({verdict.why or 'what it returns is no mean'}), so each batch is compared"
