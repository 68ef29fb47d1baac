"""Follows tables and floats through a jaxpr: reads of rows, other uses of a table, and the origins of row ids.

An abstract interpretation: each variable is a `TableView` of a table, or the set of what its value depends on. Loops are followed until
another step adds nothing. Knows reads and jaxprs; nothing of leaves' names, batches or rewriting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.core import Literal
from jax.extend.core import primitives as prim

from ampjax.jaxprs import primitives
from ampjax.jaxprs.primitives import Path
from ampjax.sparse.detection import row_reads as reads
from ampjax.sparse.detection import table_views
from ampjax.sparse.detection.findings import (
    NOTHING,
    Cause,
    Deps,
    Draw,
    EquationPlace,
    Read,
    Value,
    origins_of_choice,
    origins_of_rows,
    union,
)
from ampjax.sparse.detection.gradient_stops import chosen_value
from ampjax.sparse.detection.table_views import TableView


@dataclasses.dataclass
class TableFlow:
    """A walk through a jaxpr that collects findings.

    Args:
      reads: By place and segment of what is read, every read of a table.
      uses: By table, the first other use, as text.
      draws: By place, every draw of random numbers.
    """

    reads: dict[Path, Read] = dataclasses.field(default_factory=dict)
    uses: dict[int, str] = dataclasses.field(default_factory=dict)
    draws: dict[Path, Draw] = dataclasses.field(default_factory=dict)

    def run(
        self,
        jaxpr: Any,
        args: Sequence[Value],
        place: EquationPlace,
    ) -> list[Value]:
        """Follows values through a jaxpr.

        Args:
          jaxpr: Open or closed.
          args: What stands for each of its inputs.
          place: Where it stands.

        Returns:
          What stands for each of its outputs.
        """
        body, _ = primitives.opened(jaxpr)
        env: dict[Any, Value] = dict.fromkeys(body.constvars, NOTHING)
        env.update(zip(body.invars, args, strict=True))

        def value(atom: Any) -> Value:
            return NOTHING if isinstance(atom, Literal) else env[atom]

        makers: dict[Any, Any] = {}
        for i, eqn in enumerate(body.eqns):
            outs = self._step(
                eqn,
                [value(v) for v in eqn.invars],
                place / i,
                makers,
            )
            env.update(zip(eqn.outvars, outs, strict=True))
            makers.update(dict.fromkeys(eqn.outvars, eqn))
        return [value(v) for v in body.outvars]

    def note_use(self, value: Value, how: str) -> Deps:
        """Notes that tables are used as wholes.

        Args:
          value: What stands for a value: a view, or what it depends on.
          how: The use, for the leaf's reason.

        Returns:
          What the value depends on.
        """
        if not isinstance(value, TableView):
            return value
        for leaf in value.leaves:
            self.uses.setdefault(leaf, how)
        return origins_of_rows(value) | origins_of_choice(value)

    def _step(
        self,
        eqn: Any,
        ins: list[Value],
        place: EquationPlace,
        makers: Mapping[Any, Any],
    ) -> list[Value]:
        rule = _RULES.get(eqn.primitive.name)
        if rule is not None:
            return rule(
                self,
                eqn,
                ins,
                dataclasses.replace(place, line=place.line_of(eqn)),
            )
        if eqn.primitive.name in primitives.DRAWS:
            self.draws[place.path] = Draw(
                union(ins[:1]),
                eqn.outvars[-1].aval.shape,
                place.line_of(eqn),
            )
        if (chosen := chosen_value(eqn, ins, makers)) is not None:
            return [chosen]
        if not any(isinstance(v, TableView) for v in ins):
            return self._opaque(eqn, ins, place)
        view, *others = ins
        if isinstance(view, TableView) and reads.is_read(eqn, view):
            return [
                self._read(
                    eqn,
                    view,
                    [self._all_used([v], eqn, place) for v in others],
                    place,
                )
            ]
        moved = table_views.views_of_results(eqn, ins)
        if moved is None and isinstance(view, TableView) and eqn.primitive is prim.scatter_p:
            written = reads.write_rows(
                eqn,
                [
                    view,
                    *(self._all_used([v], eqn, place) for v in others),
                ],
            )
            moved = written and [written]
        if moved:
            return list(moved)
        return self._opaque(
            eqn,
            ins,
            place,
            _BROKEN.get(eqn.primitive.name, ""),
        )

    def _read(
        self,
        eqn: Any,
        view: TableView,
        indices: list[Value],
        place: EquationPlace,
    ) -> Deps:
        deps = union(indices) | place.control | origins_of_choice(view)
        mode = reads.read_mode(eqn)
        name = eqn.primitive.name
        line = place.line_of(eqn)
        for k, segment in enumerate(view.segments):
            if segment.leaf is not None:
                self.reads[(*place.path, k)] = Read(
                    segment.leaf,
                    deps,
                    mode,
                    name,
                    line,
                    view,
                )
        return deps | origins_of_rows(view)

    def _opaque(
        self,
        eqn: Any,
        ins: Sequence[Value],
        place: EquationPlace,
        how: str = "",
    ) -> list[Value]:
        """An equation that is not known: each result may depend on all operands."""
        deps = self._all_used(ins, eqn, place, how)
        if eqn.effects:
            does = (
                "reaches over replicas" if primitives.reaches_over_axes(eqn) else "has side effects"
            )
            deps |= {Cause(f"`{eqn.primitive.name}`, which {does}", place.path)}
        return [deps] * len(eqn.outvars)

    def _all_used(
        self,
        values: Sequence[Value],
        eqn: Any,
        place: EquationPlace,
        how: str = "",
    ) -> Deps:
        """Unites the origins of values, and notes that the equation uses the tables among them."""
        if not any(isinstance(v, TableView) for v in values):
            return union(values)
        line = place.line_of(eqn)
        text = (
            f"`{eqn.primitive.name}`" + (f", {how}" if how else "") + (f" ({line})" if line else "")
        )
        return union([self.note_use(v, text) for v in values])

    # ---- calls and branches ------------------------------------------------------------------------------------------

    def _call(
        self,
        eqn: Any,
        ins: list[Value],
        place: EquationPlace,
    ) -> list[Value]:
        return self.run(primitives.called(eqn), ins, place / 0)

    def _custom_vjp(
        self,
        eqn: Any,
        ins: list[Value],
        place: EquationPlace,
    ) -> list[Value]:
        if eqn.effects or any(isinstance(v, TableView) for v in ins):
            return self._opaque(
                eqn, ins, place, "whose backward rule gives a gradient for the whole table"
            )
        return self._call(eqn, ins, place)

    def _custom_jvp(
        self,
        eqn: Any,
        ins: list[Value],
        place: EquationPlace,
    ) -> list[Value]:
        outs = self._call(eqn, ins, place)
        if any(isinstance(v, TableView) for v in ins):
            outs = [self._all_used([v], eqn, place, "which returns the table") for v in outs]
            # a rule is not differentiated: second derivatives of a loss are nobody's gradient
            if not place.is_in_rule:
                self._jvp_rule(eqn, ins, place)
        return list(outs)

    def _jvp_rule(
        self,
        eqn: Any,
        ins: list[Value],
        place: EquationPlace,
    ) -> None:
        """Follows the user's rule, which must only read rows, of the table and of its tangent."""
        primals = list(zip(ins, eqn.invars, strict=True))[eqn.params["num_consts"] :]
        try:
            rule, _, _ = primitives.jvp_rule(eqn)
        except Exception as error:  # the user's rule: if it is ever needed, JAX shows its error
            self._opaque(eqn, ins, place, f"whose rule fails with {type(error).__name__}")
            return
        tangents = [value for value, v in primals if primitives.is_inexact(v.aval.dtype)]
        outs = self.run(
            rule,
            [*(value for value, _ in primals), *tangents],
            dataclasses.replace(place / 1, is_in_rule=True),
        )
        self._all_used(outs, eqn, place, "whose rule returns the table")

    def _cond(
        self,
        eqn: Any,
        ins: list[Value],
        place: EquationPlace,
    ) -> list[Value]:
        which = self._all_used(ins[:1], eqn, place)
        inside = dataclasses.replace(place, control=place.control | which)
        results = []
        for b, branch in enumerate(eqn.params["branches"]):
            results.append(self.run(branch, ins[1:], inside / b))
        outs = zip(*results, strict=True)
        return [
            self._all_used(values, eqn, place, "which returns the table") | which for values in outs
        ]

    # ---- loops -------------------------------------------------------------------------------------------------------

    def _scan(
        self,
        eqn: Any,
        ins: list[Value],
        place: EquationPlace,
    ) -> list[Value]:
        consts, init, xs = primitives.scan_parts(eqn, ins)
        items = [self._all_used([v], eqn, place, "which runs over the table's rows") for v in xs]
        body, _ = primitives.opened(eqn.params["jaxpr"])

        def once(carry: list[Value]) -> list[Value]:
            return self.run(
                body,
                [*consts, *carry, *items],
                place / 0,
            )

        carry = self._settle(
            eqn,
            place,
            body,
            len(consts),
            init,
            once,
        )
        ys = once(carry)[len(init) :]
        return [
            *carry,
            *(self._all_used([v], eqn, place, "which returns the table") for v in ys),
        ]

    def _while(
        self,
        eqn: Any,
        ins: list[Value],
        place: EquationPlace,
    ) -> list[Value]:
        test_consts, consts, init = primitives.while_parts(eqn, ins)
        body, _ = primitives.opened(eqn.params["body_jaxpr"])
        # Nobody knows how many steps there will be: inside, only ids that are the same in all of them can be foreseen.
        steps = frozenset(
            {Cause("the step of a `while` loop, whose number of steps is unknown", place.path)}
        )

        def once(carry: list[Value]) -> list[Value]:
            return self.run(body, [*consts, *carry], place / 1)

        moving = [v if isinstance(v, TableView) else v | steps for v in init]
        carry = self._settle(
            eqn,
            place,
            body,
            len(consts),
            moving,
            once,
        )
        test = self.run(
            eqn.params["cond_jaxpr"],
            [*test_consts, *carry],
            place / 0,
        )
        decides = self._all_used(test, eqn, place)
        result = []
        for v in carry:
            result.append(v if isinstance(v, TableView) else (v | decides) - steps)
        return result

    def _settle(
        self,
        eqn: Any,
        place: EquationPlace,
        body: Any,
        n_consts: int,
        init: Sequence[Value],
        once: Callable,
    ) -> list[Value]:
        """Iterates a loop's carry until another step adds nothing. Tables must be passed on unchanged."""

        def find_used(value: Value) -> Deps:
            return self._all_used(
                [value], eqn, place, "which carries the table along and may change it"
            )

        same = []
        for i in range(len(init)):
            same.append(primitives.carried_unchanged(body, n_consts, i))
        carry = []
        # A table that the body may change is used as a whole, once and for all.
        for v, unchanged in zip(init, same, strict=True):
            carry.append(v if unchanged else find_used(v))
        # Origins only grow, and there are finitely many, so this ends.
        while True:
            pairs = zip(
                carry,
                once(carry)[: len(carry)],
                strict=True,
            )
            new = []
            for old, out in pairs:
                new.append(old if isinstance(old, TableView) else old | find_used(out))
            if new == carry:
                return carry
            carry = new


_BROKEN = {
    "gather": "which does not read whole rows",
    "dynamic_slice": "which does not read whole rows, one by one",
    "concatenate": "after which whole rows don't follow each other",
    "stack": "after which whole rows don't follow each other",
    "reshape": "which takes rows apart",
    "scatter": f"which does not write over whole rows, {reads.MAX_WRITTEN} at most",
}
"""Equations that can work on rows, and the reason that is given if one does not."""

Rule = Callable[[TableFlow, Any, list[Value], EquationPlace], list[Value]]

_RULES: dict[str, Rule] = {
    **dict.fromkeys((*primitives.CALLS, *primitives.REMATERIALIZED), TableFlow._call),
    "custom_jvp_call": TableFlow._custom_jvp,
    "custom_vjp_call": TableFlow._custom_vjp,
    "cond": TableFlow._cond,
    "scan": TableFlow._scan,
    "while": TableFlow._while,
}
