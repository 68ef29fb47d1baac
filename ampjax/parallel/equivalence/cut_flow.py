"""Follows cut values through a loss function, in two programs at a time: for a part of a batch and for the joined batch.

Loops are followed until another step adds nothing. Where an operation mixes examples, some of its operands may follow from the batch alone, as
a sum of weights does. Then it is asked what these are in the batch at hand: if all replicas have the same sum of weights, a quotient by it
mixes nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from ampjax.devices.random_keys import is_key
from ampjax.jaxprs import primitives
from ampjax.jaxprs.content import content
from ampjax.jaxprs.flat_calls import CALLS
from ampjax.jaxprs.rowwise import ELEMENTWISE
from ampjax.parallel.equivalence.cut_indexing import INDEXING
from ampjax.parallel.equivalence.cut_products import PRODUCTS
from ampjax.parallel.equivalence.cut_rules import RULES, Pair
from ampjax.parallel.equivalence.cuts import (
    Cut,
    Value,
    constant,
    cut_of,
    elementwise,
    grown_axis,
    move_cut,
)

Ask = Callable[[Any, Any], Value]
"""From a variable of the program for a part and the same of the program for the joined batch, both of the batch alone, to the cut of its value."""

_MORE = (
    "igamma",
    "igammac",
    "bessel_i0e",
    "bessel_i1e",
    "polygamma",
    "zeta",
    "regularized_incomplete_beta",
    "bitcast_convert_type",
    "device_put",
)


@dataclasses.dataclass
class CutFlow:
    """Follows two programs.

    Args:
      n: The number of parts.
      ask: Asks for the cut of what follows from the batch alone.

    Attributes:
      mixing: The first operation in the program's order that mixes examples; None if none does.
    """

    n: int
    ask: Ask
    mixing: Any = None

    def run(
        self,
        part: Any,
        whole: Any,
        cuts: Sequence[Value],
        of_batch: Sequence[bool] = (),
    ) -> list[Value]:
        """The cuts of a program's results.

        Args:
          part: The jaxpr for a part, closed, or a pair of it and its constants.
          whole: That for the joined batch.
          cuts: The cuts of its inputs.
          of_batch: By input, whether it follows from the batch alone; nothing is asked where this is not given.
        """
        (part, constants), (whole, others) = map(
            _open_jaxpr,
            (part, whole),
        )
        if len(part.eqns) != len(whole.eqns) or len(constants) != len(others):
            return [None] * len(part.outvars)
        env: dict[Any, Value] = dict(zip(part.invars, cuts, strict=True))
        env.update(
            zip(
                part.constvars,
                map(
                    self._of_constant,
                    constants,
                    others,
                ),
                strict=True,
            )
        )
        alone = _batch_variables(part, of_batch)
        for small, large in zip(part.eqns, whole.eqns, strict=True):
            operands = list(zip(small.invars, large.invars, strict=True))
            ins = [self._value(*pair, env) for pair in operands]
            outs = self._results(small, large, ins)
            is_alone = of_batch and _follows_from(alone, small)
            if is_alone:
                alone |= set(small.outvars)
            elif None in outs:
                asked = []
                for (v, w), cut in zip(operands, ins, strict=True):
                    asked.append(self._ask_about(v, w, cut, alone))
                if asked != ins:
                    outs = self._results(small, large, asked)
            if None in outs and not is_alone and self.mixing is None:
                self.mixing = small
            env.update(zip(small.outvars, outs, strict=True))
        result = []
        for v, w in zip(part.outvars, whole.outvars, strict=True):
            result.append(self._value(v, w, env))
        return result

    def _value(
        self,
        part: Any,
        whole: Any,
        env: dict[Any, Value],
    ) -> Value:
        if not _is_literal(part):
            return env[part]
        if _is_literal(whole):
            return self._of_constant(part.val, whole.val)
        return None

    def _of_constant(self, part: Any, whole: Any) -> Value:
        """Finds the cut of a constant in the program. Numbers that count examples, `np.arange(n)`, have the cut of their places."""
        if is_key(part) or is_key(whole) or np.ndim(part) != np.ndim(whole):
            return None
        part = np.asarray(part)
        whole = np.asarray(whole)
        if not part.shape:
            if part.dtype != complex:
                return constant(*(float(each.astype(np.float64)) for each in (part, whole)))
            return None
        axis = grown_axis(part.shape, whole.shape)
        if (
            axis is not None
            and part.shape[axis] == part.size
            and all(
                map(
                    _counts,
                    (part, whole),
                )
            )
        ):
            return Cut("place", axis=axis)
        cut = cut_of([part] * self.n, whole)
        is_zero = cut is not None and not part.any() and not whole.any()
        if cut is not None and is_zero:
            return dataclasses.replace(cut, number=0.0)
        return cut

    def _ask_about(
        self,
        part: Any,
        whole: Any,
        cut: Value,
        alone: set[Any],
    ) -> Value:
        """Looks at the numbers of an operand that follows from the batch alone, where its cut is not known."""
        if _is_literal(part) or part not in alone:
            return cut
        is_settled = cut is not None and cut.kind != "total"
        if is_settled or jnp.issubdtype(part.aval.dtype, jax.dtypes.extended):
            return cut
        return self.ask(part, whole)

    # ---- one equation ------------------------------------------------------------------------------------------------

    def _results(
        self,
        part: Any,
        whole: Any,
        ins: list[Value],
    ) -> list[Value]:
        """The cuts of an equation's results."""
        name = part.primitive.name
        if part.primitive is not whole.primitive or not _are_alike(
            part.params, whole.params, self.n
        ):
            return [None] * len(part.outvars)
        if name in CALLS:
            cuts = self._inside(
                primitives.called(part),
                primitives.called(whole),
                ins,
            )
        elif name in _LOOPS:
            cuts = _LOOPS[name](self, part, whole, ins)
        else:
            cuts = self._apply_rule(part, whole, ins)
        if isinstance(cuts, list):
            each = cuts
        else:
            each = [cuts] * len(part.outvars)
        variables = zip(each, part.outvars, whole.outvars, strict=True)
        result = []
        for cut, v, w in variables:
            result.append(self._check_shapes(cut, v.aval.shape, w.aval.shape))
        return result

    def _apply_rule(
        self,
        part: Any,
        whole: Any,
        ins: list[Value],
    ) -> Any:
        """Applies the rule of a primitive."""
        name = part.primitive.name
        if None in ins and name != "select_n":  # which may choose another
            return None
        if (rule := _RULES.get(name)) is not None:
            return rule(Pair(part, whole, ins, self.n))
        return elementwise(ins) if name in ELEMENTWISE or name in _MORE else None

    def _check_shapes(
        self,
        cut: Value,
        part: Sequence[int],
        whole: Sequence[int],
    ) -> Value:
        """Returns a cut, if the shapes agree with the cut."""
        if cut is None or cut.kind == "columns":
            return cut
        axis = grown_axis(tuple(part), tuple(whole))
        wanted = cut.axis if cut.kind in ("rows", "place") else None
        expected = []
        for a, size in enumerate(part):
            expected.append(size * self.n if a == wanted else size)
        return cut if axis == wanted and expected == list(whole) else None

    def _inside(
        self,
        part: Any,
        whole: Any,
        ins: Sequence[Value],
    ) -> list[Value]:
        """The results of a jaxpr inside of an equation; nothing is asked there."""
        return CutFlow(self.n, self.ask).run(part, whole, ins)

    def _cond(
        self,
        part: Any,
        whole: Any,
        ins: list[Value],
    ) -> list[Value]:
        which, *operands = ins
        if which is None or which.kind != "same" or not which.is_plain:
            return [None] * len(part.outvars)
        branches = zip(
            part.params["branches"],
            whole.params["branches"],
            strict=True,
        )
        each = [self._inside(*pair, operands) for pair in branches]
        return [_agree_cuts(cuts) for cuts in zip(*each, strict=True)]

    def _scan(
        self,
        part: Any,
        whole: Any,
        ins: list[Value],
    ) -> list[Value]:
        consts, carry, xs = primitives.scan_parts(part, ins)
        if part.params["length"] != whole.params["length"]:
            return _map_cuts(part, whole, consts, carry, xs)
        items = [_item(cut) for cut in xs]
        bodies = part.params["jaxpr"], whole.params["jaxpr"]
        carry = self._settle_carry(
            carry,
            lambda carry: self._inside(*bodies, [*consts, *carry, *items])[: len(carry)],
        )
        ys = self._inside(*bodies, [*consts, *carry, *items])[len(carry) :]
        return [*carry, *map(_stack_cut, ys)]

    def _while(
        self,
        part: Any,
        whole: Any,
        ins: list[Value],
    ) -> list[Value]:
        test_consts, consts, init = primitives.while_parts(part, ins)
        bodies = part.params["body_jaxpr"], whole.params["body_jaxpr"]
        carry = self._settle_carry(
            init,
            lambda carry: self._inside(*bodies, [*consts, *carry]),
        )
        tests = part.params["cond_jaxpr"], whole.params["cond_jaxpr"]
        (goes_on,) = self._inside(*tests, [*test_consts, *carry])
        is_same = goes_on is not None and goes_on.kind == "same" and goes_on.is_plain
        return carry if is_same else [None] * len(carry)

    def _settle_carry(
        self,
        carry: list[Value],
        step: Callable[[list[Value]], list[Value]],
    ) -> list[Value]:
        """Iterates a loop's carry until another step changes no cut."""
        while True:
            new = []
            for pair in zip(carry, step(carry), strict=True):
                new.append(_agree_cuts(pair))
            if new == carry:
                return carry
            carry = new


def _are_alike(part: Any, whole: Any, n: int) -> bool:
    """Tells whether two equations have the same parameters, or sizes of which one is n times the other."""
    return all(
        _is_alike(value, whole.get(name), n)
        for name, value in part.items()
        if name not in _OF_REPLICAS
    )


def _is_alike(part: Any, whole: Any, n: int) -> bool:
    if isinstance(part, tuple | list):
        is_one_kind = isinstance(whole, tuple | list) and len(part) == len(whole)
        return is_one_kind and all(
            _is_alike(*pair, n) or _is_longer(*pair, n) for pair in zip(part, whole, strict=True)
        )
    if not isinstance(part, numbers.Number | str | enum.Enum | np.dtype):
        return True  # jaxprs and functions are compared when they are followed
    return part == whole or (part != part and whole != whole)  # of NaN, too


def _is_longer(part: Any, whole: Any, n: int) -> bool:
    return isinstance(part, numbers.Integral) and part * n == whole


_OF_REPLICAS = ("axis_size", "length")
"""Parameters that tell of the number of replicas, which is one for the joined batch, or of examples in a loop over them."""


def _open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    return jaxpr if isinstance(jaxpr, tuple) else primitives.opened(jaxpr)


def _is_literal(atom: Any) -> bool:
    return isinstance(atom, Literal)


def _follows_from(alone: set[Any], equation: Any) -> bool:
    """Whether an equation's results follow from some variables alone."""
    operands = equation.invars
    return not equation.effects and all(_is_literal(v) or v in alone for v in operands)


def _batch_variables(
    jaxpr: Any,
    of_batch: Sequence[bool],
) -> set[Any]:
    """The inputs and constants of a program that follow from the batch alone; none where nothing is known of the inputs."""
    if not of_batch:
        return set()
    inputs = zip(jaxpr.invars, of_batch, strict=False)
    return {*jaxpr.constvars, *(v for v, is_alone in inputs if is_alone)}


def _agree_cuts(cuts: Sequence[Value]) -> Value:
    """The cut of a value that comes from one of several places."""
    known = [cut for cut in cuts if cut is not None]
    kinds = {dataclasses.replace(cut, number=None) for cut in known}
    if len(known) < len(cuts) or len(kinds) > 1:
        return None
    return known[0] if len(set(known)) == 1 else kinds.pop()


def _item(cut: Value) -> Value:
    """Finds the cut of one item of a scanned array."""
    if cut is None or cut.kind in ("same", "total"):
        return cut
    if cut.kind == "rows" and cut.axis:
        return move_cut(cut, cut.axis - 1)
    return None


def _map_cuts(
    part: Any,
    whole: Any,
    consts: list[Value],
    carry: list[Value],
    xs: list[Value],
) -> list[Value]:
    """Finds the cuts of a loop over examples: rows, where the loop carries nothing and treats each example alike (`jax.lax.map`)."""
    are_same = all(cut is not None and cut.kind == "same" and cut.is_plain for cut in consts)
    are_rows = all(
        cut is not None and cut.is_plain and (cut.kind, cut.axis, cut.order) == ("rows", 0, ())
        for cut in xs
    )
    is_map = are_same and are_rows and not carry
    is_map = is_map and content(part.params["jaxpr"]) == content(whole.params["jaxpr"])
    return [Cut("rows") if is_map else None] * len(part.outvars)


def _counts(array: np.ndarray) -> bool:
    return np.array_equal(array.ravel(), np.arange(array.size))


def _stack_cut(cut: Value) -> Value:
    """The cut of all of a scan's items."""
    if cut is None or cut.kind in ("same", "total"):
        return cut and dataclasses.replace(cut, number=None)
    if cut.kind == "rows":
        return move_cut(cut, cut.axis + 1)
    return None


_RULES = {**RULES, **PRODUCTS, **INDEXING}
_LOOPS: dict[str, Callable[..., list[Value]]] = {
    "cond": CutFlow._cond,
    "scan": CutFlow._scan,
    "while": CutFlow._while,
}
