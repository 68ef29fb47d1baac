"""`vmap`: turns a model, a plain JAX function of parameters and one ragged example, into one function of parameters and a batch of examples; any other function into lanes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import jax
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend import batch_rules
from ampjax.frontend.batches.batch import Batch
from ampjax.frontend.batches.batch_shapes import BatchShapes, RecentShapes
from ampjax.frontend.batches.epoch_batches import EpochBatches, epoch_groups
from ampjax.frontend.batches.packed_data import PackedData
from ampjax.frontend.batches.ragged_results import Reports
from ampjax.frontend.batches.row_lowering import STEP_RULES
from ampjax.frontend.batches.row_program import RowProgram
from ampjax.frontend.batches.row_tables import Examples, Sizes, rounded
from ampjax.frontend.combinators.structures import Stacked
from ampjax.frontend.combinators.tracing import type_of
from ampjax.frontend.draft.payload_types import typed_key
from ampjax.frontend.instances.instance_columns import Columns
from ampjax.frontend.instances.instance_spec import list_once, parse
from ampjax.frontend.instances.redrawn_instances import PlainSource
from ampjax.frontend.whole_sequences.sequence_operations import of_sequences
from ampjax.ir.host_tables import is_table
from ampjax.lanes.lane_function import LaneFunction
from ampjax.utils.compilation_cache import use_compilation_cache

_RULES = STEP_RULES.load(batch_rules)


class Batched:
    """A function of one ragged example as a function of a batch of examples: `jax.vmap` where control flow depends on the example.

    Args:
      function: `function(params, example)`.
      spec: What an example looks like.
      params: The parameters, or their types; None until the first call tells them.

    It has more than 15 methods: calls, packing and epochs each come in two forms, and each checks what users give.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        spec: Any,
        params: Any = None,
    ):
        use_compilation_cache()
        self._function = function
        self._leaves, self._structure = parse(spec)
        self._programs: dict[Hashable, RowProgram] = {}
        self._last: RowProgram | None = None
        self._shapes = RecentShapes()
        self._jitted = jax.jit(self._run)
        if params is not None:
            self._program(params)

    def __call__(
        self,
        params: Any,
        examples: Sequence[Any] | Batch,
        *,
        key: Any = None,
    ) -> Any:
        """Computes the function's result for each example.

        Args:
          params: The parameters.
          examples: Examples, or what `pack` has made of them.
          key: A PRNG key: then `amp.stochastic` and `amp.dropout` draw random numbers, as in training.

        Returns:
          A pytree as the function returns, each of whose arrays has an axis more in front: `[n, ...]`; a sequence comes back as `RaggedRows`.

        Raises:
          DataError: If an example does not fit the spec, the batch was packed for another function, or `key` is no PRNG key.
          GraphError: If the function has something that can't be expressed.
        """
        batch = self._batch(params, examples)
        self._require(params, batch, "the result", lambda outcome: outcome.result)
        return self._jitted(params, batch, key).result

    def reports(
        self,
        params: Any,
        examples: Sequence[Any] | Batch,
        *,
        key: Any = None,
    ) -> Reports:
        """Computes the function's results, metrics (`amp.metric`) and outputs (`amp.output`).

        Args:
          params: As for a call.
          examples: As for a call.
          key: As for a call.

        Returns:
          The result, the metrics and the outputs of each example, a pytree. Of a batch without labels the outputs alone, which must not depend
          on any.

        Raises:
          DataError: As a call.
          GraphError: As a call.
        """
        batch = self._batch(params, examples)
        self._require(params, batch, "the outputs", lambda outcome: outcome.outputs)
        told = self._jitted(params, batch, key)
        if batch.missing:
            return replace(told, result=None, metrics={})
        return told

    def _require(
        self,
        params: Any,
        batch: Batch,
        what: str,
        part: Callable[[Reports], Any],
    ) -> None:
        """Checks that the requested part of the reports does not depend on labels that were left out."""
        if batch.missing:
            missing = self._program(params).missing_for(params, batch, part)
        else:
            missing = []
        if missing:
            names = ", ".join(f"`{path}`" for path in missing)
            fix = "Give each example this leaf; `reports(...).outputs` may do without what only losses and metrics read."
            raise DataError(
                f"{self!r}, labels=False",
                f"examples with the leaves behind {what}: {names}",
                "none",
                fix,
            )

    def _batch(
        self,
        params: Any,
        examples: Sequence[Any] | Batch,
    ) -> Batch:
        program = self._program(params)
        batch = examples if isinstance(examples, Batch) else self.pack(examples)
        if batch.layout != program.layout:
            fix = "Pack the examples with this function's own `pack`."
            raise DataError(
                f"{self!r}, batch", "what its own `pack` made", "another function's batch", fix
            )
        return batch

    def _run(self, params: Any, batch: Batch, key: Any) -> Reports:
        own = typed_key(f"{self!r}, key", key)
        return self._program(params)(params, batch, own)

    def pack(
        self,
        examples: Sequence[Any],
        *,
        size: int | None = None,
        parts: int | None = None,
        labels: bool = True,
        like: Batch | None = None,
    ) -> Batch:
        """Lays examples out for a call: on the host, in NumPy.

        Args:
          examples: The examples, as the spec says.
          size: How many rows the batch has: what is left over holds copies, whose `weights` are 0. By default as many as examples; with `like` as
            many as that batch, or more if the examples are.
          parts: Deals the examples out to so many batches of equal shapes, one after the other, such as one for each device; all arrays then have
            an axis for the parts in front. `size` is that of a part. By default as `like` has.
          labels: False packs for predictions: what results and outputs that are asked for do not depend on may be missing from all examples.
          like: An earlier batch of this function: the new one has its shapes, so that nothing is compiled again. If the examples do not fit, what is
            too small gets a larger size, with room for a quarter more. None as for the first batch.

        Returns:
          The batch, a pytree of arrays.

        Raises:
          DataError: If there is no example, more than `size`, or one does not fit the spec; or `like` is no batch of this function.
          GraphError: If nothing has told the types of the parameters yet.
        """
        program = self._latest_program("pack")
        self._require_count("size", size)
        self._require_count("parts", parts)
        sizes = None if like is None else _sizes_of(f"{self!r}, like", program, like)
        if like is not None and parts is None and like.weights.ndim > 1:
            parts = len(like.weights)
        listed = self._list_examples(examples)
        n_parts = parts or 1
        least = -(-len(listed) // n_parts)
        self._require_room(len(listed), least, size, parts)
        if size is None and like is not None:
            earlier = like.weights.shape[-1]
            size = earlier if least <= earlier else rounded(least)
        with jax.ensure_compile_time_eval():  # also where what calls it is traced
            columns = Columns(self._leaves, listed, labels)
            ends = -(-len(listed) * np.arange(n_parts + 1) // n_parts)
            of_parts = Examples(columns, np.diff(ends).tolist())
            batch = program.pack(of_parts, least if size is None else size, sizes)
        return batch.parts[0] if parts is None else batch

    def batches(
        self,
        examples: Sequence[Any],
        size: int | None = None,
        seed: int | None = 0,
        *,
        by_size: bool = False,
        parts: int | None = None,
        labels: bool = True,
        like: Batch | None = None,
    ) -> EpochBatches[Batch]:
        """An epoch of packed batches, each of which is packed in a thread while the one before is used.

        All have `size` rows: the last one is filled up with copies, whose `weights` are 0. An epoch has about four shapes at most, so few
        programs are compiled; they are the same for every seed.

        Args:
          examples: The examples, as the spec says. They are read here, so later changes don't matter.
          size: How many examples a batch has: 64 by default, or as many as `like` has rows.
          seed: Of the order, another one for each epoch; None takes examples in their order.
          by_size: Whether a batch has examples of about the same size, so that fewer rows are filled up; which batch comes when is random.
          parts: Deals each batch out to so many of equal shapes, as `pack` does; `size` is that of a part.
          labels: As for `pack`.
          like: An earlier batch of this function, such as the latest one of an epoch before: all batches have its shapes, so that nothing is compiled
            again. If some do not fit, all have one larger shape, with room for a quarter more. None as for the first epoch.

        Returns:
          The batches: `for batch in batches`, and `len(batches)`. Each loop over them is the same epoch.

        Raises:
          DataError: As `pack`.
          GraphError: As `pack`.
        """
        program = self._latest_program("batches")
        self._require_count("size", size)
        self._require_count("parts", parts)
        sizes = None if like is None else _sizes_of(f"{self!r}, like", program, like)
        if like is not None and parts is None and like.weights.ndim > 1:
            parts = len(like.weights)
        if size is None:
            size = 64 if like is None else int(like.weights.shape[-1])
        self._require_seed(seed)
        listed = self._list_examples(examples)
        self._require_room(len(listed), 1, None, None)
        columns = Columns(self._leaves, listed, labels)
        n_elements = columns.n_elements()
        n_each = size * (parts or 1)
        if sizes is not None:
            groups = epoch_groups(n_elements, n_each, seed, by_size)
            shapes = BatchShapes(program, size, parts)
            packed = self._pack_columns(program, columns, shapes, groups, sizes)
            return packed.epoch(groups)
        key = (program, size, by_size, parts, labels)
        shapes = self._shapes.get(key, examples)
        if shapes is None:
            shapes = BatchShapes(program, size, parts)
            self._shapes.put(key, examples, shapes)
            drawn = epoch_groups(n_elements, n_each, 0, by_size)
        else:
            drawn = None
        packed = self._pack_columns(program, columns, shapes, drawn)
        return packed.epoch(epoch_groups(n_elements, n_each, seed, by_size))

    def packed(
        self,
        columns: Columns,
        size: int,
        groups: Sequence[np.ndarray],
        like: PackedData | None = None,
    ) -> PackedData:
        """A data set in batches, for a trainer.

        Args:
          columns: The examples, as the compiled model of this function has them.
          size: Rows of each batch.
          groups: The numbers of the examples of each batch of an epoch, from which shapes are found.
          like: Another data set, whose batches' shapes these are to have.

        Raises:
          DataError: If a number in an example is not what the model can use.
        """
        program = self._latest_program("packed")
        instances = columns.as_read()
        if like is not None:
            return self._pack_columns(program, instances, like.shapes, None)
        shapes = BatchShapes(program, size, are_joined=True)
        return self._pack_columns(program, instances, shapes, groups)

    def _pack_columns(
        self,
        program: RowProgram,
        columns: Columns,
        shapes: BatchShapes,
        groups: Sequence[np.ndarray] | None,
        sizes: Sizes | None = None,
    ) -> PackedData:
        """A data set in batches: its numbers are checked, and shapes found from some groups, or from an earlier batch's sizes."""
        with jax.ensure_compile_time_eval():  # also where what calls it is traced
            program.check(columns.as_read())
            if groups is not None and sizes is not None:
                shapes.find_like(sizes, columns, groups, columns.n_elements())
            elif groups is not None:
                shapes.find(columns, groups, columns.n_elements())
        return PackedData(columns, shapes)

    def _latest_program(self, method: str) -> RowProgram:
        """The program of the latest types of parameters."""
        if self._last is None:
            fix = "Give `amp.vmap` the parameters as `params=`, or call the function once before."
            raise GraphError(f"{self!r}, {method}", "types of the parameters", "none so far", fix)
        return self._last

    def _require_seed(self, seed: Any) -> None:
        """Refuses a seed that is no whole number from 0; None passes."""
        is_seed = isinstance(seed, int | np.integer) and not isinstance(seed, bool) and seed >= 0
        if seed is not None and not is_seed:
            fix = "Give the number of the epoch, or None for the order of the examples."
            raise DataError(f"{self!r}, seed", "a whole number from 0, or None", f"{seed!r}", fix)

    def _require_count(self, name: str, number: Any) -> None:
        """Refuses a number that is no whole number from 1; None passes."""
        if number is None:
            return
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise DataError(
                f"{self!r}, {name}",
                "a whole number from 1",
                f"{number!r}",
                "Leave it out, or mend it.",
            )

    def _require_room(self, n: int, least: int, size: int | None, parts: int | None) -> None:
        """Refuses examples of which some part has none, and parts of more examples than rows."""
        if n < (parts or 1):
            each = "" if parts is None else f" for each of {parts} parts"
            raise DataError(
                f"{self!r}, examples",
                f"at least one example{each}",
                f"{n or 'none'}",
                "Pass a list of examples.",
            )
        if size is not None and size < least:
            raise DataError(
                f"{self!r}, size",
                f"at least {least}, the number of examples",
                f"{size}",
                "Pack fewer.",
            )

    def _list_examples(self, examples: Any) -> Sequence[Any]:
        """Returns examples as a sequence; asks a data set that makes its examples for all examples."""
        if not isinstance(examples, list | Stacked) and isinstance(examples, PlainSource):
            examples = examples.plain()
        if not hasattr(examples, "__len__") or isinstance(examples, str | Mapping):
            fix = "Give a list, also for a single example."
            raise DataError(
                f"{self!r}, examples", "a list of examples", f"one {type(examples).__name__}", fix
            )
        return list_once(examples)

    def _program(self, params: Any) -> RowProgram:
        """The program for parameters of these types; made at first use."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if is_table(leaf):
                fix = "Give its rows as an array, `table.dense()`; models with tables in host memory train through `amp.compile`."
                where = f"{self!r}, params{jax.tree_util.keystr(path)}"
                raise GraphError(where, "arrays", "a table in host memory", fix)
        types = jax.tree.map(type_of, params)
        leaves, structure = jax.tree.flatten(types)
        key = (
            structure,
            tuple((leaf.shape, leaf.dtype) for leaf in leaves),
            jax.config.read("jax_enable_x64"),
        )
        if key not in self._programs:
            self._programs[key] = RowProgram(
                self._function, types, self._leaves, self._structure, _RULES, of_sequences
            )
        self._last = self._programs[key]
        return self._last

    def __repr__(self) -> str:
        return f"vmap({getattr(self._function, '__name__', 'function')})"


@overload
def vmap(
    function: Callable[..., Any],
    spec: None = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    lanes: int | None = None,
    trips: int | None = None,
    max_trips: int | None = None,
) -> LaneFunction: ...


@overload
def vmap(
    function: Callable[..., Any],
    spec: Any,
    *,
    params: Any = None,
) -> Batched: ...


def vmap(
    function: Callable[..., Any],
    spec: Any = None,
    *,
    params: Any = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    lanes: int | None = None,
    trips: int | None = None,
    max_trips: int | None = None,
) -> Batched | LaneFunction:
    """One pure JAX function of a batch, made of a function of one example.

    With a spec: of parameters and one ragged example. The function is traced once, with symbolic lengths, as `amp.compile` traces it. Index spaces become rows over
    the whole batch, loops become levels, choices part the rows: one XLA program, which `jax.jit`, `jax.grad` and the like transform as any other.

    Without a spec: of any arrays, as `jax.vmap` takes it, in plain JAX. Elements whose `lax.while_loop` or `lax.cond` differ do not wait for each other: a lane whose
    element has ended takes the next one. Each element's result is its own, up to rounding, and with the same `lanes` and `trips` to the bit, whatever else is in the batch.
    As with `jax.jit`, what such a function closes over is taken as it is at the first call for arrays of some shapes.

    Args:
      function: `function(params, example)`: plain JAX, with ampjax's combinators for what the example decides; without a spec any function of one element.
      spec: What an example looks like, as `amp.compile` takes it.
      params: With a spec: the parameters, or arrays of their types: so that `pack` can be called before the function is.
      in_axes: Without a spec: as for `jax.vmap`.
      out_axes: Without a spec: as for `jax.vmap`.
      lanes: Without a spec: how many elements are computed at a time. By default that is measured at the first call.
      trips: Without a spec: trips of an innermost loop between two looks at what is around it.
      max_trips: Without a spec: trips of loops after which an element is given up with what it has reached; the call then also returns which elements came to their end.

    Returns:
      The function of a batch.

    Raises:
      GraphError: If there is no function, the spec has a leaf that is no type, or an argument belongs to the other form.

    >>> import ampjax as amp
    >>> def mean_of_squares(params, example):
    ...     return amp.mean(amp.map(lambda x: params["scale"] * x**2, example["x"]))
    >>> batched = amp.vmap(mean_of_squares, {"x": "float32[n]"})
    >>> batched({"scale": 2.0}, [{"x": [1.0, 2.0]}, {"x": [3.0]}, {"x": []}]).tolist()
    [5.0, 18.0, 0.0]
    >>> import jax
    >>> def halvings(x):
    ...     return jax.lax.while_loop(lambda c: c[0] > 1, lambda c: (c[0] / 2, c[1] + 1), (x, 0))[1]
    >>> amp.vmap(halvings, lanes=2)(jax.numpy.array([1.0, 8.0, 1000.0])).tolist()
    [0, 3, 10]
    """
    if not callable(function):
        fix = "Give the function itself, then the spec of an example."
        raise GraphError(
            "vmap, function", "a function of parameters and one example", f"{function!r}", fix
        )
    if spec is None:
        if params is not None:
            fix = "Give the spec of an example, or the parameters as an argument with None in `in_axes`."
            raise GraphError("vmap, params", "a spec beside it", "none", fix)
        return LaneFunction(function, in_axes, out_axes, lanes, trips, max_trips)
    settings = {"lanes": lanes, "trips": trips, "max_trips": max_trips}
    names = [name for name, value in settings.items() if value is not None]
    for name, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        if isinstance(axes, bool) or axes != 0:
            names.append(name)
    if names:
        fix = "With a spec a call takes parameters and a list of examples: leave these out; or leave out the spec."
        raise GraphError(
            f"vmap, {', '.join(names)}", "no spec beside it", "a spec of an example", fix
        )
    return Batched(function, spec, params)


def _sizes_of(
    where: str,
    program: RowProgram,
    like: Any,
) -> Sizes:
    """The sizes of the arrays of an earlier batch."""
    if not isinstance(like, Batch):
        got = f"one {type(like).__name__}"
        sizes = None
    else:
        got = "one that it did not pack"
        sizes = program.sizes_of(like)
    if sizes is None:
        raise DataError(
            where,
            "a batch that `pack` has made, of this function in this process",
            got,
            "Pack the first batch without.",
        )
    return sizes
