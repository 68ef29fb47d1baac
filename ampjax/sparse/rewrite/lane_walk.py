"""The walk through a loss function in which equal equations around reads of stacked tables are done at once (`ampjax.jaxprs.lanes`).

It is made of the same steps as the walk that does one equation after the other, and finds the same ids in another order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax.extend.core import Literal

from ampjax.jaxprs.lanes import (
    LaneBatch,
    LaneGroup,
    LaneInputs,
    LaneRun,
    Numbers,
    Of,
    Same,
    compute_group,
    find_groups,
    join_lanes,
    places_of,
)
from ampjax.sparse.detection.gradient_stops import whole_of
from ampjax.sparse.detection.loss_jaxpr import TracedLoss
from ampjax.sparse.detection.row_reads import LaneReads

if TYPE_CHECKING:
    from ampjax.sparse.rewrite.evaluate import FoundIds, Positions, RowInterpreter

_READS = ("gather", "dynamic_slice")
_CASTS = ("convert_element_type", "copy", "stop_gradient", "reduce_precision")
"""Operations that leave a table whole."""


@dataclasses.dataclass(frozen=True)
class Lanes:
    """Equal equations that are computed at once.

    Args:
      groups: By number a group of equal equations.
      casts: Equations that cast a stacked table, which are done first.
    """

    groups: Mapping[int, LaneGroup] = dataclasses.field(default_factory=dict)
    casts: tuple[int, ...] = ()

    @property
    def repeated(self) -> set[int]:
        """The reads that are made together with earlier ones."""
        result = set()
        for group in self.groups.values():
            if group.given:
                for place in group.places[1:]:
                    result.add(place)
        return result


def find_lanes(
    traced: TracedLoss,
    tables: Mapping[int, str],
    axes: Mapping[int, tuple[int, ...]],
) -> Lanes:
    """Finds equal equations around reads of stacked tables.

    Args:
      traced: The loss function.
      tables: By leaf whose rows are stacked with others' the table that holds them.
      axes: By leaf, the axes along which its rows are counted.

    Returns:
      What can be done at once; nothing if no tables are stacked.
    """
    given: dict[Any, Any] = {}
    for leaf, table in tables.items():
        shape = traced.leaves[leaf].shape
        # Rows that are counted along several axes are numbered by the sizes of these.
        counted = shape if len(axes[leaf]) > 1 else ()
        given[traced.jaxpr.invars[leaf]] = table, axes[leaf], counted
    reads = []
    casts = []
    for i, eqn in enumerate(traced.jaxpr.eqns if given else ()):
        first = eqn.invars[0] if eqn.invars else None
        if isinstance(first, Literal) or first not in given:
            continue
        if eqn.primitive.name in _READS:
            reads.append(i)
        elif eqn.primitive.name in _CASTS:
            given[eqn.outvars[0]] = given[first], eqn.primitive.name, eqn.outvars[0].aval.dtype
            casts.append(i)
    batch = traced.jaxpr.invars[len(traced.leaves) :]
    if reads:
        return Lanes(
            find_groups(traced.jaxpr, given, reads, batch),
            tuple(casts),
        )
    return Lanes()


def walk_lanes(
    interpreter: RowInterpreter,
    lanes: Lanes,
    jaxpr: tuple[Any, Sequence[Any]],
    args: Sequence[Any],
    known: Positions,
) -> tuple[list[Any], FoundIds]:
    """Walks a loss function's jaxpr.

    Args:
      interpreter: What does single equations.
      lanes: What is done at once.
      jaxpr: The jaxpr and its constants.
      args: Values of its inputs; a `TableView` for each table.
      known: Positions of the reads in it, empty where ids are collected. Reads that are done at once have theirs at the first.

    Returns:
      The values of its outputs, and the ids that were found, in the places of the positions.
    """
    body, consts = jaxpr
    walk = _Walk(
        interpreter,
        lanes,
        known,
        dict(zip([*body.constvars, *body.invars], [*consts, *args], strict=True)),
    )
    places = places_of(lanes.groups.values())
    for i in lanes.casts:
        walk.one(body.eqns[i], i)
    for i, eqn in enumerate(body.eqns):
        if i in lanes.casts:
            continue
        if i not in places:
            walk.one(eqn, i)
        elif places[i].places[0] == i:
            walk.evaluate_group(body, places[i])
    return [walk.value(v) for v in body.outvars], walk.found


class _Walk:
    """Values and ids that are known by now.

    Args:
      interpreter: What does single equations.
      lanes: What is done at once.
      known: Positions of reads.
      env: Values by variable; a `LaneRun` in the place of a lane.
    """

    def __init__(
        self,
        interpreter: RowInterpreter,
        lanes: Lanes,
        known: Positions,
        env: dict[Any, Any],
    ):
        self._interpreter = interpreter
        self._lanes = lanes
        self._known = known
        self._env = env
        self._batches: dict[tuple[int, int], LaneBatch] = {}
        self._numbers = {id(group): number for number, group in lanes.groups.items()}
        self._made: dict[Any, Any] = {}
        self.found: FoundIds = {}

    def value(self, atom: Any) -> Any:
        """The value of an operand by itself."""
        return whole_of(self._read_whole(atom))

    def _read_whole(self, atom: Any) -> Any:
        value = self._get(atom)
        return value.whole() if isinstance(value, LaneRun) else value

    def _get(self, atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else self._env[atom]

    def one(self, eqn: Any, place: int) -> None:
        """Does one equation."""
        whole = join_lanes(
            eqn,
            [self._get(atom) for atom in eqn.invars],
        )
        if whole is not None:
            self._env[eqn.outvars[0]] = whole
            return
        operands = [self._read_whole(atom) for atom in eqn.invars]
        outs, more = self._interpreter.step(
            eqn,
            operands,
            self._known,
            (place,),
            self._made,
        )
        self._env.update(zip(eqn.outvars, outs, strict=True))
        self._made.update(dict.fromkeys(eqn.outvars, eqn))
        self.found.update(more)

    def evaluate_group(self, body: Any, group: LaneGroup) -> None:
        """Does equal equations."""
        eqns = [body.eqns[place] for place in group.places]
        if not group.given:
            results = compute_group(
                group,
                [self._operand(o) for o in group.operands],
            )
        else:
            results = [self._read(eqns, group)]
        for out, result in enumerate(results):
            batch = self._batches[self._numbers[id(group)], out] = LaneBatch(result)
            for lane, eqn in enumerate(eqns):
                self._env[eqn.outvars[out]] = LaneRun(
                    batch,
                    (lane,),
                )
                self._made[eqn.outvars[out]] = eqn

    def _operand(self, operand: Any) -> Any:
        match operand:
            case Of(number, out, lanes):
                return self._batches[number, out].take(lanes)
            case Numbers(values):
                return jnp.asarray(values)
            case LaneInputs(atoms):
                return jnp.stack([self.value(atom) for atom in atoms])
            case _:
                return self.value(operand.atom)

    def _read(self, eqns: Sequence[Any], group: LaneGroup) -> Any:
        views = [self._env[var] for var in group.given]
        others = group.operands[1:]
        axes = [None if isinstance(operand, Same) else 0 for operand in others]
        reads = LaneReads(
            eqns,
            views,
            [self._operand(o) for o in others],
            axes,
        )
        site = (group.places[0], 0)
        if not self._interpreter.collecting:
            return reads.rows(self._known[site])
        self.found[site] = reads.ids(self._interpreter.n_rows[views[0].leaves[0]])
        return jnp.zeros(
            (
                len(eqns),
                *eqns[0].outvars[0].aval.shape,
            ),
            eqns[0].outvars[0].aval.dtype,
        )
