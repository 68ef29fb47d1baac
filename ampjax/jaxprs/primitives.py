"""Parts of jaxprs and parameters of primitives, in one place where JAX's versions differ. Knows nothing of tables and rows."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path as File
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp
from jax.extend.source_info_util import user_context
from jax.interpreters import partial_eval

Path = tuple[int, ...]
"""The place of an equation: the number of an equation, which of its sub-jaxprs, the number of an equation in there, and so on."""

CALLS = ("jit", "pjit", "call", "core_call", "closed_call", "eval_jaxpr")
"""Primitives that compute what the jaxpr that they call computes, and mean nothing else. JAX has renamed them from version to version."""

REMATERIALIZED = ("remat", "remat2", "checkpoint")
"""Calls whose values are computed again for the backward pass."""

CUSTOM_CALLS = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
"""Calls with a derivative of the user's own."""

CALLBACKS = ("debug_callback", "debug_print", "io_callback")
"""Primitives that the host notices. They must run once a step, so a program that only looks for ids leaves them out."""

DRAWS = ("random_bits", "random_gamma", "threefry2x32", "rng_bit_generator")
"""Primitives that draw random numbers; the first operand is the key, or a part of it."""

_LIBRARIES = ("jax", "jaxlib", "flax", "optax")
_OURS = File(__file__).parents[1]
"""The package's folder. Users call its functions in a loss, and it traces users' functions: a line in it is no line of the user's."""


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Splits a jaxpr from the values of its constants. JAX 0.10 keeps the two apart; later versions hold both in one object.

    Args:
      jaxpr: An open jaxpr, or a closed one.

    Returns:
      The open jaxpr, and the values of its constants.
    """
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def drop_unneeded(jaxpr: Any, n_results: int | None = None) -> Any:
    """An open jaxpr without equations that neither an output nor a side effect needs. Its inputs and constants stay.

    Args:
      jaxpr: An open jaxpr.
      n_results: How many of its outputs are wanted, the first ones; None for all.
    """
    wanted = len(jaxpr.outvars) if n_results is None else n_results
    return partial_eval.dce_jaxpr(
        jaxpr,
        [i < wanted for i in range(len(jaxpr.outvars))],
        instantiate=True,
    )[0]


def inputs_read(jaxpr: Any) -> list[bool]:
    """Tells for each input of an open jaxpr whether an output depends on that input."""
    return list(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1])


def variables(atoms: Iterable[Any]) -> set[Any]:
    """The variables among some operands, which may be literals, too.

    Args:
      atoms: The operands.
    """
    return {v for v in atoms if not isinstance(v, jex.Literal)}


def variables_read(equations: Sequence[Any], results: Iterable[Any]) -> set[Any]:
    """Collects the variables that some equations read, and the variables among some results.

    Args:
      equations: The equations.
      results: Variables or literals.
    """
    names = variables(results)
    for equation in equations:
        names |= variables(equation.invars)
    return names


def needed_equations(
    equations: Sequence[Any],
    wanted: Iterable[Any],
    known: Collection[Any],
) -> list[Any]:
    """Lists the equations that some variables need beside known ones, in order.

    Args:
      equations: All equations, in order.
      wanted: Variables or literals.
      known: Variables that need not be computed.
    """
    ready = set(known)
    alive = variables(wanted) - ready
    used = []
    for equation in reversed(equations):
        if not alive.isdisjoint(equation.outvars):
            used.append(equation)
            alive |= variables(equation.invars) - ready
    return used[::-1]


def depending(equations: Sequence[Any], roots: Iterable[Any]) -> set[Any]:
    """Finds the variables that depend on some roots, roots included.

    Args:
      equations: All equations, in order.
      roots: The roots.
    """
    dependent = set(roots)
    for equation in equations:
        if not dependent.isdisjoint(variables(equation.invars)):
            dependent.update(equation.outvars)
    return dependent


def value_of(atom: Any, env: dict[Any, Any]) -> Any:
    """The value of an equation's operand.

    Args:
      atom: A variable or a literal.
      env: Values by variable.
    """
    return atom.val if isinstance(atom, jex.Literal) else env[atom]


def bind(
    eqn: Any,
    args: Sequence[Any],
    line: Any = None,
) -> list[Any]:
    """Computes the results of one equation, under the settings and with the source line of its trace.

    Args:
      eqn: The equation.
      args: Values of its operands, of the shapes that it was traced with.
      line: The traceback of another equation, whose source line it gets.

    Returns:
      One value for each result.
    """
    with user_context(line or eqn.source_info.traceback), eqn.ctx.manager:
        out = eqn.primitive.bind(
            *args,
            **eqn.primitive.get_bind_params(eqn.params),
        )
    return list(out) if eqn.primitive.multiple_results else [out]


def applies_function(eqn: Any) -> bool:
    """Tells whether an equation is `x.at[i].apply(f)`: a `scatter` whose updates mean nothing, as the new entries are computed from the old ones.

    Args:
      eqn: The equation.
    """
    return eqn.primitive.name == "scatter" and eqn.params["update_jaxpr"] is not None


def evaluate(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
    results: Callable[[Any, list[Any]], list[Any]],
) -> list[Any]:
    """Runs an open jaxpr, equation by equation.

    Args:
      jaxpr: The jaxpr.
      constants: Values of its constants.
      args: Values of its inputs.
      results: From an equation and the values of its operands to the values of its results; `bind` does as JAX would.

    Returns:
      Values of its outputs.
    """
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *args], strict=True))
    for eqn in jaxpr.eqns:
        env.update(
            zip(
                eqn.outvars,
                results(eqn, [value_of(v, env) for v in eqn.invars]),
                strict=True,
            )
        )
    return [value_of(v, env) for v in jaxpr.outvars]


def reaches_over_axes(eqn: Any) -> bool:
    """Tells whether an equation is a collective, or holds one."""
    return any(type(effect).__name__ == "NamedAxisEffect" for effect in eqn.effects)


def inner(eqn: Any) -> Iterator[Any]:
    """Yields the open jaxprs that an equation holds."""
    for value in eqn.params.values():
        for each in value if type(value) in (tuple, list) else (value,):
            jaxpr, _ = opened(each)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def is_anywhere(jaxpr: Any, holds: Callable[[Any], bool]) -> bool:
    """Tells whether a condition holds for an equation of a jaxpr, at any depth.

    Args:
      jaxpr: The open jaxpr.
      holds: The condition.
    """
    for eqn in jaxpr.eqns:
        if holds(eqn) or any(is_anywhere(each, holds) for each in inner(eqn)):
            return True
    return False


def called(eqn: Any) -> Any:
    """The jaxpr of an equation that calls one."""
    return eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]


def for_usual_platforms(eqn: Any) -> Any:
    """The jaxpr that a choice by platform computes on all but TPUs' kernels of the user's own; None for any other equation.

    `jnp.diagonal` has such a choice. Its first operand is the number of the platform.
    """
    platforms = eqn.params.get("branches_platforms")
    if not platforms or platforms[-1] is not None:
        return None
    named = {name for names in platforms[:-1] for name in names}
    return eqn.params["branches"][-1] if named == {"mosaic"} else None


def scan_parts(
    eqn: Any,
    args: Sequence[Any],
) -> tuple[list[Any], list[Any], list[Any]]:
    """Divides a scan's operands by their roles.

    Args:
      eqn: The scan.
      args: Its operands, or anything else of which there is one for each.

    Returns:
      Those of the constants, of what it carries, and of what it runs over.
    """
    if "num_consts" in eqn.params:
        n_consts = eqn.params["num_consts"]
        n_carry = eqn.params["num_carry"]
    else:
        n_consts, n_carry, _ = (len(part) for part in eqn.params["ft_in"].unpack())
    return (
        list(args[:n_consts]),
        list(args[n_consts : n_consts + n_carry]),
        list(args[n_consts + n_carry :]),
    )


def while_parts(
    eqn: Any,
    args: Sequence[Any],
) -> tuple[list[Any], list[Any], list[Any]]:
    """Divides a while loop's operands by their roles.

    Args:
      eqn: The loop.
      args: Its operands, or anything else of which there is one for each.

    Returns:
      Those of the condition's constants, of the body's constants, and of what it carries.
    """
    first = eqn.params["cond_nconsts"]
    second = first + eqn.params["body_nconsts"]
    return list(args[:first]), list(args[first:second]), list(args[second:])


def carried_unchanged(body: Any, n_consts: int, index: int) -> bool:
    """Tells whether a loop's body returns a carried value unchanged.

    Args:
      body: The open jaxpr of the body.
      n_consts: How many of its inputs are constants.
      index: Which of the carried values.
    """
    return body.outvars[index] is body.invars[n_consts + index]


def jvp_rule(eqn: Any) -> tuple[Any, Sequence[Any], list[bool]]:
    """The rule of a `custom_jvp` for tangents of all its float inputs.

    Args:
      eqn: A call of a `custom_jvp`.

    Returns:
      A jaxpr of the primal inputs (less the call's constants) and the tangents of the float ones, that gives the primal
      outputs and their tangents; the values of its constants; and, for each output, whether its tangent is left out
      because it is zero.
    """
    primals = eqn.invars[eqn.params["num_consts"] :]
    rule = eqn.params["jvp_jaxpr_fun"]
    return getattr(rule, "call_wrapped", rule)(*(not is_inexact(v.aval.dtype) for v in primals))


def is_inexact(dtype: Any) -> bool:
    """Tells whether values of this dtype have a gradient.

    Args:
      dtype: The dtype.
    """
    return jnp.issubdtype(dtype, jnp.inexact)


def blank(aval: Any) -> Any:
    """Zeros in the place of a value that is not used."""
    return jnp.zeros(aval.shape, aval.dtype)


def source_line(eqn: Any) -> str:
    """The user's source line behind an equation.

    Returns:
      `file.py:12`; in a notebook the line itself; empty where JAX did not keep it.
    """
    return next(
        (line_text(File(frame.file_name), frame.line_num) for frame in users_frames(eqn)),
        "",
    )


def users_frames(eqn: Any) -> Iterator[Any]:
    """Yields the frames of the user's own functions behind an equation, the innermost first, as far as JAX has recorded them.

    Args:
      eqn: The equation. Of one in a function under `jax.jit`, JAX keeps the frames inside of that function only.
    """
    traceback = getattr(eqn.source_info, "traceback", None)
    yield from (
        frame for frame in getattr(traceback, "frames", ()) if not is_library_file(frame.file_name)
    )


def line_text(file: File, number: int) -> str:
    """A line of source, for people: `file.py:12`; in a notebook the line itself, since a cell is a file with a number for a name.

    Args:
      file: The file.
      number: The line's number in it, from 1.
    """
    in_cell = (
        file.parent.name.startswith("ipykernel_")
        and linecache.getline(
            str(file),
            number,
        ).strip()
    )
    return f"`{in_cell}`" if in_cell else f"{file.name}:{number}"


def source_function(eqn: Any) -> str:
    """Returns the name of the user's function behind an equation; empty without a record in JAX."""
    return next(
        (frame.function_name.rsplit(".", 1)[-1] for frame in users_frames(eqn)),
        "",
    )


def shape_text(aval: Any) -> str:
    """Writes an array's type in JAX's notation.

    Args:
      aval: An array, or its type.

    >>> shape_text(jnp.zeros((2, 3)))
    'float32[2,3]'
    """
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


@functools.cache
def is_library_file(name: str) -> bool:
    """Tells whether a file is JAX's, Flax's or Optax's, or one of ours."""
    file = File(name)
    is_theirs = "site-packages" in file.parts and any(each in file.parts for each in _LIBRARIES)
    return is_theirs or file.is_relative_to(_OURS)
