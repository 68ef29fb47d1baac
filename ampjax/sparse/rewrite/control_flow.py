"""Calls, branches and loops around reads: each is built again, with rows and positions in place of tables.

A table in JAX's control flow is a `TableView`, which is a pytree and can stand wherever arrays do. Each rule has one form for both kinds of
walk: positions go in with the operands, ids come out with the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.jaxprs import primitives
from ampjax.jaxprs.primitives import Path
from ampjax.sparse.detection.table_views import TableView

if TYPE_CHECKING:
    from ampjax.sparse.rewrite.evaluate import FoundIds, Positions, RowInterpreter

Result = tuple[list[Any], "FoundIds"]


def _call(
    interpreter: RowInterpreter,
    eqn: Any,
    ins: list[Any],
    positions: Positions,
    path: Path,
) -> Result:
    return interpreter.run(
        primitives.called(eqn),
        ins,
        positions,
        (*path, 0),
    )


def _remat(
    interpreter: RowInterpreter,
    eqn: Any,
    ins: list[Any],
    positions: Positions,
    path: Path,
) -> Result:
    if interpreter.collecting:
        return _call(interpreter, eqn, ins, positions, path)

    def again(ins: list[Any], positions: Positions) -> list[Any]:
        return _call(interpreter, eqn, ins, positions, path)[0]

    options = {name: eqn.params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(again, **options)(ins, positions), {}


def _custom_jvp(
    interpreter: RowInterpreter,
    eqn: Any,
    ins: list[Any],
    positions: Positions,
    path: Path,
) -> Result:
    """A new `custom_jvp` on rows. The user's rule is interpreted in the same way as the function."""
    inner = (*path, 1)
    if any(isinstance(v, TableView) for v in ins):
        rule, consts, zeros = primitives.jvp_rule(eqn)
    else:
        rule = None
        consts = ()
        zeros = ()
    floats = [primitives.is_inexact(v.aval.dtype) for v in eqn.invars]

    def along(
        primals: list[Any],
        tangents: list[Any],
        positions: Positions,
    ) -> Result:
        skip = eqn.params["num_consts"]
        each = list(zip(primals, tangents, floats, strict=True))[skip:]
        tangents = []
        for p, t, is_float in each:
            if is_float:
                tangents.append(p.tangent(t) if isinstance(p, TableView) else t)
        return interpreter.run(
            (rule, consts),
            [*primals[skip:], *tangents],
            positions,
            inner,
        )

    if interpreter.collecting:
        outs, ids = _call(interpreter, eqn, ins, positions, path)
        return outs, ids | (along(ins, ins, positions)[1] if rule is not None else {})

    @jax.custom_jvp
    def function(ins: list[Any], positions: Positions) -> list[Any]:
        return _call(interpreter, eqn, ins, positions, path)[0]

    @function.defjvp
    def _rule(
        primals: tuple[list[Any], Positions],
        tangents: tuple[list[Any], Any],
    ) -> tuple[list[Any], list[Any]]:
        outs, _ = along(
            primals[0],
            tangents[0],
            primals[1],
        )
        rest = iter(outs[len(zeros) :])
        return outs[: len(zeros)], [
            _zero_tangent(out) if zero else next(rest)
            for out, zero in zip(outs, zeros, strict=False)
        ]

    return function(ins, positions), {}


def _zero_tangent(value: Any) -> Any:
    value = jnp.asarray(value)
    if primitives.is_inexact(value.dtype):
        return jnp.zeros_like(value)
    return np.zeros(value.shape, jax.dtypes.float0)


def _cond(
    interpreter: RowInterpreter,
    eqn: Any,
    ins: list[Any],
    positions: Positions,
    path: Path,
) -> Result:
    """Chooses a branch while ids are collected, too: the ids of the other branches say that no row is read."""
    branches = []
    for b, jaxpr in enumerate(eqn.params["branches"]):
        branches.append(_branch(interpreter, jaxpr, (*path, b)))
    blanks: FoundIds = {}
    if interpreter.collecting:
        for branch in branches:
            _, id_shapes = jax.eval_shape(branch, ins[1:], positions)
            blanks |= {
                site: jnp.full(
                    ids.shape,
                    interpreter.n_rows[interpreter.sites[site]],
                    ids.dtype,
                )
                for site, ids in id_shapes.items()
            }

    def fill_tangents(branch: Callable[..., Result]) -> Callable[..., Result]:
        def run(operands: list[Any], positions: Positions) -> Result:
            outs, ids = branch(operands, positions)
            return outs, blanks | ids

        return run

    return jax.lax.switch(
        ins[0],
        [fill_tangents(branch) for branch in branches],
        ins[1:],
        positions,
    )


def _branch(
    interpreter: RowInterpreter,
    jaxpr: Any,
    path: Path,
) -> Callable[..., Result]:
    return lambda operands, positions: interpreter.run(jaxpr, operands, positions, path)


def _scan(
    interpreter: RowInterpreter,
    eqn: Any,
    ins: list[Any],
    positions: Positions,
    path: Path,
) -> Result:
    """Positions are scanned over, ids are stacked."""
    consts, init, xs = primitives.scan_parts(eqn, ins)
    start, whole = _split_carry(init)

    def step(
        carry: list[Any],
        x: tuple[list[Any], Positions],
    ) -> tuple[list[Any], Result]:
        # Tables go back into the carry, and this step's positions stand for its reads.
        outs, ids = interpreter.run(
            eqn.params["jaxpr"],
            [*consts, *whole(carry), *x[0]],
            x[1],
            (*path, 0),
        )
        # Tables leave the carry again: they are not arrays, and a step passes them on unchanged.
        return _split_carry(outs[: len(init)])[0], (outs[len(init) :], ids)

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    # Positions are scanned over like other inputs, and the ids of all steps are stacked.
    carry, (ys, ids) = jax.lax.scan(
        step,
        start,
        (xs, positions),
        **options,
    )
    return [*whole(carry), *ys], ids


def _while(
    interpreter: RowInterpreter,
    eqn: Any,
    ins: list[Any],
    positions: Positions,
    path: Path,
) -> Result:
    """Reads ids of a `while` loop from the first step, since they are the same in every step."""
    test_consts, consts, init = primitives.while_parts(eqn, ins)
    start, whole = _split_carry(init)

    def test(carry: list[Any]) -> Result:
        return interpreter.run(
            eqn.params["cond_jaxpr"],
            [*test_consts, *whole(carry)],
            positions,
            (*path, 0),
        )

    def step(carry: list[Any]) -> Result:
        return interpreter.run(
            eqn.params["body_jaxpr"],
            [*consts, *whole(carry)],
            positions,
            (*path, 1),
        )

    # Run the loop without its ids, which can't leave it.
    carry = jax.lax.while_loop(
        lambda c: test(c)[0][0],
        lambda c: _split_carry(step(c)[0])[0],
        start,
    )
    # The first step's ids, computed from the initial carry, serve for all steps.
    return whole(carry), (test(start)[1] | step(start)[1] if interpreter.collecting else {})


def _split_carry(carry: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Splits a loop's carry: the values without tables, which stay unchanged, and the function that puts the tables back."""

    def whole(moving: Sequence[Any]) -> list[Any]:
        rest = iter(moving)
        return [v if isinstance(v, TableView) else next(rest) for v in carry]

    return [v for v in carry if not isinstance(v, TableView)], whole


RULES: dict[str, Callable[[Any, Any, list[Any], Any, Path], Result]] = {
    **dict.fromkeys(primitives.CALLS, _call),
    **dict.fromkeys(primitives.REMATERIALIZED, _remat),
    "custom_jvp_call": _custom_jvp,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
