"""Finds equations of a jaxpr that do the same to many arrays, so that they can be done at once, for lanes of one array.

A model that reads a hundred tables one by one has a hundred times the equations of one that reads a stack of them, and takes as much longer to
compile. Equations are equal if primitive, parameters and shapes are, and if each operand is the same for all, a literal, or comes
from equations that are equal themselves. Knows jaxprs; nothing of tables.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from ampjax.jaxprs.content import settings
from ampjax.jaxprs.primitives import bind
from ampjax.jaxprs.rowwise import ELEMENTWISE

FEWEST_LANES = 4
"""Equal equations that are done at once, at least."""

_MOVING = (
    "slice",
    "dynamic_slice",
    "squeeze",
    "reshape",
    "broadcast_in_dim",
    "transpose",
    "gather",
    "rev",
    "iota",
)
_FOLDING = (
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_and",
    "reduce_or",
    "reduce_prod",
    "argmax",
    "argmin",
)
_KNOWN = frozenset((*ELEMENTWISE, *_MOVING, *_FOLDING))
"""Primitives without side effects and of little memory. Matrix products are not among them: a program may make them one by one to save memory."""


class Same(NamedTuple):
    """An operand that is the same for all lanes.

    Args:
      atom: The variable, or the literal.
    """

    atom: Any


class Numbers(NamedTuple):
    """An operand that is another literal for each lane.

    Args:
      values: `[n, ...]`.
    """

    values: np.ndarray


class Given(NamedTuple):
    """An operand that is a given variable.

    Args:
      atoms: By lane the variable.
    """

    atoms: tuple[Any, ...]


class LaneInputs(NamedTuple):
    """An operand that is an input.

    Args:
      atoms: By lane the variable.
    """

    atoms: tuple[Any, ...]


class Of(NamedTuple):
    """An operand that is a result of equal equations.

    Args:
      group: The number of their group.
      out: Which of their results.
      lanes: By lane, which of the equations.
    """

    group: int
    out: int
    lanes: tuple[int, ...]


Operand = Same | Numbers | Given | LaneInputs | Of


@dataclass(frozen=True)
class LaneGroup:
    """Equal equations.

    Args:
      places: Their numbers in the jaxpr, rising; each is a lane.
      equation: The first of them.
      operands: Their operands.
      starts: By lane where it begins to slice; None if they are no slices, or begin at the same place.
    """

    places: tuple[int, ...]
    equation: Any
    operands: tuple[Operand, ...]
    starts: np.ndarray | None

    @property
    def given(self) -> Sequence[Any]:
        """The given variables that the group reads, by lane; none if no such variable is read."""
        if self.operands and isinstance(self.operands[0], Given):
            return self.operands[0].atoms
        return ()


def find_groups(
    jaxpr: Any,
    given: Mapping[Any, Hashable],
    reads: Collection[int],
    inputs: Collection[Any] = (),
) -> dict[int, LaneGroup]:
    """Finds groups of equal equations around reads of some given variables.

    Args:
      jaxpr: An open jaxpr.
      given: Variables that may differ between lanes, with what they must have in common.
      reads: Numbers of equations that read such a variable, their first operand. Others that use one are in no group.
      inputs: Inputs that may differ between lanes where they have one shape and dtype.

    Returns:
      By number, groups of which each reads given variables, or is connected with one that does by its operands.
    """
    keys = {}
    for i, eqn in enumerate(jaxpr.eqns):
        if (
            eqn.primitive.name in _KNOWN
            and not eqn.effects
            and (i in reads or not _uses(eqn, given))
        ):
            keys[i] = _settings(eqn)
    search = _GroupSearch(jaxpr, given, {*inputs})
    while True:
        groups = search.groups(keys)
        gone = []
        for group in groups.values():
            if len(group.places) < FEWEST_LANES or not _varies(group):
                gone.append(group)
        if not gone:
            return _find_connected(groups)
        for group in gone:
            if not _varies(group):
                search.note_copies(group.places)
            for place in group.places:
                del keys[place]


def _uses(eqn: Any, lanes: Mapping[Any, Hashable]) -> bool:
    return any(not isinstance(atom, Literal) and atom in lanes for atom in eqn.invars)


def _settings(eqn: Any) -> Hashable:
    """Collects the parameters of an equation that must be equal among lanes."""
    params = dict(eqn.params)
    if _may_start_anywhere(eqn):
        del params["start_indices"], params["limit_indices"]
    shapes = tuple((var.aval.shape, var.aval.dtype) for var in eqn.outvars)
    values: Hashable = tuple(params.items())
    try:
        hash(
            values
        )  # most parameters can be compared as they are, in less time than what they mean
    except TypeError:
        values = settings(eqn.replace(params=params))
    if eqn.primitive.name == "gather":  # it may fill with NaN
        values = settings(eqn.replace(params=params))
    return eqn.primitive, values, shapes


def _may_start_anywhere(eqn: Any) -> bool:
    return eqn.primitive.name == "slice" and set(eqn.params["strides"] or (1,)) == {1}


class _GroupSearch:
    """Puts equations together by all that has to be equal.

    Args:
      jaxpr: An open jaxpr.
      lanes: Variables that reads may read, with what these must have in common.
      inputs: Inputs that may differ between lanes.
    """

    def __init__(
        self,
        jaxpr: Any,
        lanes: Mapping[Any, Hashable],
        inputs: Collection[Any],
    ):
        self._jaxpr = jaxpr
        self._given = lanes
        self._inputs = inputs
        self._copy_of: dict[Any, Any] = {}
        self._made: dict[Any, tuple[int, int, int]] = {}  # by variable its group, result and lane

    def note_copies(self, places: Sequence[int]) -> None:
        """Notes that some equations compute the same."""
        first, *others = (self._jaxpr.eqns[place] for place in places)
        for eqn in others:
            self._copy_of.update(zip(eqn.outvars, first.outvars, strict=True))

    def groups(
        self,
        keys: Mapping[int, Hashable],
    ) -> dict[int, LaneGroup]:
        """Equal equations, by number.

        Args:
          keys: By number of an equation that may be among others what must be equal of it.
        """
        numbers: dict[Hashable, int] = {}
        members: dict[int, list[int]] = {}
        self._made.clear()
        for i, key in keys.items():
            eqn = self._jaxpr.eqns[i]
            number = numbers.setdefault(
                (key, tuple(map(self._kind, eqn.invars))),
                len(numbers),
            )
            places = members.setdefault(number, [])
            self._made |= {var: (number, out, len(places)) for out, var in enumerate(eqn.outvars)}
            places.append(i)
        return {number: self._group(places) for number, places in members.items()}

    def _kind(self, atom: Any) -> Hashable:
        aval: Any = atom.aval
        if isinstance(atom, Literal):
            return "literal", aval.shape, aval.dtype
        if atom in self._given:
            return "given", self._given[atom]
        if atom in self._inputs:
            return "input", aval.shape, aval.dtype
        if atom in self._made:
            return ("result", *self._made[atom][:2])
        return self._copy_of.get(atom, atom)

    def _group(self, places: Sequence[int]) -> LaneGroup:
        eqns = [self._jaxpr.eqns[i] for i in places]
        operands = tuple(
            map(
                self._operand,
                zip(*(eqn.invars for eqn in eqns), strict=True),
            )
        )
        starts = None
        if _may_start_anywhere(eqns[0]):
            each = np.array([eqn.params["start_indices"] for eqn in eqns])
            starts = each if (each != each[0]).any() else None
        return LaneGroup(tuple(places), eqns[0], operands, starts)

    def _operand(self, atoms: Sequence[Any]) -> Operand:
        first = atoms[0]
        if isinstance(first, Literal):
            aval: Any = first.aval
            values = np.stack([np.asarray(atom.val, aval.dtype) for atom in atoms])
            if (values == values[0]).all():
                return Same(first)
            return Numbers(values)
        if first in self._given:
            return Given(tuple(atoms))
        if first in self._inputs and any(atom is not first for atom in atoms):
            return LaneInputs(tuple(atoms))
        if first in self._made:
            group, out, _ = self._made[first]
            return Of(
                group,
                out,
                tuple(self._made[atom][2] for atom in atoms),
            )
        return Same(self._copy_of.get(first, first))


def _varies(group: LaneGroup) -> bool:
    """Tells whether lanes do different things, and not one thing several times."""
    return group.starts is not None or any(
        not isinstance(operand, Same) for operand in group.operands
    )


def _find_connected(groups: Mapping[int, LaneGroup]) -> dict[int, LaneGroup]:
    """The groups that are connected with one that reads given variables."""
    neighbours: dict[int, set[int]] = {number: set() for number in groups}
    for number, group in groups.items():
        for operand in group.operands:
            if isinstance(operand, Of):
                neighbours[number].add(operand.group)
                neighbours[operand.group].add(number)
    left = [number for number, group in groups.items() if group.given]
    connected = set(left)
    while left:
        new = neighbours[left.pop()] - connected
        connected |= new
        left.extend(new)
    return {number: group for number, group in groups.items() if number in connected}


# ---- lanes of one array ------------------------------------------------------------------------------------------------


class LaneBatch:
    """The results of equal equations: lanes of one array.

    Args:
      array: `[n, ...]`.
    """

    def __init__(self, array: Any):
        self.array = array
        self._lanes: list[Any] | None = None

    def lane(self, number: int) -> Any:
        """One result by itself.

        Args:
          number: The lane.
        """
        if self._lanes is None:
            self._lanes = list(jnp.unstack(self.array))  # the gradient of all is one array, too
        return self._lanes[number]

    def take(self, lanes: Sequence[int]) -> Any:
        """Some results in some order, `[k, ...]`.

        Args:
          lanes: Their lanes.
        """
        n = self.array.shape[0]
        if tuple(lanes) == tuple(range(n)):
            return self.array
        start = lanes[0]
        stop = lanes[0] + len(lanes)
        if tuple(lanes) == tuple(range(start, stop)):
            return self.array[start:stop]
        return self.array[np.array(lanes)]


class LaneRun(NamedTuple):
    """Consecutive lanes along one of their axes: the value of a concatenation of them.

    Args:
      batch: The results.
      lanes: Which of them.
      axis: The axis; None for a single one.
    """

    batch: LaneBatch
    lanes: tuple[int, ...]
    axis: int | None = None

    def whole(self) -> Any:
        """The array."""
        if self.axis is None:
            return self.batch.lane(self.lanes[0])
        parts = self.batch.take(self.lanes)
        axis = self.axis
        shape = list(parts.shape[1:])
        shape[axis] *= parts.shape[0]
        return jnp.moveaxis(parts, 0, axis).reshape(shape)


def join_lanes(eqn: Any, values: Sequence[Any]) -> Any:
    """The result of a concatenation or a stack of lanes, without an operand for each.

    Args:
      eqn: Any equation.
      values: The values of its operands; a `LaneRun` in the place of lanes.

    Returns:
      A `LaneRun`, or an array; None if the equation does something else.
    """
    runs = [value for value in values if isinstance(value, LaneRun)]
    if (
        eqn.primitive.name not in ("concatenate", "stack")
        or len(runs) < len(values)
        or len(runs) < FEWEST_LANES // 2
    ):
        return None
    batch = runs[0].batch
    if any(run.batch is not batch for run in runs):
        return None
    lanes = tuple(lane for run in runs for lane in run.lanes)
    axis = eqn.params.get("dimension", eqn.params.get("axis"))
    if eqn.primitive.name == "stack":
        if all(run.axis is None for run in runs):
            return jnp.moveaxis(batch.take(lanes), 0, axis)
        return None
    if all(run.axis in (None, axis) for run in runs):
        return LaneRun(batch, lanes, axis)
    return None


def compute_group(group: LaneGroup, operands: Sequence[Any]) -> list[Any]:
    """The results of equal equations, `[n, ...]` each.

    Args:
      group: The equations.
      operands: The values of their operands: of one that is `Same` as it is, of others `[n, ...]`.
    """
    eqn = group.equation
    if group.starts is not None:
        return [_slices(group, operands[0])]
    axes = [None if isinstance(operand, Same) else 0 for operand in group.operands]
    return jax.vmap(
        lambda *args: bind(eqn, args),
        in_axes=axes,
        axis_size=len(group.places),
    )(*operands)


def _slices(group: LaneGroup, value: Any) -> Any:
    """Slices of one array, or of lanes, each from another place."""
    starts = group.starts
    shape = group.equation.outvars[0].aval.shape
    assert starts is not None
    is_same = isinstance(group.operands[0], Same)
    moving = np.flatnonzero((starts != starts[0]).any(0))
    axis = int(moving[0])
    if is_same and len(moving) == 1 and (np.diff(starts[:, axis]) == shape[axis]).all():
        whole = jax.lax.slice(
            value,
            starts[0],
            starts[-1] + shape,
        )  # one slice behind the other
        parts = whole.reshape(
            *shape[:axis],
            len(starts),
            *shape[axis:],
        )
        return jnp.moveaxis(parts, axis, 0)
    slices = jax.vmap(
        lambda rows, start: jax.lax.dynamic_slice(rows, start, shape),
        (None if is_same else 0, 0),
    )
    return slices(value, jnp.asarray(starts, jnp.int32))


def places_of(groups: Iterable[LaneGroup]) -> dict[int, LaneGroup]:
    """By number of an equation its group."""
    result = {}
    for group in groups:
        for place in group.places:
            result[place] = group
    return result
