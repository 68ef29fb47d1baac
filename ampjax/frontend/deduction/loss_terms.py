"""The summands of the loss that a function gives."""

from __future__ import annotations

from collections import Counter

from ampjax.frontend.combinators.sequences import SUM
from ampjax.frontend.deduction.equations import Atom, Equation, Known, Name
from ampjax.frontend.deduction.known_values import KnownValues
from ampjax.frontend.deduction.opened_functions import Opened
from ampjax.frontend.deduction.summands import summands
from ampjax.frontend.draft.index_spaces import Region
from ampjax.frontend.draft.values import Constant, Elements, LossTerm, Value


class LossTerms:
    """The values of a function that are summands of the loss, each with its factors.

    Args:
      known: What is known of its values.
      region: Where it is lowered.
      function: The function.
      terms: Summands that are known already go here, the others by `note`.

    Attributes:
      weights: For each summand its factors, once for each time that it is added.
      element_weights: Likewise for sequences whose elements are summands.
    """

    def __init__(
        self,
        known: KnownValues,
        region: Region,
        function: Opened,
        terms: list[LossTerm],
    ):
        self.weights: dict[Name, list[tuple[Value, ...]]] = {}
        self.element_weights: dict[Name, list[tuple[Value, ...]]] = {}
        self._known = known
        self._region = region
        self._terms = terms
        makers = {}
        for equation in function.equations:
            for name in equation.outputs:
                makers[name] = equation
        self._makers = makers
        self._n_uses = Counter(atom for equation in function.equations for atom in equation.inputs)
        self._n_uses.update(function.results)

    def take(
        self,
        atom: Atom,
        weights: tuple[Value, ...],
    ) -> None:
        """Takes a sum apart, so that a loss starts at each summand and no group waits for all; a sum that is used elsewhere stays whole."""
        if isinstance(atom, Name) and atom not in self._known.env:
            equation = self._makers.get(atom)
        else:
            equation = None
        if isinstance(atom, Known):
            self._terms.append(LossTerm(Constant(atom.value), self._region, weights))
            return
        if equation is None:
            self.weights.setdefault(atom, []).append(weights)
            return
        if equation.call is not None:
            if equation.call.kind == SUM:
                sequence = equation.inputs[equation.outputs.index(atom)]
            else:
                sequence = None
            if isinstance(sequence, Name) and self._n_uses[atom] == 1:
                self.element_weights.setdefault(sequence, []).append(weights)
            else:
                self.weights.setdefault(atom, []).append(weights)
            return
        if not self._has_sum(atom):
            self.weights.setdefault(atom, []).append(weights)
            return
        for inner, factor in self._summands(equation):
            self.take(inner, weights if factor is None else (*weights, factor))

    def _has_sum(self, atom: Atom) -> bool:
        """Tells whether a result is a weighted sum in which the sum over a sequence is a summand."""
        if isinstance(atom, Name) and atom not in self._known.env:
            equation = self._makers.get(atom)
        else:
            equation = None
        if equation is None:
            return False
        if equation.call is not None:
            return equation.call.kind == SUM and self._n_uses[atom] == 1
        return any(self._has_sum(inner) for inner, _ in self._summands(equation))

    def _summands(
        self,
        equation: Equation,
    ) -> list[tuple[Atom, Value | None]]:
        return summands(
            equation,
            [self._known.get(each) for each in equation.inputs],
        )

    def note(self) -> None:
        """Notes all summands, when the function's values are known."""
        terms = self._terms
        for name, factors in self.weights.items():
            line = self._makers[name].line if name in self._makers else ""
            terms += [
                LossTerm(
                    self._known.env[name],
                    self._region,
                    weights,
                    line=line,
                )
                for weights in factors
            ]
        for name, factors in self.element_weights.items():
            value = self._known.env.get(
                name
            )  # nothing where a function has taken the loss's part itself
            if isinstance(value, Elements):
                region = self._region.within(value.space)
                line = self._makers[name].line if name in self._makers else ""
                terms += [
                    LossTerm(value.element, region, weights, line=line) for weights in factors
                ]
