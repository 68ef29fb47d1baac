"""Uses of expressions of lengths in a model: JAX simplifies expressions as if no sequence were empty, so a pass over the data checks each use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ampjax.errors import DataError
from ampjax.frontend.deduction.equations import Atom, Equation, Known, Name
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.long_axes import is_known_length
from ampjax.frontend.draft.values import Elements, Static

if TYPE_CHECKING:
    from ampjax.frontend.batches.row_lowering import RowLowering, Value

_PASSING = ("convert_element_type", "copy", "broadcast_in_dim", "reshape", "squeeze")
"""Operations that leave a number what it is."""


class LengthUses:
    """The uses of expressions of lengths in a function: a length below 0 is an error where a value comes from the length.

    As the start of a slice that is empty it is none.

    Args:
      low: The lowering.
      region: Where the function is computed.
    """

    def __init__(self, low: RowLowering, region: Region):
        self._low = low
        self._region = region
        self._lengths: dict[Atom, Equation] = {}
        self._columns: dict[Atom, Column] = {}

    def see(
        self,
        equation: Equation,
        results: Sequence[Value],
    ) -> None:
        """Notes an equation, and adds the checks of the equation's lengths.

        Args:
          equation: The equation.
          results: What it gives.
        """
        source = equation.source
        if source.primitive.name == "dim_as_value" and isinstance(
            results[0],
            Static,
        ):
            if not str(source.params["dim"]).isidentifier():
                self._note(
                    equation.outputs[0],
                    equation,
                    results[0].column,
                )
            return
        is_passing = source.primitive.name in _PASSING and not isinstance(
            results[0],
            Elements,
        )
        for atom in equation.inputs:
            if atom in self._lengths and is_passing:
                self._note(
                    equation.outputs[0],
                    self._lengths[atom],
                    self._columns[atom],
                )
            elif atom in self._lengths:
                is_sequence = equation.call is None and isinstance(results[0], Elements)
                self._require(atom, results[0].space if is_sequence else None)

    def end(self, results: Sequence[Atom]) -> None:
        """Notes the results of the function, with which the function's caller may compute.

        Args:
          results: Its results.
        """
        for atom in results:
            if atom in self._lengths:
                self._require(atom, None)

    def _note(
        self,
        name: Name,
        equation: Equation,
        column: Column,
    ) -> None:
        self._lengths[name] = equation
        self._columns[name] = column

    def _require(self, atom: Atom, inner: IndexSpace | None) -> None:
        """Adds a check of a length, for all rows or wherever the sequence that uses the length has elements."""
        column = self._columns[atom].inside(self._region.space)
        equation = self._lengths[atom]
        self._low.host.draft.checks.append(
            lambda data: _check(
                data,
                self._region,
                column,
                inner,
                equation,
            )
        )


class Extremes:
    """The largest and smallest elements in a function: an error where there are no elements, as in JAX.

    It is none where another number is joined, as `initial` of `jnp.max` is. `argmax` and `argmin` have no such number.

    Args:
      low: The lowering.
      region: Where the function is computed.
    """

    def __init__(self, low: RowLowering, region: Region):
        self._low = low
        self._region = region
        self._found: dict[Atom, tuple[Equation, IndexSpace]] = {}

    def see(
        self,
        equation: Equation,
        values: Sequence[Value],
    ) -> None:
        """Notes an equation.

        Args:
          equation: The equation.
          values: Its operands.
        """
        name = "" if equation.call else equation.source.primitive.name
        for atom in equation.inputs:
            if atom in self._found and _JOINED.get(name) != self._reduction(atom):
                self._require(atom)
        if name not in _EXTREMES:
            return
        space = _reduced_space(equation, values[0])
        if space is None:
            return
        self._found[equation.outputs[0]] = equation, space
        if name in ("argmax", "argmin"):
            self._require(equation.outputs[0])

    def end(self, results: Sequence[Atom]) -> None:
        """Notes the results of the function.

        Args:
          results: Its results.
        """
        for atom in results:
            if atom in self._found:
                self._require(atom)

    def _reduction(self, atom: Atom) -> str:
        return self._found[atom][0].source.primitive.name

    def _require(self, atom: Atom) -> None:
        """Adds the check that there are elements."""
        equation, space = self._found.pop(atom)
        region = self._region
        around = space.parent
        assert around is not None
        own = region.within(around)
        self._low.host.draft.checks.append(
            lambda data: _check_any(
                data,
                own,
                space,
                equation,
            )
        )


_EXTREMES = ("reduce_max", "reduce_min", "argmax", "argmin")
_JOINED = {"max": "reduce_max", "min": "reduce_min"}


def _reduced_space(equation: Equation, value: Value) -> IndexSpace | None:
    """The space of the elements that an operation reduces; None for axes of fixed size."""
    axes = equation.source.params["axes"]
    given = equation.inputs[0]
    if isinstance(given, Known):
        return None
    for axis, size in enumerate(given.aval.shape):
        if not isinstance(value, Elements):
            return None
        if is_known_length(size):
            continue
        if axis in axes:
            return value.space
        value = value.element
    return None


def _check_any(
    data: Any,
    region: Region,
    space: IndexSpace,
    equation: Equation,
) -> None:
    """Checks that there are elements."""
    is_empty = space.lengths(data) == 0
    for row in region.rows_where(data, is_empty)[:1].tolist():
        what = "smallest" if "min" in equation.source.primitive.name else "largest"
        raise DataError(
            f"{equation.line}, instance {region.space.instances(data)[row]}",
            f"an element, as the {what} of `{space.dimension}` elements is taken",
            "none",
            "Say what it is then, as in `jnp.max(xs, initial=0)`; or use `amp.cond` of `amp.length`.",
        )


def _check(
    data: Any,
    region: Region,
    column: Column,
    inner: IndexSpace | None,
    equation: Equation,
) -> None:
    """Checks that an expression of lengths is not below 0."""
    sizes = column.of(data)
    is_wrong = sizes < 0
    if inner is not None:
        is_wrong = is_wrong & (inner.lengths(data) > 0)
    for row in region.rows_where(data, is_wrong)[:1].tolist():
        raise DataError(
            f"{equation.line}, instance {column.space.instances(data)[row]}",
            f"a length `{equation.source.params['dim']}` from 0",
            f"{sizes[row]}",
            "Use it only where the sequence is long enough, in `amp.cond` of `amp.length`; or use `amp.length` of what was cut.",
        )
