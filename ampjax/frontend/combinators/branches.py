"""Combinators that choose among functions: by integers of the instance, or by a value that is read back from the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer

from ampjax.errors import GraphError
from ampjax.frontend.combinators.draw_places import EACH, Use
from ampjax.frontend.combinators.tracing import (
    Call,
    Combinator,
    Traced,
    as_array,
    as_arrays,
    bind,
    concrete_number,
    dimensions,
    require_carry,
    require_same,
    require_structure,
    trace,
    type_of,
    user_line,
)
from ampjax.ir.builders import control_builders
from ampjax.ir.wires import Wire
from ampjax.jaxprs.primitives import shape_text
from ampjax.moved_names import warn_of_move

P = ParamSpec("P")

SWITCH = Combinator("switch", keeps=1, on_host="with operands")
"""A choice among functions: `cond` and `switch`. It keeps the number that chooses."""

READ = Combinator("read", on_host="with operands", inside_node=True, row_by_row=True)
WHILE = Combinator("while", turn=1)


def _also_of_wires(cond: Callable[P, Any]) -> Callable[P, Any]:
    """Lets `amp.cond` of a wire be `ampjax.graphs.cond`, with a warning, as long as old names are known."""

    @functools.wraps(cond)
    def either(*args: P.args, **options: P.kwargs) -> Any:
        if args and isinstance(args[0], Wire):
            warn_of_move("ampjax.cond of a wire", "ampjax.graphs.cond", stacklevel=2)
            of_wires: Callable[..., Any] = control_builders.cond
            return of_wires(*args, **options)
        n_functions = max(len(args) - 1, 0) + len(options)
        if n_functions < 2:
            fix = "Give `cond` both, then the operands: `amp.cond(pred, f, g, x)`."
            raise GraphError(
                user_line(),
                "a function for true and one for false",
                f"{n_functions} of them",
                fix,
            )
        return cond(*args, **options)

    return either


@_also_of_wires
def cond(
    pred: Any,
    true: Callable[..., Any],
    false: Callable[..., Any],
    *operands: Any,
) -> Any:
    """Runs one of two functions, as `jax.lax.cond` does: only the chosen one runs.

    AMPNet's Cond node, for a graph that is built by hand, is `ampjax.graphs.cond`.

    When it runs: both functions are traced once. A choice that follows from the instance is made on the host, and the chosen function alone
    runs, on the device. By a computed value messages choose once it is read back; a batch computes both, and a mask chooses.

    Args:
      pred: A truth value, or an integer that counts as one; it follows from the instance, or is `amp.read`.
      true: The function that runs if `pred` is true.
      false: The other one, which returns the same structure, shapes and dtypes.
      *operands: What the chosen one is given.

    Returns:
      What it returns.

    Raises:
      GraphError: If the two return different structures, shapes or dtypes.
    """
    use = Use()
    pred = _one_number("cond", pred)
    if _is_known(pred):
        chosen = concrete_number("cond", pred, bool)
        return _run_branch(use, chosen, [false, true], operands)
    return _choice(
        jnp.asarray(pred, bool).astype(jnp.int32),
        [false, true],
        operands,
        "cond",
        ["the branch for false", "the branch for true"],
        use,
    )


def switch(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    *operands: Any,
) -> Any:
    """Runs one of several functions, as `jax.lax.switch` does: only the chosen one runs.

    When it runs: each function is traced once. A choice that follows from the instance is made on the host, and the chosen function alone
    runs, on the device. By a computed value messages choose once it is read back; a batch computes all, and a mask chooses.

    Args:
      index: Its number, which follows from the instance, or is `amp.read`; clamped to those that there are.
      branches: The functions, which return the same structure, shapes and dtypes.
      *operands: What the chosen one is given.

    Returns:
      What it returns.

    Raises:
      GraphError: If there is no list of functions, or they return different types.
    """
    if not isinstance(branches, Sequence) or not branches:
        got = "none" if isinstance(branches, Sequence) else type(branches).__name__
        fix = (
            "Give `switch` a list of functions, then the operands: `amp.switch(index, [f, g], x)`."
        )
        raise GraphError(user_line(), "a list of at least one function", got, fix)
    use = Use()
    index = _one_number("switch", index)
    if _is_known(index):
        return _run_branch(
            use,
            min(max(concrete_number("switch", index), 0), len(branches) - 1),
            branches,
            operands,
        )
    return _choice(
        jnp.clip(
            jnp.asarray(index, jnp.int32),
            0,
            len(branches) - 1,
        ),
        branches,
        operands,
        "switch",
        [f"branch {number}" for number in range(len(branches))],
        use,
    )


def read(x: Any, assume: int = 0) -> Any:
    """Lets control depend on a computed value: in `cond`, `switch` and `while_loop`. No gradient flows through the read.

    The value is read back from the device, which costs a wait; messages that wait are still computed together.

    When it runs: as messages on the host, once for each value, when it has come from the device; a batch reads nothing back.

    Args:
      x: An integer or truth value, shape `()`.
      assume: What is taken where nothing is computed: when memory is sized and kernels are compiled ahead, and in simulations.

    Returns:
      The same value.

    Raises:
      GraphError: If it is no single integer or truth value.
    """
    if not isinstance(assume, int | np.integer):
        raise GraphError(
            user_line(),
            "an integer or truth value to assume",
            f"{assume!r}",
            "Give one of those that can come.",
        )
    value = as_array("to read", x)
    if dimensions() is None:
        return jax.lax.stop_gradient(value)
    if value.shape != () or jnp.issubdtype(value.dtype, jnp.inexact):
        fix = "Compute the choice first, for example by `argmax` or a comparison."
        raise GraphError(
            user_line(), "one integer or truth value to read", shape_text(type_of(value)), fix
        )
    result = ShapedArray((), value.dtype)
    call = Call(
        READ,
        [result],
        line=user_line(),
        options={"assume": int(assume)},
    )
    return bind(call, [value])[0]


def while_loop(
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    *,
    most: int | None = None,
) -> Any:
    """Runs `body` as long as `test` holds, which reads a value with `amp.read`; at most `most` times.

    For a number of rounds that the instance says, use `fori_loop`: it waits for no device.

    When it runs: both functions are traced, not run. Then they run on the device: as messages once for each round of each example, whose
    end the host decides when the value is read back; as a batch once for each round, of all examples, as long as one goes on or until
    `most`.

    Args:
      test: `test(carry)`: a truth value made of what `amp.read` gives.
      body: `body(carry) -> carry`.
      init: The first carry, a pytree of arrays; for `amp.vmap` also of sequences, which keep their lengths.
      most: Rounds at most; must be given. So many are assumed where nothing is computed: when memory is sized and kernels are compiled ahead.

    Returns:
      The last carry.

    Raises:
      GraphError: If `most` is missing or below 1, the carry changes its types, or the test is no truth value.
    """
    line = user_line()
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise GraphError(
            line, "most >= 1", f"{most!r}", "Say how many rounds there can be: `most=10`."
        )
    init = as_arrays("to begin with", init)
    use = Use()
    if dimensions() is None:
        return _run_loop(use, test, body, init, most)
    leaves, structure = jax.tree.flatten(init)
    types = [type_of(leaf) for leaf in leaves]
    asked, asked_closed, answer = trace(
        test,
        structure.unflatten(types),
        inside=use.inside(0),
    )
    step, _, results = trace(
        body,
        structure.unflatten(types),
        inside=use.inside(1, EACH),
    )
    if [(a.shape, a.dtype) for a in answer] != [((), jnp.dtype(bool))]:
        raise GraphError(
            line,
            "a test that gives one truth value",
            ", ".join(map(shape_text, answer)),
            "Compare in it.",
        )
    require_structure(
        line,
        "a body that returns the carry, {}",
        structure,
        step.results,
        "Return it as `init` is built.",
    )
    require_carry(line, types, results)
    carry = structure.unflatten(types)
    turn, turn_closed, _ = trace(
        lambda carry: _turn(use, test, body, carry),
        carry,
    )
    same, _, _ = trace(lambda carry: carry, carry)
    closed = (len(asked_closed), len(turn_closed), 0)
    call = Call(
        WHILE,
        results,
        (asked, turn, same),
        closed,
        line,
        {"most": int(most), "n_carry": len(leaves), "word": "while"},
    )
    return structure.unflatten(bind(call, [*asked_closed, *turn_closed, *leaves]))


def _run_loop(
    use: Use,
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    carry: Any,
    most: int,
) -> Any:
    """Runs `while_loop` on concrete values."""
    with use.inside(0):
        goes_on = test(carry)
    for number in range(most):
        if not concrete_number("while_loop", goes_on, bool):
            break
        carry, goes_on = _turn(use, test, body, carry, number)
    return carry


def _turn(
    use: Use,
    test: Callable[[Any], Any],
    body: Callable[[Any], Any],
    carry: Any,
    number: int = EACH,
) -> Any:
    """A round of a `while_loop`, and whether another one follows."""
    with use.inside(1, number):
        carry = body(carry)
    with use.inside(2, number):
        return carry, test(carry)


def _one_number(word: str, value: Any) -> Any:
    """Checks the value of a choice: one number; of `switch` an integer."""
    if not isinstance(value, bool | int | np.generic):
        value = as_array("to choose by", value)
    dtype = jnp.result_type(value)
    is_integer = jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)
    if jnp.shape(value) != () or not (
        is_integer or (word == "cond" and jnp.issubdtype(dtype, jnp.number))
    ):
        expected = "one truth value" if word == "cond" else "one integer"
        fix = "Compute the choice first, for example by `argmax`, a comparison or `astype(int)`."
        raise GraphError(user_line(), f"{expected} for `{word}`", shape_text(type_of(value)), fix)
    return value


def _is_known(value: Any) -> bool:
    """Tells whether a value can be read now: the model runs on concrete values, or the value is no part of the trace."""
    return dimensions() is None or not isinstance(value, Tracer)


def _run_branch(
    use: Use,
    number: int,
    branches: Sequence[Callable[..., Any]],
    operands: Sequence[Any],
) -> Any:
    with use.inside(number):
        return branches[number](*operands)


def _choice(
    index: Any,
    branches: Sequence[Callable[..., Any]],
    operands: Sequence[Any],
    word: str,
    names: Sequence[str],
    use: Use,
) -> Any:
    """Binds a choice among functions; errors call the choice `word`, and the functions `names`."""
    line = user_line()
    leaves, structure = jax.tree.flatten(tuple(operands))
    leaves = as_arrays("for the functions", leaves)
    types = structure.unflatten([type_of(leaf) for leaf in leaves])
    traced: list[Traced] = []
    values: list[Any] = []
    n_closed: list[int] = []
    results: list[Any] = []
    for number, branch in enumerate(branches):
        function, closed, out = trace(
            branch,
            *types,
            inside=use.inside(number),
        )
        if traced:
            wanted = traced[0].results
            fix = "Return the same structure from every branch."
            what = f"{{}}, as {names[0]} returns"
            whose = f" from {names[number]}"
            require_structure(line, what, wanted, function.results, fix, whose)
            require_same(
                line, f"{names[number]} to return the same types as {names[0]}", results, out
            )
        else:
            results = out
        traced.append(function)
        values += closed
        n_closed.append(len(closed))
    call = Call(
        SWITCH,
        results,
        traced,
        n_closed,
        line,
        {"word": word},
        use.place,
    )
    return traced[0].results.unflatten(
        bind(
            call,
            [*values, index, *leaves],
        )
    )
