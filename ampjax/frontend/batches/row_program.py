"""A model as a program over the rows of a batch, for parameters of some types."""

from __future__ import annotations

import hashlib
import math
from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batches.batch import Batch
from ampjax.frontend.batches.programs_of_rows import Block, Report, Rows, Run, Slot, View
from ampjax.frontend.batches.ragged_results import RaggedRows, Reports
from ampjax.frontend.batches.room_bodies import Body, require_in_front
from ampjax.frontend.batches.row_lowering import RowLowering, Rule, SequenceRule, Value
from ampjax.frontend.batches.row_tables import Examples, RowTables, Sizes, rounded
from ampjax.frontend.batches.symbolic_lengths import dimension_value, names_in
from ampjax.frontend.combinators.tracing import Combinator, trace, tracing, type_of
from ampjax.frontend.combinators.user_errors import in_users_words, refuse_callbacks, refuse_leaks
from ampjax.frontend.deduction.asked_lengths import check_of_lengths, noting_asked_lengths
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.instances.instance_columns import Columns
from ampjax.frontend.instances.instance_spec import LeafSpec
from ampjax.frontend.instances.missing_labels import missing_leaves
from ampjax.frontend.jax_functions.replaced_functions import taking_whole_sequences
from ampjax.jaxprs.primitives import inputs_read

ROOM = 1.25
"""Examples that do not fit an earlier batch get a shape for so many times their rows."""

NEARLY = 1.1
"""Sizes that would hold less than so many times what there is grow together with those that are too small, so that programs are compiled less often."""

MOST_SIZES = 256
"""Of so many shapes of batches the sizes are kept."""


@dataclass(frozen=True)
class PackedBatches:
    """Jointly packed batches.

    Args:
      together: The batches as one, whose arrays have an axis for the batches in front.
      sizes: The sizes of their arrays.
      counts: What the sizes hold at most, where a size may hold more.
    """

    together: Batch
    sizes: Mapping[Hashable, int]
    counts: Mapping[Hashable, int]

    @property
    def n_numbers(self) -> int:
        """The numbers in all arrays."""
        return sum(array.size for array in self.together.arrays)


class RowProgram:
    """A traced model as steps over rows.

    Args:
      function: `function(params, example)`.
      types: Types of the parameters, a pytree.
      leaves: The leaves of the spec.
      structure: The spec's structure.
      rules: How each combinator becomes steps.
      of_sequences: How operations of JAX on whole sequences do.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        types: Any,
        leaves: Sequence[LeafSpec],
        structure: Any,
        rules: Mapping[Combinator, Rule],
        of_sequences: SequenceRule,
    ):
        self._leaves = leaves
        self._low = low = RowLowering(
            rules,
            of_sequences,
        )
        root = IndexSpace()
        self._block = Block()
        room = low.room(low.root, root)
        body = Body(low, self._block, room)
        with tracing() as dimensions:
            example = structure.unflatten([leaf.aval(dimensions) for leaf in leaves])
            with (
                in_users_words(_names(structure)),
                noting_asked_lengths() as asked,
                taking_whole_sequences(),
            ):
                traced, constants, results = trace(
                    function,
                    types,
                    example,
                )
            host = low.host
            host.draft.checks.append(
                check_of_lengths(asked, host.lengths, dimension_value, names_in),
            )
            refuse_leaks(traced.jaxpr, constants)
            refuse_callbacks(traced.jaxpr, traced.line)
            self._params = [
                Rows(
                    kind,
                    None,
                )
                for kind in jax.tree.leaves(types)
            ]
            self._block.give(self._params)
            of_params = [
                View(
                    rows,
                    root,
                )
                for rows in self._params
            ]
            of_example = [
                _example_value(
                    leaf,
                    root,
                    low,
                )
                for leaf in leaves
            ]
            # steps of operations on whole sequences are traced as well
            with noting_asked_lengths():
                values = body.run(
                    traced,
                    [
                        *map(Constant, constants),
                        *of_params,
                        *of_example,
                    ],
                )
            result = []
            for value, kind in zip(
                values,
                results,
                strict=True,
            ):
                result.append(_result(body, value, kind))
            self._results = result
            self._reports = [
                _report(
                    body,
                    report,
                )
                for report in self._block.reports
            ]
        self._structure = traced.results
        self._slots = low.slots
        self._sizes: dict[Hashable, Sizes] = {}
        name = getattr(function, "__qualname__", type(function).__name__)
        self.layout = hashlib.sha256(repr([name, *low.layout]).encode()).hexdigest()[:16]

    def check(self, columns: Columns) -> None:
        """Checks numbers in examples.

        Args:
          columns: The examples.

        Raises:
          DataError: If one is not what the model can use.
        """
        for check in self._low.host.draft.checks:
            missing_leaves(
                columns,
                lambda check=check: check(columns),
            )

    def pack(
        self,
        examples: Examples,
        size: int,
        least: Sizes | None = None,
    ) -> Batch:
        """Examples as arrays: batches of equal shapes, as one batch whose arrays have an axis for the batches in front.

        Args:
          examples: The examples of each batch.
          size: Rows of each: as many as examples, or more.
          least: The sizes of an earlier batch, whose shapes these are to have if the examples fit; else larger ones with room.

        Raises:
          DataError: If a number in an example is not what the model can use.
        """
        self.check(examples.columns)
        if least is None:
            packed = self.pack_in(examples, size, {})
        else:
            packed = self.pack_like(examples, size, least)
        return packed.together

    def pack_like(
        self,
        examples: Examples,
        size: int,
        least: Sizes,
    ) -> PackedBatches:
        """Checked examples as arrays of the sizes of an earlier batch, or of larger sizes with room where some example does not fit.

        Args:
          examples: The examples of each batch.
          size: Rows of each: as many as examples, or more.
          least: The sizes.
        """
        packed = self.pack_in(examples, size, least)
        if packed.sizes.items() <= least.items():
            return packed
        need = self.pack_in(examples, size, {}, lambda n: n)
        return self.pack_in(examples, size, _with_room(least, need))

    def _note(self, batch: Batch, sizes: Sizes) -> None:
        """Keeps the sizes of a batch's arrays by their shapes."""
        shapes = _shapes(batch)
        self._sizes.pop(shapes, None)
        self._sizes[shapes] = sizes
        # batches are packed in several threads, so another one may have removed some of these
        for oldest in [*self._sizes][:-MOST_SIZES]:
            self._sizes.pop(oldest, None)

    def sizes_of(self, batch: Batch) -> Sizes | None:
        """Returns the sizes of the arrays of a batch, or of one of its parts; None if no such batch was packed here of late.

        Args:
          batch: The batch.
        """
        return self._sizes.get(_shapes(batch))

    def pack_in(
        self,
        examples: Examples,
        size: int,
        least: Sizes,
        round_up: Callable[[int], int] | None = None,
    ) -> PackedBatches:
        """Examples that have been checked, as arrays of given sizes at least, which are the same for all batches.

        Args:
          examples: The examples of each batch.
          size: Rows of each: as many as examples, or more.
          least: The sizes.
          round_up: From a number of rows to the size that holds so many, where `least` does not; by default one of few sizes.
        """
        tables = RowTables(
            examples,
            size,
            least,
            round_up,
        )
        together = self._pack(tables)
        self._note(together, {**least, **tables.sizes})
        return PackedBatches(together, tables.sizes, tables.counts)

    def _pack(self, tables: RowTables) -> Batch:
        columns = tables.data
        weights = tables.is_example.astype(np.float32)
        arrays: list[np.ndarray] = []
        missing: list[tuple[int, tuple[str, ...]]] = []
        for number, slot in enumerate(self._slots):
            # in training nothing is missing, and contexts would take a twentieth of the time
            if not columns.missing:
                arrays.append(slot.make(tables))
                continue
            with columns.noting_missing() as read:
                arrays.append(slot.make(tables))
            if read:
                missing.append((number, tuple(sorted(read))))
        return Batch(
            weights,
            tuple(arrays),
            self.layout,
            tuple(missing),
        )

    def missing_for(
        self,
        params: Any,
        batch: Batch,
        part: Callable[[Reports], Any],
    ) -> list[str]:
        """Lists the leaves that a batch lacks and on which a part of the reports depends.

        Args:
          params: The parameters, or their types.
          batch: The batch.
          part: The part.
        """

        def kind(x: Any) -> jax.ShapeDtypeStruct:
            shape = [
                max(n, 1) for n in jnp.shape(x)
            ]  # of sequences that are missing there may be no row, which nobody would read
            return jax.ShapeDtypeStruct(
                shape,
                jnp.result_type(x),
            )

        shapes = (
            jax.tree.map(
                type_of,
                params,
            ),
            jax.tree.map(kind, batch),
        )
        closed = jax.make_jaxpr(
            lambda params, batch: jax.tree.leaves(
                part(
                    self(
                        params,
                        batch,
                    )
                )
            )
        )(*shapes)
        n = len(self._slots)
        read = inputs_read(closed.jaxpr)[-n - 1 :]
        first = len(read) - n
        return sorted(
            {path for number, paths in batch.missing if read[first + number] for path in paths}
        )

    def __call__(
        self,
        params: Any,
        batch: Batch,
        key: Any = None,
    ) -> Reports:
        """Computes the model's result, metrics and outputs for each example.

        Args:
          params: The parameters.
          batch: A batch that this program's `pack` has made.
          key: A PRNG key, if random numbers are to be drawn; else None.
        """
        run = Run(
            dict(
                zip(
                    self._slots,
                    map(jnp.asarray, batch.columns()),
                    strict=True,
                )
            ),
            ChainMap(),
            key,
        )
        run.put(
            self._params,
            [_as_array(leaf) for leaf in jax.tree.leaves(params)],
        )
        self._block.run(run)
        result = self._structure.unflatten([get(run) for get in self._results])
        metrics: dict[str, tuple[Any, Any]] = {}
        outputs: dict[str, RaggedRows] = {}
        for report, get in self._reports:
            if report.is_metric:
                own = tuple(each * batch.weights for each in get(run))
                before = metrics.get(report.name, (0.0, 0.0))
                metrics[report.name] = (
                    before[0] + own[0],
                    before[1] + own[1],
                )
            else:
                outputs[report.name] = get(run)
        return Reports(result, metrics, outputs)


def _shapes(batch: Batch) -> Hashable:
    """The shapes of a batch's arrays, without the axis for parts."""
    n = batch.weights.ndim - 1
    return tuple(array.shape[n:] for array in batch.columns())


def _with_room(least: Sizes, need: PackedBatches) -> Sizes:
    """Larger sizes than an earlier batch has, where examples need larger ones or nearly do.

    Args:
      least: The earlier batch's.
      need: What the examples need.
    """
    sizes = dict(least)
    for key, n in need.sizes.items():
        soon = NEARLY * n if key in need.counts else n
        if soon > sizes.get(key, 0):
            sizes[key] = rounded(math.ceil(ROOM * n))
    return sizes


def _as_array(leaf: Any) -> Any:
    """A leaf as an array of JAX; one that is such an array stays as it is, as `jnp.asarray` would add a conversion to its derivative."""
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def _names(structure: Any) -> str:
    """Names the leaves of an example, in words."""
    return f"spec: {str(structure).removeprefix('PyTreeDef(').removesuffix(')')}"


def _result(
    body: Body,
    value: Value,
    kind: Any,
) -> Callable[[Run], Any]:
    """Gives a result of the model: a row for each example, or rows and how many there are of each."""
    if not isinstance(value, Elements):
        rows = body.rows(value, kind)
        return lambda run: run.get(rows)
    require_in_front(kind, "the model's result")
    lengths: list[Slot] = []
    while isinstance(value, Elements):
        lengths.append(_lengths(body, value.space))
        body = body.inside(value.space)
        value = value.element
        kind = element_type(kind)
    rows = body.rows(value, kind)
    there = body.room.there
    return lambda run: RaggedRows(
        run.get(rows),
        run.slots[there],
        [run.slots[slot] for slot in lengths],
    )


def _lengths(body: Body, space: IndexSpace) -> Slot:
    """Returns the array of the batch that says how many elements each row has; 0 for a copy."""
    frame, around = body.room.place

    def make(tables: RowTables) -> np.ndarray:
        sizes = tables.column(
            frame,
            around,
            space.lengths(tables.data),
        )
        return np.where(
            tables.is_there(frame, around),
            sizes,
            0,
        ).astype(np.int32)

    return body.low.slot(
        ("lengths", space),
        frame,
        make,
    )


def _tells(there: Body, view: View) -> Slot:
    """Marks the rows with a report of their own, in an array of the batch: of a tree's nodes, branches alone have a branch's report.

    Args:
      there: All rows of the report's space.
      view: What is told.
    """
    low = there.low
    space = view.space
    source = view.rows.room
    if source is None or (source.frame is low.root and view.origin is None):
        return there.room.there

    def make(tables: RowTables) -> np.ndarray:
        rows = tables.rows(low.root, space)
        origin = view.reads(space)(tables.data)
        lies = tables.lies(*source.place)
        flags = np.zeros(rows.shape, bool)
        if len(lies):
            # a row that no level of a loop computes lies nowhere
            is_told = (origin >= 0) & (lies[np.clip(origin, 0, len(lies) - 1)] >= 0)
            flags[rows >= 0] = is_told[rows[rows >= 0]]
        return flags

    return low.slot(
        ("tells", space, source.place, view.origin),
        low.root,
        make,
    )


def _report(
    body: Body,
    report: Report,
) -> tuple[Report, Callable[[Run], Any]]:
    """Gives a report by example: of a metric sums, of an output the rows that count."""
    low = body.low
    view = report.values[0]
    space = view.space
    there = body.at(low.room(low.root, space))
    tells = _tells(there, view)
    values, counts = (
        there.rows(
            view,
            view.rows.aval,
        )
        for view in report.values
    )

    def examples(tables: RowTables) -> np.ndarray:
        own = tables.column(
            low.root,
            space,
            space.instances(tables.data),
        )
        first = tables.bounds(space.around()[-1])[:-1, None]
        return np.where(
            tells.make(tables),
            own - first,
            tables.rows(low.root, body.space).shape[1],
        ).astype(np.int32)

    of = low.slot(
        ("examples", space, tells),
        low.root,
        examples,
    )

    def sums(run: Run) -> Any:
        n = run.size(body.room)
        result = []
        for each in (values, counts):
            result.append(
                jax.ops.segment_sum(
                    run.get(each),
                    run.slots[of],
                    n,
                )
            )
        return result

    def rows(run: Run) -> RaggedRows:
        is_there = run.get(counts) & run.slots[tells]
        n = run.size(body.room)
        lengths = jax.ops.segment_sum(
            is_there.astype(np.int32),
            run.slots[of],
            n,
        )
        return RaggedRows(
            run.get(values),
            is_there,
            [lengths],
        )

    return report, sums if report.is_metric else rows


def _example_value(leaf: LeafSpec, root: IndexSpace, low: RowLowering) -> Value:
    """Makes the value of a leaf of the examples: nested sequences, with the column of the leaf in the innermost space."""
    spaces: list[IndexSpace] = []
    space = root
    for depth, name in enumerate(leaf.dimensions):
        path = leaf.dimensions[: depth + 1]
        sizes = Column(
            space,
            lambda data, path=path: data.sizes(path),
        )
        low.host.lengths.setdefault(name, sizes)
        space = space.along(name, sizes)
        spaces.append(space)
    value: Any = Static(
        Column(
            space,
            lambda data: data.leaf(leaf.path),
        )
    )
    for inner in reversed(spaces):
        value = Elements(inner, value)
    return value
