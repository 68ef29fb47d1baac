"""Runs a loss function's jaxpr with pulled rows in the place of its tables, or only the part on which row ids depend.

One walk does both. When it collects ids, reads give zeros and their ids are returned. When it computes, each read takes its rows from the
pulled ones. Control flow is in `control_flow`; what a single read means is in `row_reads`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ampjax.errors import InvariantError
from ampjax.jaxprs import primitives
from ampjax.jaxprs.primitives import Path
from ampjax.sparse.detection import row_reads, table_views
from ampjax.sparse.detection.gradient_stops import Repeated, chosen_value, is_repeated, whole_of
from ampjax.sparse.detection.table_views import TableView
from ampjax.sparse.rewrite import control_flow
from ampjax.sparse.rewrite.lane_walk import Lanes, walk_lanes

Positions = Mapping[Path, Any]
"""By read and segment, int32 positions of its rows among the pulled ones; one axis more for each scan around it."""

FoundIds = dict[Path, Any]
"""By read and segment, int32 row ids, with the same axes."""


@dataclasses.dataclass(frozen=True)
class RowInterpreter:
    """The settings of a walk through a jaxpr.

    Args:
      n_rows: By sparse leaf, the rows of its table.
      sites: By place and segment, the leaf of every read of a sparse leaf.
      collecting: Whether ids are wanted, or the result.
      lanes: What is done at once in the loss function's own jaxpr.
    """

    n_rows: Mapping[int, int]
    sites: Mapping[Path, int]
    collecting: bool
    lanes: Lanes = dataclasses.field(default_factory=Lanes)

    def run(
        self,
        jaxpr: Any,
        args: Sequence[Any],
        known: Positions,
        path: Path = (),
    ) -> tuple[list[Any], FoundIds]:
        """Walks a jaxpr.

        Args:
          jaxpr: A closed jaxpr, or a pair of a jaxpr and its constants.
          args: Values of its inputs; a `TableView` for each table.
          known: Positions of the reads in it, empty where ids are collected.
          path: Where the jaxpr stands.

        Returns:
          The values of its outputs, and the ids that were found, empty where none are collected.
        """
        body, consts = jaxpr if isinstance(jaxpr, tuple) else primitives.opened(jaxpr)
        if self.lanes.groups and not path:
            return walk_lanes(self, self.lanes, (body, consts), args, known)
        env = dict(zip([*body.constvars, *body.invars], [*consts, *args], strict=True))
        ids: FoundIds = {}
        makers: dict[Any, Any] = {}
        for i, eqn in enumerate(body.eqns):
            ins = [primitives.value_of(v, env) for v in eqn.invars]
            outs, more = self.step(
                eqn,
                ins,
                known,
                (*path, i),
                makers,
            )
            env.update(zip(eqn.outvars, outs, strict=True))
            makers.update(dict.fromkeys(eqn.outvars, eqn))
            ids.update(more)
        return [whole_of(primitives.value_of(v, env)) for v in body.outvars], ids

    def below(self, path: Path) -> dict[Path, int]:
        """The reads inside an equation.

        Returns:
          By the read's place its leaf.
        """
        result = {}
        for site, leaf in self.sites.items():
            if site[: len(path)] == path:
                result[site] = leaf
        return result

    def step(
        self,
        eqn: Any,
        ins: list[Any],
        known: Positions,
        path: Path,
        makers: Mapping[Any, Any],
    ) -> tuple[list[Any], FoundIds]:
        """One equation of the walk.

        Args:
          eqn: The equation.
          ins: The values of its operands; some may be `Repeated`.
          known: As for `run`.
          path: Its place.
          makers: By variable the equation of the same jaxpr that makes it.

        Returns:
          The values of its results, and the ids that were found in it.
        """
        if (chosen := chosen_value(eqn, ins, makers)) is not None:
            return [chosen], {}
        ins = [whole_of(v) for v in ins]
        touched = any(isinstance(v, TableView) for v in ins)
        rule = control_flow.RULES.get(eqn.primitive.name)
        if rule is not None and (touched or (self.collecting and eqn.effects)):
            inside = {}
            for site in self.below(path):
                if site in known:
                    inside[site] = known[site]
            return rule(self, eqn, ins, inside, path)
        if not touched:
            return self._without_tables(eqn, ins), {}
        if isinstance(ins[0], TableView) and row_reads.is_read(eqn, ins[0]):
            return self._read(eqn, ins, known, path)
        outs = table_views.views_of_results(eqn, ins) or [row_reads.write_rows(eqn, ins)]
        if outs[0] is None:
            raise InvariantError(
                f"{eqn.primitive.name} at {path}",
                "a read of rows",
                "another use",
                "Please report this program.",
            )
        return outs, {}

    def _without_tables(self, eqn: Any, ins: Sequence[Any]) -> list[Any]:
        """Computes an equation that reads no table; repeats of a value stay a note."""
        if is_repeated(eqn):
            return [Repeated(eqn, ins[0])]
        if self.collecting and eqn.primitive.name in primitives.CALLBACKS:
            return [primitives.blank(v.aval) for v in eqn.outvars]
        return primitives.bind(eqn, ins)

    def _read(
        self, eqn: Any, ins: list[Any], known: Positions, path: Path
    ) -> tuple[list[Any], FoundIds]:
        if self.collecting:
            ids = row_reads.row_ids(eqn, ins, self.n_rows)
            return [primitives.blank(eqn.outvars[0].aval)], {
                (*path, k): row_ids for k, row_ids in ids.items()
            }
        positions = {}
        for k, segment in enumerate(ins[0].segments):
            if segment.leaf is not None:
                positions[k] = known[(*path, k)]
        return [row_reads.read_rows(eqn, ins, positions)], {}
