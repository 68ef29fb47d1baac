"""The values that need no message: constants, functions of parameters alone, and functions of the instance alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.combinators.user_errors import BATCHES_TAKE_MOST, FIRST_ROWS, OF_WHOLE
from ampjax.frontend.deduction.equations import Atom, Equation, Known, Name, flatten
from ampjax.frontend.deduction.index_checks import Index, base, check, indices, is_cheap
from ampjax.frontend.deduction.opened_functions import Opened, constant_results
from ampjax.frontend.draft.carried_columns import EquationColumn
from ampjax.frontend.draft.index_spaces import Column, Region
from ampjax.frontend.draft.long_axes import is_known_length, n_long_axes
from ampjax.frontend.draft.values import (
    Computed,
    Constant,
    Elements,
    Leaf,
    OfParams,
    Static,
    Value,
    Wanted,
    leaves_of,
)
from ampjax.jaxprs.primitives import CUSTOM_CALLS, bind

if TYPE_CHECKING:
    from ampjax.frontend.deduction.lowering import Lowering

SUM = "Use `amp.sum` or `amp.mean`."
MAXIMUM = "Use `amp.max`, `amp.softmax` or `amp.logsumexp`."
SHAPE = "The first axis of a sequence counts its elements and stays the first: reshape each element in `amp.map`."
PAIRS = "a `map` in a `map`: `amp.map(lambda x: amp.map(lambda y: x @ y, ys), xs)`."
ROWS = "Read rows of `m` elements by numbers: `xs[i[:, None] * m + jnp.arange(m)]` with `i = jnp.arange(n)` for `n` rows."
TRANSPOSE = f"{SHAPE} For products of all pairs write {PAIRS}"
SWAPPED = f"Of a matrix of pairs do it along the second axis: `jnp.cumsum(scores.T, axis=1).T` is that along the first; or write {PAIRS}"
READ_PAIRS = "Read a matrix of pairs along one axis after the other: `scores[::-1][:, ::-1]`; one entry of each row with `amp.map(lambda row, i: row[i], scores, i)`."
SET_PAIRS = "Choose among all pairs: `jnp.where(jnp.eye(n) > 0, x, scores)`, or in one row `jnp.where((jnp.arange(n) == i)[:, None], x, scores)`, with `n = scores.shape[0]`. A matrix of edges from `r` to `s` is `(k[:, None] == r).astype(float) @ (s[:, None] == k).astype(float)` with `k = jnp.arange(n)`; a sum over neighbours needs none: `jax.ops.segment_sum(xs[s], r, n)`."
DRAW = "Draw for each element in `amp.map`, with a key of its own: `jax.random.fold_in(key, i)` of its number `i`."
SLICE = "Take one element with `amp.take(xs, i)`; put what is shifted, cut or joined into the example as another sequence."
SET = "Choose for each element: `jnp.where(jnp.arange(xs.shape[0]) == i, x, xs)`."
ADD = "Sum over edges with `amp.propagate`, or in a batch with `jax.ops.segment_sum(xs[senders], receivers, n)`, without an array of all pairs; add to single elements with `jnp.where`."
UPDATE = "Update along the first axis, `xs.at[numbers].max(x)`, as do `add`, `min` and `multiply`; or choose for each element: `jnp.where(jnp.arange(xs.shape[0]) == i, jnp.maximum(xs, x), xs)`."
OWN_DERIVATIVE = "A batch takes it of a whole sequence if the function and its derivative do the same to each element, without the length; else write it for one element, and call it by `amp.map(f, xs)`."
FIXES = {
    **dict.fromkeys(CUSTOM_CALLS, OWN_DERIVATIVE),
    "iota": "Put the elements' numbers into the example: `np.arange` of its length.",
    "reshape": SHAPE,
    "transpose": TRANSPOSE,
    **dict.fromkeys(["random_bits", "random_split"], DRAW),
    "fft": "A transform along the elements is a product with a matrix of pairs: `jnp.exp(-2j * jnp.pi * k[:, None] * k / n) @ xs`, with `n = xs.shape[0]` and `k = jnp.arange(n)`; one in each element goes in a batch, or in `amp.map`.",
    "reduce_window": "Pool by a sum, a maximum or a minimum, as `jax.lax.reduce_window` with `jax.lax.add` does; or compute on each window: `amp.map(f, amp.window(xs, 3))`.",
    "reduce": "Use `jnp.sum(xs, axis=0)`, `jnp.prod`, `jnp.max` or `jax.nn.logsumexp`; for another result carry it through `amp.scan`; within each element use `amp.map`.",
    "reduce_sum": SUM,
    "reduce_max": MAXIMUM,
    "scan": "Use `amp.scan`, or `amp.map` in place of `jax.lax.map`.",
    "while": "Turn it so often: `amp.fori_loop(n, body, init)`; or go through the elements with `amp.scan`.",
    "scatter": SET,
    "scatter-add": ADD,
    **dict.fromkeys(["scatter-max", "scatter-min", "scatter-mul"], UPDATE),
    "dynamic_update_slice": SET,
    "tile": "Put copies one after the other: `jnp.concatenate([xs, xs])`; beside each other: `jnp.concatenate([xs, xs], axis=1)`.",
    "rev": "Use `amp.scan` with `reverse=True`, or turn the sequence round in the example.",
    "gather": SLICE,
    "slice": SLICE,
    "dynamic_slice": SLICE,
    "concatenate": SLICE,
    "pad": SLICE,
}
"""What to write in place of JAX's operation on a whole sequence, by its primitive."""
_OF_PAIRS = {
    "gather": READ_PAIRS,
    **dict.fromkeys(["scatter", "scatter-add"], SET_PAIRS),
    **dict.fromkeys(["scatter-max", "scatter-min", "scatter-mul"], SET_PAIRS),
}
"""The same of a matrix of pairs."""
LOOK_UP = "Look up element by element: `amp.map(lambda i: table[i], xs)`."
ELSE = "Put it into `amp.map`, or use `amp.scan`, `amp.sum`, `amp.max`, `amp.softmax`, `amp.take` or `amp.length`."


class KnownValues:
    """The known values of a function while it is lowered, by variable.

    Args:
      lowering: The lowering of the whole model.
      region: Where the function is lowered.
      function: The function.

    Attributes:
      env: What each name stands for, as far as it is known.
      statics: For what follows from the instance, the equation that computes it.
    """

    def __init__(self, lowering: Lowering, region: Region, function: Opened):
        self.env = dict(function.values)
        self.statics = dict[Name, Equation]()
        self._lowering = lowering
        self._region = region
        self._equations = function.equations

    def value(self, atom: Atom) -> Value:
        """Returns the value of an atom, which must be known."""
        return Constant(atom.value) if isinstance(atom, Known) else self.env[atom]

    def get(self, atom: Atom) -> Value | None:
        """Returns the value of an atom; None if the atom is still to be computed."""
        if isinstance(atom, Known):
            return Constant(atom.value)
        return self.env.get(atom)

    def is_computed(self, atom: Atom) -> bool:
        """Tells whether a value comes in a message."""
        value = self.get(atom)
        return value is None or isinstance(value, Computed)

    def leaves(self, equation: Equation) -> frozenset[Leaf]:
        """The parameters that an equation reads."""
        values = [self.get(atom) for atom in equation.inputs]
        return leaves_of(values)

    def take_early(self, equation: Equation) -> bool:
        """Computes the results of an equation, if they need no message.

        Returns:
          Whether it needs none.

        Raises:
          GraphError: If it reads a whole sequence, whose length is each instance's own.
        """
        values = [self.get(atom) for atom in equation.inputs]
        self._check_indices(equation)
        if equation.call is not None:
            if not _is_static_call(equation.call, values):
                return False
            every = Wanted(set(range(len(equation.outputs))))
            results = self._lowering.call(equation, values, self._region, every)  # type: ignore[arg-type]
            self.env |= dict(zip(equation.outputs, results, strict=True))
            return True
        if equation.source.primitive.name == "dim_as_value":
            self.env[equation.outputs[0]] = Static(
                self._lowering.length_of(
                    str(equation.source.params["dim"]),
                    equation.line,
                )
            )
            return True
        if equation.reads is not None and isinstance(values[0], Static | Constant):
            self.env[equation.outputs[0]] = values[0]
            return True
        self._refuse_sequences(equation, values)
        leaves = leaves_of(values)
        is_computed = (
            equation.draws
            or equation.reads is not None
            or any(map(self.is_computed, equation.inputs))
        )
        if is_computed or (leaves and any(isinstance(value, Static) for value in values)):
            return False
        self._compute_early(equation, values, leaves)
        return True

    def _check_indices(self, equation: Equation) -> None:
        """Notes checks of the instance's numbers by which an equation indexes something."""
        read = equation.indexing or equation
        for index in (
            indices(read, self.statics) if self._region.is_known and equation.call is None else ()
        ):
            atom, wraps = base(index.atom, self.statics)
            number = self.get(atom)
            if not isinstance(number, Static) or not is_cheap(atom, self.statics):
                continue
            if index.operand is None:
                least = None
            elif wraps:
                least = -index.n
            else:
                least = 0
            one = (
                number.column,
                self._region,
                least,
                index.n,
                read.line,
                self._describe_allowed(index, least),
            )
            self._lowering.draft.checks.append(lambda data, one=one: check(data, *one))

    def _describe_allowed(self, index: Index, least: int | None) -> str:
        """Describes the numbers that may index an axis, in words."""
        if index.operand is None:
            return f"a class below {index.n}, as many as `one_hot` has"
        value = self.get(index.operand)
        what = f"one of {index.n} entries"
        if isinstance(value, OfParams) and len(value.leaves) == 1:
            (leaf,) = value.leaves
            params = self._lowering.draft.params
            if np.shape(params.leaf(leaf))[:1] == (index.n,):
                what = f"a row of the parameters `{params.leaf_name(leaf)}`"
        return f"a number from {least} to {index.n - 1}, of {what}"

    def _refuse_sequences(
        self,
        equation: Equation,
        values: Sequence[Value | None],
    ) -> None:
        shapes = []
        for atom in (*equation.inputs, *equation.outputs):
            if isinstance(atom, Name):
                shapes.append(atom.aval.shape)
        if any(isinstance(value, Elements) for value in values) or any(
            not isinstance(n, int) for shape in shapes for n in shape
        ):
            meant = self._meant(equation)
            name = meant.source.primitive.name
            called = _name_function(equation)
            if equation.draws:
                word = "`amp.stochastic`"
                fix = "Draw for each element: `amp.map(lambda x: amp.stochastic(f, g, x), xs)`; what the functions close over may be no sequence either."
            elif called:
                word = f"`{called}`"
                fix = OF_WHOLE[called]
            else:
                word = f"`{name}`" if meant is equation else f"indexing (`{name}`)"
                fix = self._fix(meant)
            if not self._lowering.of_rows and name not in ("scan", "random_bits"):
                fix = f"{fix} {BATCHES_TAKE_MOST}"
            got = f"{word} on a whole sequence, whose length is each instance's own"
            raise GraphError(equation.line, "operations on one element", got, fix)

    def _meant(self, equation: Equation) -> Equation:
        """Finds the operation that the user has written: JAX makes several of `x[i]`, of which a comparison comes first."""
        if equation.source.primitive.name not in ("lt", "add", "select_n"):
            return equation
        for other in self._equations:
            if other.line == equation.line and other.source.primitive.name == "gather":
                return other
        return equation

    def _fix(self, equation: Equation) -> str:
        """Returns the advice for an operation on a whole sequence."""
        name = equation.source.primitive.name
        if name == "gather":
            table = equation.inputs[0]
            shape = table.aval.shape if isinstance(table, Name) else ()
            is_fixed = all(isinstance(n, int) for n in shape)
            sizes = equation.source.params["slice_sizes"]
            if is_fixed and not all(map(is_known_length, sizes)):
                return FIRST_ROWS
            if is_fixed:
                return LOOK_UP
        if (
            self._lowering.of_rows
            and name == "reshape"
            and n_long_axes(equation.outputs[0].aval) > 1
        ):
            return ROWS
        if self._lowering.of_rows and _has_two_lengths(equation):
            return _OF_PAIRS.get(name, SWAPPED)
        return FIXES.get(name, ELSE)

    def _compute_early(
        self,
        equation: Equation,
        values: Sequence[Any],
        leaves: frozenset[Leaf],
    ) -> None:
        """An operation that needs no message: on constants, parameters, or the instance's values."""
        if leaves:
            for i, name in enumerate(equation.outputs):
                self.env[name] = OfParams(leaves, _of_params(equation, values, i))
        elif any(isinstance(value, Static) for value in values):
            self.statics |= dict.fromkeys(equation.outputs, equation)
            spaces = [value.column.space for value in values if isinstance(value, Static)]
            space = max(spaces, key=lambda s: len(s.around()))
            operands = []
            for v in values:
                operands.append(v.column.inside(space) if isinstance(v, Static) else v.value)
            whole = Column(space, lambda data: data.equation(equation.source, operands))  # type: ignore[arg-type]
            own = [v.column if isinstance(v, Static) else v.value for v in values]  # type: ignore[union-attr]
            for i, name in enumerate(equation.outputs):
                self.env[name] = Static(EquationColumn(whole, i, equation.source, own))
        else:
            results = constant_results(equation.source, [value.value for value in values])
            self.env |= {
                name: Constant(result)
                for name, result in zip(equation.outputs, results, strict=True)
            }


def _name_function(equation: Equation) -> str:
    """Names the function of JAX with advice that the user has called; empty for other functions."""
    for source in (*reversed(equation.place.callers), equation.source):
        name = str(source.params.get("name", source.primitive.name)).strip("_")
        if name in OF_WHOLE:
            return name
    return ""


def _has_two_lengths(equation: Equation) -> bool:
    """Tells whether an operand has two axes whose lengths are each instance's own."""
    types = [atom.aval for atom in equation.inputs if isinstance(atom, Name)]
    return any(n_long_axes(kind) > 1 for kind in types)


def _is_static_call(call: Call, values: Sequence[Value | None]) -> bool:
    """Tells whether a combinator's result follows from the instance, and is to be computed on the host."""
    if call.kind.on_host == "always":
        return True
    return _has_static_rule(call) and all(_is_static(value) for value in values)


def _has_static_rule(call: Call) -> bool:
    if call.kind.on_host == "never" or call.n_carry:
        return False
    equations = []
    for function in call.functions:
        for equation in flatten(function, dict.fromkeys(function.variables, Known(None)))[0]:
            equations.append(equation)
    return all(not e.draws and (e.call is None or _has_static_rule(e.call)) for e in equations)


def _is_static(value: Value | None) -> bool:
    known = value.innermost if isinstance(value, Elements) else value
    return isinstance(known, Static | Constant)


def _of_params(
    equation: Equation, values: Sequence[Any], number: int
) -> Callable[[Mapping[Leaf, Any]], Any]:
    def compute(params: Mapping[Leaf, Any]) -> Any:
        operands = []
        for value in values:
            operands.append(value.compute(params) if isinstance(value, OfParams) else value.value)
        return bind(equation.source, operands)[number]

    return compute
