"""Says why a step's numbers are not finite: an id outside of its table, or the operation that made the first NaN or infinity.

The loss and its gradients are computed once more, equation by equation, and the number is followed back to where it comes from. Nothing
of that is done before a step has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.random_keys import data_of, is_key
from ampjax.errors import AmpError
from ampjax.jaxprs import primitives
from ampjax.jaxprs.flat_calls import Program, without_calls
from ampjax.parallel.config.leaf_paths import by_path, names
from ampjax.parallel.equivalence.joined_batch import JoinedBatch
from ampjax.parallel.id_watch import describe_outside
from ampjax.parallel.planning.build_runner import RunnerSetup, Step
from ampjax.parallel.planning.variable_plan import VariablePlan
from ampjax.parallel.steps.synchronous_steps import DenseStep
from ampjax.sparse.rewrite.outside_ids import OutsideIds
from ampjax.sparse.rewrite.pulled_step import rewrite
from ampjax.sparse.rewrite.unique_ids import unique_rows

Tree = Any
_NO_WEIGHT = "`div` divides 0 by 0"
"""What is said of a quotient that is in no line of the user's."""


def with_cause(
    error: AmpError,
    setup: RunnerSetup,
    plan: VariablePlan,
    step: Step,
    parts: Sequence[Tree],
) -> AmpError:
    """An error about numbers that are not finite, with their cause; the error itself, if that is about something else or nobody finds the cause.

    Args:
      error: The error of a step that has changed nothing.
      setup: What the model is trained with.
      plan: What became of its variables.
      step: Its step; parameters are read from there.
      parts: By replica its part of the step's batch.
    """
    if error.expected != "finite numbers":
        return error
    batch = JoinedBatch(parts, setup.config.shared)
    for whose, each in [
        ("", batch.whole),
        *((f" in the part of replica {i}", part) for i, part in enumerate(parts)),
    ]:
        try:
            cause = _cause(setup, plan, step, each)
        except (
            Exception
        ):  # of what the user's program does with such a batch: the error as it is says enough
            cause = ""
        if cause:
            return type(error)(
                error.where, error.expected, error.got, f"{error.fix} The cause{whose}: {cause}."
            )
    return error


def _cause(
    setup: RunnerSetup,
    plan: VariablePlan,
    step: Step,
    batch: Tree,
) -> str:
    """Finds the reason why the loss or a gradient of a batch is not finite on one device; empty if all are finite."""
    program = rewrite(
        setup.loss_fn,
        plan.program.params,
        batch,
        plan.program.axes,
    )
    dense, _ = step.read()
    kept = (
        {} if isinstance(step, DenseStep) else step.homes.parts()
    )  # here no rows of several variables are one table
    rows = {}
    inverse = {}
    for path, ids in program.ids(dense, batch).items():
        unique = unique_rows(
            np.asarray(ids),
            program.tables[path].shape[0],
        )
        if len(unique.ids):
            some = unique.ids
        else:
            some = np.zeros(1, np.int64)
        rows[path] = np.asarray(
            kept[path].pull(some),
            program.tables[path].dtype,
        )
        inverse[path] = unique.inverse
    args, structure = jax.tree.flatten((dense, rows, batch, inverse))

    def results(*leaves: Any) -> Any:
        dense, rows, batch, inverse = jax.tree.unflatten(structure, leaves)
        out, grads = program.value_and_grad(dense, rows, batch, inverse)
        return out[0] if program.split_loss(batch).traced.has_aux else out, grads

    closed = jax.make_jaxpr(results)(*args)
    flat = without_calls(*primitives.opened(closed))
    text = names(program.params)
    labels = [
        *(f"parameter `{path}`" for path in by_path(dense)),
        *(f"a row of `{text[path]}`" for path in sorted(rows)),
    ]
    labels += [f"leaf `{path}` of the batch" for path in by_path(batch)]
    is_weighted = program.split_loss(batch).traced.is_weighted
    text_of_origin, is_written = _Values(flat, args).origin(labels, batch)
    if is_written:  # a read gives NaN for ids outside of a table
        split = program.split_loss(batch)
        inputs = [None] * len(split.traced.leaves) + jax.tree.leaves(batch)
        outside = []
        for hit in OutsideIds(split)(inputs):
            if hit.read.mode == "fill":
                outside.append(hit)
        if outside:
            return describe_outside(outside[0], text[outside[0].path], batch)
    if is_weighted and text_of_origin == _NO_WEIGHT:
        return "all weights of `px.Weighted` add up to 0"
    return text_of_origin


# ---- the operation ---------------------------------------------------------------------------------------------------


class _Values:
    """All values of a program.

    Args:
      program: The program.
      args: Its arguments.
    """

    def __init__(self, program: Program, args: Sequence[Any]):
        self._jaxpr, constants = program
        self._env: dict[Any, Any] = dict(zip(self._jaxpr.constvars, constants, strict=True))
        self._env.update(zip(self._jaxpr.invars, args, strict=True))
        self._made: dict[Any, Any] = {}
        for eqn in self._jaxpr.eqns:
            outs = primitives.bind(
                eqn,
                [self._value(v) for v in eqn.invars],
            )
            self._env.update(zip(eqn.outvars, outs, strict=True))
            self._made.update(dict.fromkeys(eqn.outvars, eqn))

    def origin(
        self,
        labels: Sequence[str],
        batch: Tree,
    ) -> tuple[str, bool]:
        """Finds the origin of the first result that is not finite.

        Args:
          labels: Names of the arguments; those that are left over have none.
          batch: The batch, among whose leaves ids are looked for.

        Returns:
          The place in words, empty if all results are finite; and whether it is a number written into the program.
        """
        wrong = []
        for v in self._jaxpr.outvars:
            if not hasattr(v, "val") and not _all(np.isfinite, self._value(v)):
                wrong.append(v)
        if not wrong:
            return "", False
        atom = wrong[0]
        is_wrong = np.isinf if _all(_is_number, self._value(atom)) else np.isnan
        while atom in self._made:
            eqn = self._made[atom]
            sources = [
                v
                for v in self._sources(eqn)
                if not _all(lambda array: ~is_wrong(array), self._value(v))
            ]
            inside = [v for v in sources if not hasattr(v, "val")]
            if not sources:
                return _describe(
                    eqn,
                    [self._value(v) for v in eqn.invars],
                    is_wrong,
                    batch,
                ), False
            if not inside:
                return f"a number in the program is {_name(is_wrong)}{_at(eqn)}", True
            atom = inside[0]
        label = dict(zip(self._jaxpr.invars, labels, strict=False)).get(
            atom,
            "a constant",
        )
        return f"{label} holds a number that is {_name(is_wrong)}", atom in self._jaxpr.constvars

    def _sources(self, eqn: Any) -> list[Any]:
        """Selects the operands from which a result may have a number that is not finite: of a choice, the chosen ones."""
        if eqn.primitive.name != "select_n":
            return list(eqn.invars)
        which, *cases = eqn.invars
        chosen = np.asarray(self._value(which))
        result = []
        for i, case in enumerate(cases):
            if (chosen == i).any():
                result.append(case)
        return result

    def _value(self, atom: Any) -> Any:
        return primitives.value_of(atom, self._env)


def _is_number(array: np.ndarray) -> np.ndarray:
    return ~np.isnan(array)


def _all(test: Any, value: Any) -> bool:
    """Tells whether all numbers pass a test; keys and integers pass always."""
    if is_key(value) or not primitives.is_inexact(jnp.result_type(value)):
        return True
    array = np.asarray(value)
    wide = array.astype(
        np.result_type(array.dtype, np.float32)
    )  # NumPy does not know all of JAX's short floats
    return bool(test(wide).all())


def _name(is_wrong: Any) -> str:
    return "NaN" if is_wrong is np.isnan else "infinite"


def _at(eqn: Any) -> str:
    line = primitives.source_line(eqn)
    return f" ({line})" if line else ""


def _read_outside(eqn: Any, indices: np.ndarray) -> list[int]:
    """An index of a gather that is outside, and the same counted from the end; none if all are inside."""
    shape = eqn.invars[0].aval.shape
    sizes = eqn.params["slice_sizes"]
    for column, axis in enumerate(eqn.params["dimension_numbers"].start_index_map):
        of_axis = indices[..., column]
        outside = of_axis[(of_axis < 0) | (of_axis > shape[axis] - sizes[axis])]
        if outside.size:
            return [
                int(outside.flat[0]),
                int(outside.flat[0]) - shape[axis],
            ]
    return []


_REASONS = {
    "div": (lambda a, b: (b == 0).any(), "divides {} by 0"),
    "log": (lambda a: (a <= 0).any(), "takes the logarithm of a number that is not above 0"),
    "log1p": (lambda a: (a <= -1).any(), "takes the logarithm of a number that is not above 0"),
    "sqrt": (lambda a: (a < 0).any(), "takes the root of a number below 0"),
    "rsqrt": (lambda a: (a <= 0).any(), "divides by the root of a number that is not above 0"),
    "exp": (lambda a: (a > 80).any(), "takes the exponential of a large number"),
    "pow": (lambda a, b: (a <= 0).any(), "raises a number that is not above 0 to a power"),
}


def _describe(
    eqn: Any,
    operands: Sequence[Any],
    is_wrong: Any,
    batch: Tree,
) -> str:
    """Describes an equation's failure in words."""
    name = eqn.primitive.name
    if name == "gather" and (outside := _read_outside(eqn, np.asarray(operands[1]))):
        held = []
        for path, leaf in by_path(batch).items():
            if not is_key(leaf) and np.isin(outside, leaf).any():
                held.append(path)
        of_leaf = f" of leaf `{held[0]}`" if held else ""
        shape = list(eqn.invars[0].aval.shape)
        return f"id {outside[0]}{of_leaf} is outside of an array of {shape}, which `gather` reads{_at(eqn)}"
    numbers = []
    for v in operands:
        if primitives.is_inexact(jnp.result_type(v)):
            numbers.append(data_of(v).astype(np.float64))
    test, text = _REASONS.get(name, (lambda *_: False, ""))
    if len(numbers) == len(operands) and test(*numbers):
        what = text.format(0 if name == "div" and is_wrong is np.isnan else "a number")
    else:
        largest = max(
            (float(np.abs(each).max(initial=0)) for each in numbers),
            default=0.0,
        )
        what = f"makes a number that is {_name(is_wrong)} of numbers up to {largest:.3g}"
    return f"`{name}`{_at(eqn)} {what}"
