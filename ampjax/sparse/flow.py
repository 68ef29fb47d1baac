"""Follows tables and floats through a jaxpr: who reads rows, who uses a table otherwise, what row ids depend on.

An abstract interpretation: each variable is a `View` of a table, or the set of what its value depends on. Loops run until
nothing is new. Knows reads and jaxprs; nothing of leaves' names, batches or rewriting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import primitives as prim

from ampjax.sparse import jaxprs, reads
from ampjax.sparse.jaxprs import Path
from ampjax.sparse.reads import View


@dataclasses.dataclass(frozen=True)
class Cause:
    """Something other than a parameter that keeps row ids from being known before the step. `text` completes "depend on ..."."""

    text: str
    path: Path


Origin = int | Cause
"""What a value depends on: a float parameter leaf, or a cause."""

Deps = frozenset[Origin]
Value = View | Deps
NOTHING: Deps = frozenset()


@dataclasses.dataclass(frozen=True)
class Read:
    """One equation that reads whole rows.

    Args:
      leaf: The table.
      deps: What its ids depend on, and whether it takes place at all.
      mode: JAX's rule for ids outside the table.
      primitive: The primitive's name.
      line: The user's source line, or empty.
    """

    leaf: int
    deps: Deps
    mode: str
    primitive: str
    line: str


@dataclasses.dataclass
class Flow:
    """What is found while a jaxpr is followed.

    Args:
      reads: By place, every read of a table.
      uses: By table, the first other use, as text.
    """

    reads: dict[Path, Read] = dataclasses.field(default_factory=dict)
    uses: dict[int, str] = dataclasses.field(default_factory=dict)

    def run(self, jaxpr: Any, args: Sequence[Value], path: Path = (), control: Deps = NOTHING) -> list[Value]:
        """Follows values through a jaxpr.

        Args:
          jaxpr: Open or closed.
          args: What stands for each of its inputs.
          path: Where the jaxpr stands.
          control: What decides whether it runs.

        Returns:
          What stands for each of its outputs.
        """
        body, _ = jaxprs.opened(jaxpr)
        env: dict[Any, Value] = dict.fromkeys(body.constvars, NOTHING)
        env.update(zip(body.invars, args, strict=True))
        for i, eqn in enumerate(body.eqns):
            ins = [NOTHING if hasattr(v, "val") else env[v] for v in eqn.invars]
            env.update(zip(eqn.outvars, self._step(eqn, ins, (*path, i), control), strict=True))
        return [NOTHING if hasattr(v, "val") else env[v] for v in body.outvars]

    def used(self, value: Value, how: str) -> Deps:
        """Notes that a table is used as a whole; gives what the value depends on."""
        if not isinstance(value, View):
            return value
        self.uses.setdefault(value.leaf, how)
        return frozenset({value.leaf})

    def _step(self, eqn: Any, ins: list[Value], path: Path, control: Deps) -> list[Value]:
        rule = _RULES.get(eqn.primitive)
        if rule is not None:
            return rule(self, eqn, ins, path, control)
        views = [v for v in ins if isinstance(v, View)]
        if len(views) == 1 and views[0] is ins[0]:
            axis = reads.rows_axis(eqn, views[0].axis)
            if axis is not None:
                return [View(views[0].leaf, axis)]
            if reads.is_read(eqn, views[0].axis):
                return [self._read(eqn, views[0], ins[1:], path, control)]
        return self._opaque(eqn, ins, path)

    def _read(self, eqn: Any, view: View, indices: list[Value], path: Path, control: Deps) -> Deps:
        deps = union(indices) | control
        name = eqn.primitive.name
        self.reads[path] = Read(view.leaf, deps, reads.read_mode(eqn), name, jaxprs.source_line(eqn))
        return deps | {view.leaf}

    def _opaque(self, eqn: Any, ins: Sequence[Value], path: Path, how: str = "") -> list[Value]:
        """An equation of which nothing is known: what goes in may decide all that comes out."""
        deps = union([self.used(v, described(eqn, how)) for v in ins])
        if eqn.effects:
            deps |= {Cause(f"`{eqn.primitive.name}`, which has side effects", path)}
        return [deps] * len(eqn.outvars)

    # ---- calls and branches ------------------------------------------------------------------------------------------

    def _call(self, eqn: Any, ins: list[Value], path: Path, control: Deps) -> list[Value]:
        return self.run(called(eqn), ins, (*path, 0), control)

    def _custom_vjp(self, eqn: Any, ins: list[Value], path: Path, control: Deps) -> list[Value]:
        if eqn.effects or any(isinstance(v, View) for v in ins):
            return self._opaque(eqn, ins, path, "whose backward rule gives a gradient for the whole table")
        return self._call(eqn, ins, path, control)

    def _custom_jvp(self, eqn: Any, ins: list[Value], path: Path, control: Deps) -> list[Value]:
        outs = self._call(eqn, ins, path, control)
        if any(isinstance(v, View) for v in ins):
            outs = [self.used(v, described(eqn, "which returns the table")) for v in outs]
            self._jvp_rule(eqn, ins, path, control)
        return list(outs)

    def _jvp_rule(self, eqn: Any, ins: list[Value], path: Path, control: Deps) -> None:
        """The rule has to read rows only, of the table and of its tangent."""
        primals = list(zip(ins, eqn.invars, strict=True))[eqn.params["num_consts"] :]
        try:
            rule, _, _ = jaxprs.jvp_rule(eqn)
        except Exception as error:  # the user's rule: if it is ever needed, JAX shows its error
            self._opaque(eqn, ins, path, f"whose rule fails with {type(error).__name__}")
            return
        tangents = [value for value, v in primals if jaxprs.is_inexact(v.aval.dtype)]
        outs = self.run(rule, [*(value for value, _ in primals), *tangents], (*path, 1), control)
        for out in outs:
            self.used(out, described(eqn, "whose rule returns the table"))

    def _cond(self, eqn: Any, ins: list[Value], path: Path, control: Deps) -> list[Value]:
        which = self.used(ins[0], described(eqn))
        results = [
            self.run(branch, ins[1:], (*path, b), control | which) for b, branch in enumerate(eqn.params["branches"])
        ]
        how = described(eqn, "which returns the table")
        return [union([self.used(v, how) for v in outs]) | which for outs in zip(*results, strict=True)]

    # ---- loops -------------------------------------------------------------------------------------------------------

    def _scan(self, eqn: Any, ins: list[Value], path: Path, control: Deps) -> list[Value]:
        consts, init, xs = jaxprs.scan_parts(eqn, ins)
        xs = [self.used(v, described(eqn, "which runs over the rows")) for v in xs]
        body, _ = jaxprs.opened(eqn.params["jaxpr"])

        def once(carry: list[Value]) -> list[Value]:
            return self.run(body, [*consts, *carry, *xs], (*path, 0), control)

        carry = self._settle(eqn, body, len(consts), init, once)
        ys = [self.used(v, described(eqn, "which returns the table")) for v in once(carry)[len(init) :]]
        return [*carry, *ys]

    def _while(self, eqn: Any, ins: list[Value], path: Path, control: Deps) -> list[Value]:
        test_consts, consts, init = jaxprs.while_parts(eqn, ins)
        body, _ = jaxprs.opened(eqn.params["body_jaxpr"])
        # Nobody knows how many steps there will be: inside, only ids that are the same in all of them can be foreseen.
        steps = frozenset({Cause("the step of a `while` loop, whose number of steps is not known beforehand", path)})

        def once(carry: list[Value]) -> list[Value]:
            return self.run(body, [*consts, *carry], (*path, 1), control)

        moving = [v if isinstance(v, View) else v | steps for v in init]
        carry = self._settle(eqn, body, len(consts), moving, once)
        (test,) = self.run(eqn.params["cond_jaxpr"], [*test_consts, *carry], (*path, 0), control)
        decides = self.used(test, described(eqn))
        return [v if isinstance(v, View) else (v | decides) - steps for v in carry]

    def _settle(self, eqn: Any, body: Any, n_consts: int, init: list[Value], once: Callable) -> list[Value]:
        """What a loop carries when nothing new comes in any more. Tables may only be handed on as they are."""
        how = described(eqn, "which carries the table along and may change it")
        carry = [v if jaxprs.carried_unchanged(body, n_consts, i) else self.used(v, how) for i, v in enumerate(init)]
        while True:
            outs = once(carry)[: len(carry)]
            new = [
                old if isinstance(old, View) else old | self.used(out, how)
                for old, out in zip(carry, outs, strict=True)
            ]
            if new == carry:
                return carry
            carry = new


Rule = Callable[[Flow, Any, list[Value], Path, Deps], list[Value]]

_RULES: dict[Any, Rule] = {
    prim.jit_p: Flow._call,
    prim.closed_call_p: Flow._call,
    prim.remat_p: Flow._call,
    prim.custom_jvp_call_p: Flow._custom_jvp,
    prim.custom_vjp_call_p: Flow._custom_vjp,
    prim.cond_p: Flow._cond,
    prim.scan_p: Flow._scan,
    prim.while_p: Flow._while,
}


def called(eqn: Any) -> Any:
    """The jaxpr of an equation that calls one."""
    return eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]


def union(values: Sequence[Any]) -> Deps:
    """All that some values depend on."""
    return NOTHING.union(*values)


def described(eqn: Any, how: str = "") -> str:
    """An equation for a reader: its primitive, what it does to the table, and the user's line."""
    line = jaxprs.source_line(eqn)
    return f"`{eqn.primitive.name}`" + (f", {how}" if how else "") + (f" ({line})" if line else "")
