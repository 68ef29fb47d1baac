"""Finds the sparse parameter leaves in the loss function's jaxpr (Parallax §4.1; there by the type of the gradient).

A leaf is sparse when all its uses read whole rows by ids that are known before the step: then its gradient is a set of rows,
and the step needs no more of it than these. In doubt a leaf is dense, and its reason says why.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ampjax.jaxprs import primitives
from ampjax.sparse.detection.findings import Cause, Deps, EquationPlace, Read, Value
from ampjax.sparse.detection.loss_jaxpr import Leaf, LossFn, MappedAxes, TracedLoss, trace_loss
from ampjax.sparse.detection.read_forms import describe_form
from ampjax.sparse.detection.row_axes import LEADING
from ampjax.sparse.detection.table_flow import TableFlow
from ampjax.sparse.detection.table_views import MAX_ROWS, whole_table

MIN_ROWS = 8
"""Tables with fewer rows are dense: there is nothing to save."""

Axes = tuple[int, ...]
"""The axes of a leaf along which its rows are counted, rising."""

_READS = ("`gather`", "`dynamic_slice`")
_PICKS = (*_READS, "`concatenate`", "`stack`", "`scatter`", "`pad`")
"""Uses which suggest that whole rows are read along other axes than the first."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """The findings on one parameter leaf.

    Args:
      path: Its name, as `jax.tree_util.keystr` writes it.
      shape: Its shape.
      dtype: Its dtype.
      sparse: Whether it is.
      reason: Its reads and their form, or the use that made it dense: the primitive and, where JAX kept it, the user's source line.
      axes: The axes along which its rows are counted.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    sparse: bool
    reason: str
    axes: Axes = LEADING

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return _n_rows(self.shape, self.axes)


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The findings on all parameter leaves of a loss function, in the order of the flattened parameters.

    Args:
      variables: One entry a leaf.
    """

    variables: tuple[Variable, ...]

    @property
    def sparse(self) -> tuple[str, ...]:
        """The paths of the sparse leaves."""
        return tuple(v.path for v in self.variables if v.sparse)

    def __getitem__(self, path: str) -> Variable:
        return {v.path: v for v in self.variables}[path]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def __str__(self) -> str:
        kinds = [f"{v.dtype}{list(v.shape)}" for v in self.variables]
        wide = max(len(v.path) for v in self.variables)
        typed = max(map(len, kinds))
        return "\n".join(
            f"{v.path:{wide}}  {kind:{typed}}  {'sparse' if v.sparse else 'dense '}  {v.reason}"
            for v, kind in zip(self.variables, kinds, strict=True)
        )

    def __repr__(self) -> str:
        return str(self)


def find_sparse(
    loss_fn: LossFn,
    params: Any,
    batch: Any,
    min_rows: int = MIN_ROWS,
    mapped: MappedAxes = (),
) -> Analysis:
    """Finds the sparse parameter leaves of a single-device loss function. Nothing is computed.

    A leaf is sparse if it is only read by gathers of whole rows. These are `table[ids]`, `jnp.take`, `.at[ids].get`, `table[i]`, embeddings of
    flax; of a stack of tables, `tables[f, ids]` or the same under `vmap`; of columns, `table[:, ids]`. Before a gather there may be casts,
    transposes, reshapes that keep rows in one piece, slices, `stop_gradient`, a few overwritten rows (`table.at[0].set(0)`) and a
    concatenation of tables. Gathers may be inside `jit`, `checkpoint`, `custom_jvp`, `vmap`, `scan`, `cond` and, if ids don't change from
    step to step, `while`. Ids may come from the batch, from constants, from integer parameters and from random keys among these; not from
    float parameters, nor from rows that were read.

    Args:
      loss_fn: `loss_fn(params, batch) -> loss` or `(loss, aux)`.
      params: Any pytree of arrays or `jax.ShapeDtypeStruct`s.
      batch: The same for a batch. Its sizes may differ from those of later batches.
      min_rows: A leaf with fewer rows is dense.
      mapped: Names and sizes of the axes over which the loss function will be mapped.

    Returns:
      One entry for each leaf, in the order of the flattened parameters: whether it is sparse, and why or why not.

    Raises:
      ParameterError: If no parameter leaf is a float array, or one is no array.
      DataError: If a leaf of the batch is no array.
      SettingsError: If the loss is not a float scalar.
      Exception: Whatever the loss function raises while JAX traces it.

    >>> import jax.numpy as jnp
    >>> def loss(params, ids):
    ...     return jnp.sum(params["table"][ids] @ params["w"])
    >>> print(find_sparse(loss, {"table": jnp.ones((100, 8)), "w": jnp.ones(8)}, jnp.arange(3)))
    ['table']  float32[100, 8]  sparse  1 read: gather ...
    ['w']      float32[8]       dense   used by `dot_general` ...
    """
    return Analysis(analyse(trace_loss(loss_fn, params, batch, mapped), min_rows))


def follow(traced: TracedLoss, axes: Mapping[int, Axes]) -> TableFlow:
    """Follows some leaves through a loss function.

    Args:
      traced: The loss function.
      axes: By leaf, the axes along which its rows are counted.

    Returns:
      The reads and other uses that were found.
    """
    flow = TableFlow()
    params: list[Value] = []
    for i, leaf in enumerate(traced.leaves):
        params.append(_start(i, leaf, axes))
    others: list[Value] = [frozenset()] * (len(traced.jaxpr.invars) - len(params))
    for out in flow.run(traced.jaxpr, [*params, *others], EquationPlace()):
        flow.note_use(out, "the result of the loss function")
    return flow


def analyse(traced: TracedLoss, min_rows: int) -> tuple[Variable, ...]:
    """The leaves of a traced loss function.

    Args:
      traced: The loss function.
      min_rows: A leaf with fewer rows is dense.

    Returns:
      One entry for each leaf, in their order.
    """
    search = _TableSearch(traced, max(min_rows, 2))
    search.run()
    result = []
    for i, leaf in enumerate(traced.leaves):
        result.append(
            Variable(
                leaf.path,
                leaf.shape,
                leaf.dtype,
                i in search.found,
                search.reasons[i],
                search.found.get(i, LEADING),
            )
        )
    return tuple(result)


def look_again(
    traced: TracedLoss, known: Mapping[str, Axes]
) -> tuple[TableFlow, tuple[Variable, ...]]:
    """Repeats the analysis of sparse leaves that are known already, perhaps for batches of other sizes.

    Args:
      traced: The loss function.
      known: By path of such a leaf, the axes along which its rows are counted.

    Returns:
      The reads and other uses of these leaves; and one entry for each leaf, of which others than these are dense.
    """
    axes = {}
    for i, leaf in enumerate(traced.leaves):
        if leaf.path in known:
            axes[i] = known[leaf.path]
    flow = follow(traced, axes)
    variables = []
    for i, leaf in enumerate(traced.leaves):
        if i not in axes:
            is_sparse = False
            reason = "not looked at"
        elif i not in flow.uses and not _reads_of(i, flow):  # this batch has no ids for it
            is_sparse = True
            reason = "no row of it is read"
        else:
            is_sparse, reason = _judge(i, axes[i], traced.leaves, flow)
        variables.append(
            Variable(
                leaf.path,
                leaf.shape,
                leaf.dtype,
                is_sparse,
                reason,
                axes.get(i, LEADING),
            )
        )
    return flow, tuple(variables)


class _TableSearch:
    """Looks for the axes along which each leaf's rows can be counted.

    Args:
      traced: The loss function.
      min_rows: A leaf with fewer rows is dense.

    Attributes:
      found: By sparse leaf its axes.
      reasons: By leaf the reason that is given for the verdict.
    """

    def __init__(self, traced: TracedLoss, min_rows: int):
        self.found: dict[int, Axes] = {}
        self.reasons: dict[int, str] = {}
        self._traced = traced
        self._min_rows = min_rows
        self._reached: dict[int, tuple[int, bool]] = {}

    def run(self) -> None:
        """Tries all leaves along their first axis; then other axes for leaves whose uses suggest that rows are read along them."""
        leaves = self._traced.leaves
        flow = self._try(dict.fromkeys(range(len(leaves)), LEADING))
        unsure = set()
        for i in self.found:
            if all(r.primitive == "slice" for r in _reads_of(i, flow)):
                unsure.add(i)
        unsure |= {
            i
            for i, leaf in enumerate(leaves)
            if i not in self.found and primitives.is_inexact(leaf.dtype)
        }
        unsure = {i for i in unsure if len(leaves[i].shape) > 1}
        if unsure:
            survey = follow(
                self._traced,
                self.found | dict.fromkeys(unsure, ()),
            )
        else:
            survey = flow
        unsure = {i for i in unsure if survey.uses.get(i, "").startswith(_PICKS)}
        options = {i: _options(len(leaves[i].shape)) for i in unsure}
        for turn in itertools.zip_longest(*options.values()):
            self._try(
                {
                    i: axes
                    for i, axes in zip(options, turn, strict=True)
                    if axes and self._is_open(i)
                }
            )
        self._settle()

    def _is_open(self, leaf: int) -> bool:
        return self.found.get(leaf, LEADING) == LEADING

    def _try(self, axes: Mapping[int, Axes]) -> TableFlow:
        """Follows leaves along some axes, together with the sparse leaves found so far, and keeps the verdict on each."""
        barred = {
            i: why
            for i, leaf_axes in axes.items()
            if (why := _find_obstacle(self._traced.leaves[i], leaf_axes, self._min_rows))
        }
        flow = follow(
            self._traced,
            self.found | {i: leaf_axes for i, leaf_axes in axes.items() if i not in barred},
        )
        for i, leaf_axes in axes.items():
            if i in barred:
                is_sparse = False
                reason = barred[i]
            else:
                is_sparse, reason = _judge(i, leaf_axes, self._traced.leaves, flow)
            # Among axes that fail, the most useful reason is that of the axes along which most is read, or rows are lost last.
            reached = (
                len(_reads_of(i, flow)),
                i in flow.uses and not flow.uses[i].startswith(_READS),
            )
            if (
                is_sparse
                or i not in self.reasons
                or (i not in self.found and reached > self._reached[i])
            ):
                self.reasons[i] = reason
                self._reached[i] = reached
            if is_sparse:
                self.found[i] = leaf_axes
        return flow

    def _settle(self) -> None:
        """Follows all sparse leaves together once more, until none is lost: a leaf may be read together with one that has become dense."""
        while True:
            flow = follow(self._traced, self.found)
            verdicts = {}
            for i, axes in self.found.items():
                verdicts[i] = _judge(i, axes, self._traced.leaves, flow)
            self.reasons |= {i: reason for i, (_, reason) in verdicts.items()}
            lost = [i for i, (is_sparse, _) in verdicts.items() if not is_sparse]
            if not lost:
                return
            for i in lost:
                del self.found[i]


def _options(n_axes: int) -> list[Axes]:
    """Other axes than the first along which rows may be counted. The smallest rows come first, so that no more is read than necessary."""
    sizes = range(min(n_axes, 3), 0, -1)
    result = []
    for size in sizes:
        for axes in itertools.combinations(range(n_axes), size):
            if axes != LEADING:
                result.append(axes)
    return result


def _n_rows(shape: tuple[int, ...], axes: Axes) -> int:
    return math.prod(shape[a] for a in axes)


def _find_obstacle(leaf: Leaf, axes: Axes, min_rows: int) -> str:
    """Gives the reason why a leaf can't be sparse, whatever the program does with the leaf; empty if there is none."""
    if not primitives.is_inexact(leaf.dtype):
        return f"{leaf.dtype} has no gradient"
    if not leaf.shape:
        return "a scalar has no rows"
    n_rows = _n_rows(leaf.shape, axes)
    if n_rows < min_rows:
        return f"{n_rows} rows, fewer than {min_rows}"
    return f"{n_rows} rows, more than {MAX_ROWS}" if n_rows > MAX_ROWS else ""


def _start(
    index: int,
    leaf: Leaf,
    axes: Mapping[int, Axes],
) -> Value:
    if not primitives.is_inexact(leaf.dtype):
        return frozenset()  # no step changes it, so it is known before the step
    if index in axes:
        return whole_table(index, leaf.shape, axes[index])
    return frozenset({index})


def _judge(
    index: int,
    axes: Axes,
    leaves: tuple[Leaf, ...],
    flow: TableFlow,
) -> tuple[bool, str]:
    reads = _reads_of(index, flow)
    if index in flow.uses:
        return False, f"used by {flow.uses[index]}" + (
            f", beside {_count_reads(reads)}" if reads else ""
        )
    unknown = next((read for read in reads if read.deps), None)
    if unknown is not None:
        return (
            False,
            f"row ids of {_read_text(unknown)} depend on {_origins(index, unknown.deps, leaves)}",
        )
    if not reads:
        return False, "not used by the loss"
    places = ", ".join(dict.fromkeys(_read_text(read) for read in reads))
    return True, "; ".join(
        [
            f"{_count_reads(reads)}: {places}",
            *describe_form(leaves, index, axes, [read.view for read in reads]),
        ]
    )


def _reads_of(index: int, flow: TableFlow) -> list[Read]:
    return [read for read in flow.reads.values() if read.leaf == index]


def _count_reads(reads: list[Read]) -> str:
    return f"{len(reads)} read" + ("s" if len(reads) != 1 else "")


def _read_text(read: Read) -> str:
    return f"{read.primitive} {read.mode}" + (f" ({read.line})" if read.line else "")


def _origins(
    index: int,
    deps: Deps,
    leaves: tuple[Leaf, ...],
) -> str:
    """Parameters and causes, in the order of the leaves."""
    causes = sorted({d.text for d in deps if isinstance(d, Cause)})
    itself = ["its own rows"] if index in deps else []
    others = []
    for i in sorted(d for d in deps if isinstance(d, int)):
        if i != index:
            others.append(f"parameter `{leaves[i].path}`")
    return ", ".join([*itself, *others[:3], *causes])
