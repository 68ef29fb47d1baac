"""Splits an optax transform in two: the update of tables' rows, and the part that all variables share.

The row part runs where the rows are, the shared part once a step. Only scalars travel between them (Parallax, arXiv version, §3.3: partial
norms at their servers, one shared scalar). Knows pytrees and optax; nothing of servers, or of where rows are kept.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax

from ampjax.errors import SettingsError, TableError
from ampjax.jaxprs.dependence import Dependence, RowInput, find_dependence
from ampjax.jaxprs.flat_program import FlatProgram, Var, is_literal, trace, trace_update
from ampjax.jaxprs.program_slices import row_slice, shared_slice
from ampjax.jaxprs.value_numbers import ValueNumbers
from ampjax.optim.row_rule import RowRule, RowState
from ampjax.optim.split_transform import Split
from ampjax.optim.table_leaves import TableLeaves
from ampjax.utils.counted import count_of

Tree = Any
Program = tuple[FlatProgram, Dependence]
ALONE = ""
"""The path of the one leaf of a tree that is an array."""
FEWEST_STACKED = 4
"""Tables that are stacked at least. Fewer cost little each by itself, and stay where they can be looked at one by one."""

_DENSE = "Keep the variable dense, or take a transform whose state has one entry per row."


def split_rows(
    tx: optax.GradientTransformation,
    params: Tree,
    tables: Sequence[str],
    transposed: Collection[str] = (),
    alike: Mapping[str, Hashable] | None = None,
    check_finite: bool = True,
) -> Split:
    """Cuts an optax transform into the rules for some tables' rows and a shared part.

    Nothing is computed or allocated. `tx` is traced, its operations are followed from each table's gradient, parameters
    and state, and each operation must work row by row. Reductions of a whole gradient, such as the sum in a global norm, are the
    exception: they become reductions of the rows that were touched.

    Args:
      tx: Any optax transform, chains and masks included.
      params: The parameters, or their shapes and dtypes.
      tables: Leaves of `params` that are tables, `[n_rows, *row]`, by their paths as `jax.tree_util.keystr` writes them.
      transposed: The tables among these that represent parameters with other axes, such as a transpose; there `tx` must not depend on axes.
      alike: Tables that may share a rule and be stacked, one's rows after the other's: those with equal values here, if they also have equal
        rows and `tx` treats them alike. None: each table has a rule of its own.
      check_finite: Whether tables refuse gradients that are not finite. If not, `tx` gets them; then new rows that are not finite are refused.

    Returns:
      The parts; together they equal `tx` on the whole tree.

    Raises:
      SettingsError: If `tx` is no optax transform, or needs more than gradients, state and parameters.
      TableError: If a table is no such leaf, or the transform is not row-wise on it.

    >>> params = {"embedding": jax.ShapeDtypeStruct((1000, 4), "float32"), "w": jax.ShapeDtypeStruct((4,), "float32")}
    >>> split = split_rows(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), params, ["['embedding']"])
    >>> split.n_rounds, [s.name for s in split.rules["['embedding']"].state]
    (1, ["[1][0].mu['embedding']", "[1][0].nu['embedding']"])
    """
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise SettingsError(
            "tx", "an optax transform", type(tx).__name__, "Pass for example `optax.adam(1e-3)`."
        )
    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype),
        params,
    )
    owners = _table_leaves(params, tables)
    first = trace(tx.init, params)
    shapes = first.shapes
    states = TableLeaves.of(
        shapes,
        _aligned_states(tx, params, owners, shapes, transposed),
    )
    step = _traced_update(tx, params, shapes)
    rows = _rows(owners, transposed)
    state_rows = _rows(states, transposed)
    grads = [row and replace(row, is_gradient=True) for row in rows]
    programs = (
        (first, find_dependence(first, rows)),
        (step, find_dependence(step, [*grads, *state_rows, *rows])),
    )
    _check_outputs(programs[0], states)
    _check_outputs(programs[1], owners, states)
    stacks = _stack_tables(_Treatments(owners, states, *programs), alike)
    n_rows = {}
    for t in tables:
        n_rows[t] = _table(params, owners, t).shape[0]
    split = _assemble(owners, states, *programs, stacks, n_rows)
    if check_finite:
        return split
    rules = {name: replace(rule, check_finite=False) for name, rule in split.rules.items()}
    return replace(split, rules=rules)


@functools.lru_cache(maxsize=64)
def split_alone(
    tx: optax.GradientTransformation,
    shape: tuple[int, ...],
    dtype: np.dtype,
) -> Split:
    """`split_rows` for a table that is all of the parameters. The table is called `ALONE`.

    Args:
      tx: An optax transform.
      shape: The table's shape, `[n_rows, *row]`.
      dtype: Its dtype.

    Returns:
      The parts.

    Raises:
      SettingsError: As `split_rows` does.
      TableError: As `split_rows` does.
    """
    return split_rows(tx, jax.ShapeDtypeStruct(shape, dtype), [ALONE])


def _traced_update(tx: optax.GradientTransformation, params: Tree, state: Tree) -> FlatProgram:
    try:
        return trace_update(tx, params, state)
    except TypeError as error:
        if "required keyword-only argument" not in str(error):
            raise
        fix = "Take another one, or keep all variables dense and synchronous: then it gets the loss as `value`."
        raise SettingsError(
            "tx", "an update from gradients, state and parameters", f"`{error}`", fix
        ) from error


def _table_leaves(params: Tree, tables: Sequence[str]) -> TableLeaves:
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    names = [jax.tree_util.keystr(path) for path, _ in flat]
    for table in tables:
        if table not in names:
            raise TableError(
                f"table `{table}`",
                f"one of {', '.join(names)}",
                "no such leaf",
                "Name it by its path in `params`.",
            )
        leaf = flat[names.index(table)][1]
        if not leaf.shape or not jax.numpy.issubdtype(leaf.dtype, np.inexact):
            raise TableError(
                f"table `{table}`",
                "floats, [n_rows, *row]",
                f"{leaf.dtype}{list(leaf.shape)}",
                "Keep it dense.",
            )
    return TableLeaves.of(
        params,
        [name if name in tables else None for name in names],
    )


def _aligned_states(
    tx: Any,
    params: Tree,
    owners: TableLeaves,
    shapes: Tree,
    transposed: Collection[str],
) -> list[str | None]:
    """Finds the table of each state leaf: the leaf grows with the number of that table's rows."""
    flat, structure = jax.tree_util.tree_flatten_with_path(shapes)
    tables = [t for t in owners.table_of if t is not None]
    longer = jax.eval_shape(tx.init, _more_rows(params, owners))
    if jax.tree.structure(longer) != structure:
        _refuse_state(tables[0], "optimizer state", "other leaves with another number of rows")
    result: list[str | None] = []
    for (path, old), new in zip(flat, jax.tree.leaves(longer), strict=True):
        if old.shape == new.shape:
            result.append(None)
            continue
        if old.shape and len(new.shape) == len(old.shape):
            more = new.shape[0] - old.shape[0]
        else:
            more = 0
        table = tables[more - 1] if 1 <= more <= len(tables) else None
        whole = _table(params, owners, table or tables[0]).shape
        is_other = table in transposed and old.shape != whole
        if (
            table is None
            or (*old.shape[1:],) != new.shape[1:]
            or old.shape[0] != whole[0]
            or is_other
        ):
            _refuse_state(
                table or tables[0],
                jax.tree_util.keystr(path),
                f"shapes {old.shape}, {new.shape} where the table has more rows",
            )
        result.append(table)
    return result


def _more_rows(params: Tree, owners: TableLeaves) -> Tree:
    """Parameters whose tables have more rows: the first table one, the second two, and so on."""
    numbers = itertools.count(1)
    leaves = []
    for leaf, table in zip(jax.tree.leaves(params), owners.table_of, strict=True):
        leaves.append(
            leaf
            if table is None
            else jax.ShapeDtypeStruct(
                (leaf.shape[0] + next(numbers), *leaf.shape[1:]),
                leaf.dtype,
            )
        )
    return jax.tree.unflatten(owners.structure, leaves)


def _table(params: Tree, owners: TableLeaves, table: str) -> Any:
    return jax.tree.leaves(params)[owners.places(table)[0]]


def _rows(
    leaves: TableLeaves,
    transposed: Collection[str],
) -> list[RowInput | None]:
    result = []
    for table in leaves.table_of:
        result.append(None if table is None else RowInput(table, is_transposed=table in transposed))
    return result


class _Treatments:
    """An optimizer's treatment of the rows of each table, in a form that can be compared.

    Args:
      params: The leaves of the parameters.
      states: The leaves of the optimizer's state.
      first: The program of `tx.init`.
      step: The program of the update.
    """

    def __init__(
        self,
        params: TableLeaves,
        states: TableLeaves,
        first: Program,
        step: Program,
    ):
        self.params = params
        self._states = states
        self._first = first
        self._step = step
        flat = step[0]
        n_params = len(params.names)
        n_states = len(states.names)
        roles: dict[Var, Hashable] = {}
        for table in _tables(params):
            (place,) = params.places(table)
            roles |= {
                flat.inputs[place]: "gradient",
                flat.inputs[n_params + n_states + place]: "parameter",
            }
            roles |= {
                flat.inputs[n_params + i]: ("state", k) for k, i in enumerate(states.places(table))
            }
        self._of_step = ValueNumbers(*step, roles)
        inputs = {}
        for table in _tables(params):
            inputs[first[0].inputs[params.places(table)[0]]] = "parameter"
        self._of_first = ValueNumbers(*first, inputs)

    def of(self, table: str) -> Hashable:
        """Describes the treatment of one table's rows. Equal treatments are the same functions of rows and shared values."""
        (place,) = self.params.places(table)
        aligned = self._states.places(table)
        first = self._first[0]
        flat, dependence = self._step
        of = self._of_step.of
        row = flat.inputs[place].aval
        results = [
            flat.outputs[place],
            *(flat.outputs[len(self.params.names) + i] for i in aligned),
        ]
        totals = tuple(
            (r.round, self._of_step.operation(r.equation))
            for r in dependence.reductions
            if r.table == table
        )
        kinds = tuple((atom.aval.shape[1:], atom.aval.dtype) for atom in results)
        treatments = tuple(self._of_first.of(first.outputs[i]) for i in aligned)
        return (
            row.shape[1:],
            row.dtype,
            kinds,
            treatments,
            tuple(
                map(
                    of,
                    results,
                )
            ),
            totals,
        )


def _tables(leaves: TableLeaves) -> list[str]:
    return [t for t in leaves.table_of if t is not None]


def _stack_tables(
    treatments: _Treatments, alike: Mapping[str, Hashable] | None
) -> dict[str, tuple[str, ...]]:
    """Groups the tables that share a rule, by rule."""
    tables = _tables(treatments.params)
    if alike is None:
        return {table: (table,) for table in tables}
    groups: dict[Hashable, list[str]] = {}
    for table in tables:
        groups.setdefault(
            (alike[table], treatments.of(table)),
            [],
        ).append(table)
    stacks = []
    for members in groups.values():
        stacks.append([members] if len(members) >= FEWEST_STACKED else [[t] for t in members])
    result = {}
    for members in itertools.chain(*stacks):
        result[stack_name(members)] = tuple(members)
    return result


def stack_name(tables: Sequence[str]) -> str:
    """The name of a table that holds the rows of several.

    >>> stack_name(["['a']"]), stack_name(["['a']", "['b']", "['c']"])
    ("['a']", "['a'] and 2 others")
    """
    more = f" and {count_of(len(tables) - 1, 'other')}" if len(tables) > 1 else ""
    return f"{tables[0]}{more}"


def _assemble(
    params: TableLeaves,
    states: TableLeaves,
    first: Program,
    step: Program,
    stacks: Mapping[str, tuple[str, ...]],
    n_rows: Mapping[str, int],
) -> Split:
    """Puts rules and shared parts together, from the programs of `tx.init` and of the update."""
    flat, dependence = step
    n_rounds = max(
        (r.round + 1 for r in dependence.reductions),
        default=0,
    )
    rules = {}
    for name, members in stacks.items():
        starts = tuple(itertools.accumulate((n_rows[t] for t in members[:-1]), initial=0))
        rules[name] = _rule(
            name,
            members,
            starts,
            params,
            states,
            first,
            step,
            n_rounds,
        )
    rounds = []
    for turn in range(n_rounds):
        rounds.append([var for rule in rules.values() for var in rule.rounds[turn][1].shared])
    for_rules = []
    for rule in rules.values():
        for var in rule.step.shared:
            for_rules.append(var)
    return Split(
        rules=rules,
        n_rounds=n_rounds,
        params=params,
        state=states,
        members=dict(stacks),
        _init=(
            _select_shared(first[0].inputs, params),
            shared_slice(*first, _select_shared(first[0].outputs, states)),
        ),
        _inputs=_select_shared(flat.inputs, params, states, params),
        _rounds=tuple(shared_slice(flat, dependence, needed) for needed in rounds),
        _update=shared_slice(
            flat, dependence, [*_select_shared(flat.outputs, params, states), *for_rules]
        ),
    )


def _select_shared(
    atoms: Sequence[Any],
    *leaves: TableLeaves,
) -> tuple[Any, ...]:
    """Selects the inputs or outputs that belong to no table, in the order of `leaves`."""
    owners = []
    for each in leaves:
        for table in each.table_of:
            owners.append(table)
    result = []
    for atom, table in zip(atoms, owners, strict=True):
        if table is None:
            result.append(atom)
    return tuple(result)


def _rule(
    name: str,
    members: tuple[str, ...],
    starts: tuple[int, ...],
    params: TableLeaves,
    states: TableLeaves,
    first: Program,
    step: Program,
    n_rounds: int,
) -> RowRule:
    """The rule of one table, or of several that are treated alike, from the programs of `tx.init` and of the update."""
    table = members[0]
    (place,) = params.places(table)
    aligned = states.places(table)
    flat, dependence = step
    n_params = len(params.names)
    n_states = len(states.names)
    state_vars = tuple(flat.inputs[n_params + i] for i in aligned)
    row = flat.inputs[n_params + n_states + place]
    rounds = []
    for turn in range(n_rounds):
        totals = {member: [] for member in members}
        for reduction in dependence.reductions:
            if reduction.round == turn and reduction.table in totals:
                totals[reduction.table].append(reduction)
        operands = [reduction.equation.invars[0] for reduction in totals[table]]
        rounds.append(
            (
                tuple(map(tuple, totals.values())),
                row_slice(flat, dependence, table, operands),
            )
        )
    results = [
        flat.outputs[place],
        *(flat.outputs[n_params + i] for i in aligned),
    ]
    return RowRule(
        table=name,
        shape=row.aval.shape[1:],
        dtype=np.dtype(row.aval.dtype),
        state=tuple(
            RowState(
                states.names[i],
                var.aval.shape[1:],
                np.dtype(var.aval.dtype),
            )
            for i, var in zip(aligned, state_vars, strict=True)
        ),
        first=(
            first[0].inputs[place],
            row_slice(
                *first,
                table,
                [first[0].outputs[i] for i in aligned],
            ),
        ),
        rounds=tuple(rounds),
        step=row_slice(flat, dependence, table, results),
        variables=(row, flat.inputs[place], state_vars),
        parameters=members,
        starts=starts,
    )


def _check_outputs(program: Program, *leaves: TableLeaves) -> None:
    """Checks that every result belongs where its leaf does: to its table's rows, or to the shared part."""
    flat, dependence = program
    named = []
    for each in leaves:
        for leaf in zip(each.names, each.table_of, strict=True):
            named.append(leaf)
    for (name, table), out in zip(named, flat.outputs, strict=True):
        owner = None if is_literal(out) else dependence.table_of.get(out)
        if table is not None and not dependence.is_aligned(out, table):
            _refuse_state(table, name, "a new value that is not one entry per row")
        if table is None and owner is not None:
            _refuse_state(owner, name, "a new value made of rows, for a leaf that has none")


def _refuse_state(table: str, state: str, got: str) -> None:
    raise TableError(
        f"tx, table `{table or 'params'}`, `{state}`", "one entry per row, or none", got, _DENSE
    )
