"""`compile`: from a model, a plain JAX function of parameters and one instance, to a graph and its data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError, GraphError, ParameterError, SameNumbersWarning
from ampjax.frontend import rules
from ampjax.frontend.batched import Batched
from ampjax.frontend.batches.symbolic_lengths import dimension_value, names_in
from ampjax.frontend.combinators.reports import NODE, OUTPUT, node
from ampjax.frontend.combinators.running_models import remember
from ampjax.frontend.combinators.structures import Stacked
from ampjax.frontend.combinators.tracing import (
    Call,
    Traced,
    computed_dtypes,
    has_primitive,
    structure_text,
    trace,
    tracing,
)
from ampjax.frontend.combinators.user_errors import in_users_words, refuse_callbacks, refuse_leaks
from ampjax.frontend.deduction.asked_lengths import check_of_lengths, noting_asked_lengths
from ampjax.frontend.deduction.equations import Name, calls, flatten
from ampjax.frontend.deduction.loss_nodes import note_losses
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.values import (
    Constant,
    Elements,
    LossTerm,
    OfParams,
    Static,
    Value,
    Wanted,
)
from ampjax.frontend.explain_model import ModelExplanation, explain_model
from ampjax.frontend.gradient_parity import verify_gradients
from ampjax.frontend.instances.instance_columns import Columns, CompiledInstances
from ampjax.frontend.instances.instance_spec import LeafSpec, list_once, parse, part_finder
from ampjax.frontend.instances.missing_labels import missing_leaves, require_for_sinks
from ampjax.frontend.instances.redrawn_instances import PlainSource, RedrawnInstances
from ampjax.frontend.parameter_checks import refuse_state, require_float
from ampjax.frontend.shared_keys import lines_of_shared_draws, refuse_other_generators
from ampjax.ir.graph import Graph
from ampjax.ir.host_tables import is_table
from ampjax.ir.narrow_floats import narrowest, narrowest_floats
from ampjax.ir.ops.body_shapes import OF_THE_LOSS
from ampjax.jaxprs.primitives import DRAWS, shape_text
from ampjax.numerics.differences import Verification, tolerance_for
from ampjax.train.assemble import require_closed
from ampjax.utils.progress import Reporter

Model = Callable[[Any, Any], Any]
"""`model(params, instance) -> loss`: plain JAX and ampjax's combinators, of one instance."""

_RULES = MESSAGE_RULES.load(rules)


class Compiled:
    """A model as a graph.

    Args:
      model: The model.
      params: Its parameters, a dictionary; each key is a node.
      spec: What an instance looks like.
      copies: Copies of the whole network.
      messages: Whether the graph passes messages.

    Attributes:
      graph: The graph, for `Trainer`, `verify`, `simulate`.
      initial_params: The parameters as they were given.
      draws: Whether the model draws random numbers.
      drawings: Where in the model each node does so that draws with `amp.stochastic` or `amp.dropout`, by the node's name.
      shared_draws: The lines that draw with keys that are the same for all examples.
    """

    def __init__(
        self,
        model: Model,
        params: Mapping[str, Any],
        spec: Any,
        copies: int = 1,
        messages: bool = True,
    ):
        self._model = model
        self._spec = spec
        self.initial_params = params
        self._leaves, structure = parse(spec)
        self._structure = structure
        low = Lowering(params, _RULES)
        root = IndexSpace()
        tables = {}
        for key, value in params.items():
            if is_table(value):
                tables[key] = value
        arrays = {key: value for key, value in params.items() if key not in tables}
        values = _params_values(arrays)
        with tracing() as dimensions:
            types = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)),
                arrays,
            )
            instance = structure.unflatten([leaf.aval(dimensions) for leaf in self._leaves])
            with in_users_words(f"parameters: {_keys(params)}; spec: {_keys(spec)}"):
                if tables:
                    whole = lambda own, one: model({**own, **tables}, one)
                else:
                    whole = model
                with noting_asked_lengths() as asked:
                    function, constants, results = trace(whole, types, instance)
                function = replace(function, called="")  # not the variable for the compiled model
            low.draft.checks.append(check_of_lengths(asked, low.lengths, dimension_value, names_in))
            refuse_leaks(function.jaxpr, constants)
            refuse_callbacks(function.jaxpr, function.line)
            low.draft.has_loops = has_primitive(function.jaxpr, ("while",))
            refuse_other_generators(function.jaxpr, function.line)
            self.draws = has_primitive(function.jaxpr, DRAWS)
            is_examples = [False] * (len(constants) + len(values)) + [True] * len(self._leaves)
            self.shared_draws = lines_of_shared_draws(function, is_examples)
            metrics = _metrics_of(function, results)
            self._narrowest: np.dtype | None = None
            if not messages:
                _refuse_node_options(calls(function.jaxpr))
                _refuse_equal_outputs(calls(function.jaxpr))
                self._narrowest = narrowest(computed_dtypes(function.jaxpr))
                # The batch form is the model; the graph holds its parameters.
                function, constants, results = trace(_sum_of_params, types, instance)
                metrics = []
            low.draft.reserve([c.options["name"] for c in calls(function.jaxpr) if c.kind == NODE])
            low.draft.reserve_outputs(
                [c.options["name"] for c in calls(function.jaxpr) if c.kind == OUTPUT]
            )
            region = Region(root)
            operands = [
                *map(Constant, constants),
                *values,
                *(_instance_value(leaf, root, low) for leaf in self._leaves),
            ]
            told = low.run(
                function,
                operands,
                region,
                Wanted(
                    set(),
                    {0: ()},
                    metrics=range(1, len(results)),
                ),
            )
            low.terms += [LossTerm(told[i], region, metric=name, count=None) for i, name in metrics]
            note_losses(low, jnp.promote_types(results[0].dtype, jnp.float32))
        remember(model, part_finder(self._leaves, structure))
        self._draft = low.draft
        self.drawings = low.draft.drawings
        self.graph: Graph = low.draft.build(copies)
        # A traced program can't travel to another process, but the model can, and is traced there again.
        self.graph.remake = partial(_graph_of, model, params, spec, copies, messages)
        self.graph.batched = lambda: self.batched
        self.graph.batches_only = not messages

    @cached_property
    def batched(self) -> Batched:
        """The model as one function of parameters and a batch of examples, made by `amp.vmap`."""
        return Batched(self._model, self._spec, self.initial_params)

    @overload
    def data(
        self, instances: Sequence[Any] | CompiledInstances, *, labels: bool = True
    ) -> CompiledInstances: ...
    @overload
    def data(
        self, instances: PlainSource | RedrawnInstances, *, labels: bool = True
    ) -> CompiledInstances | RedrawnInstances: ...
    def data(
        self,
        instances: Any,
        *,
        labels: bool = True,
    ) -> CompiledInstances | RedrawnInstances:
        """Converts instances to the form of the graph's pumps.

        Args:
          instances: The instances, as the spec says: nested dictionaries, tuples or dataclasses of NumPy arrays, lists, numbers,
            `amp.Ragged`, `amp.Tree` and `amp.Edges`; or a data set with a method `plain()` that gives such instances, which is called for each
            epoch anew if it also has `reshuffle(rng)`. What this method has returned is returned as it is.
          labels: False makes data for `predict` alone: what only losses and metrics read may be missing from all instances.

        Returns:
          The data set. Arrays of an `amp.Stacked` are not copied where they need not be: don't change them while it is in use.

        Raises:
          DataError: If an instance does not fit the spec, or the model takes an element that it has not; or if something is missing that
            outputs depend on.
        """
        if isinstance(instances, CompiledInstances | RedrawnInstances):
            if instances.plans is not self._draft.pumps:
                raise _not_themselves("data", "what another model's `compiled.data` gave")
            return instances
        if not isinstance(instances, list | Stacked) and isinstance(instances, PlainSource):
            if labels and hasattr(instances, "reshuffle"):
                return RedrawnInstances(instances, self.data)
            instances = instances.plain()
        columns = Columns(self._leaves, list_once(instances), labels)
        for check in self._draft.checks:
            missing_leaves(columns, lambda check=check: check(columns))
        if columns.missing:
            pumps = require_for_sinks(self.graph, self._draft, columns)
        else:
            pumps = None
        return CompiledInstances(self._draft.pumps, self._draft.topologies, columns, pumps)

    def params(
        self,
        nodes: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Arranges parameters in the structure of the model's own, for calls of the model itself; `gradients` does so for gradients.

        Args:
          nodes: Parameters by node name: `trainer.params`.

        Returns:
          The pytree that the model was compiled with, with these values. What the model does not read keeps its initial value.

        Raises:
          ParameterError: If a node's parameters are missing, or do not fit.
        """
        _require_names("params", nodes, "trainer.params")
        return self._draft.params.original(nodes)

    def gradients(
        self,
        nodes: Mapping[str, tuple[Any, int]],
    ) -> dict[str, Any]:
        """Arranges summed gradients in the structure of the model's own parameters, as `jax.grad` of the model gives them.

        Args:
          nodes: Gradients and their numbers of rows by node name: `trainer.gradients`.

        Returns:
          A pytree like the parameters that the model was compiled with; 0 for what the model does not read.

        Raises:
          ParameterError: If a node's gradients are missing, or do not fit.
        """
        _require_names("gradients", nodes, "trainer.gradients")
        return self._draft.params.gradients({name: grads for name, (grads, _) in nodes.items()})

    def node_params(
        self,
        params: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Arranges parameters of the model's structure by node name, for `Trainer(params=...)`.

        Args:
          params: The parameters.

        Returns:
          Pytrees by node name.

        Raises:
          ParameterError: If a key is missing, or its value has another structure or shape.
        """
        _require_names("node_params", params, "compiled.params(trainer.params)")
        return self._draft.params.by_node(params)

    def explain(self, examples: Sequence[Any] | CompiledInstances = ()) -> ModelExplanation:
        """Explains the compiled model: nodes with their source lines, state fields, and operations that are computed together.

        Args:
          examples: Some instances, or what `data` has made of them, for how many rows a dispatch holds; none leaves that out.

        Returns:
          The explanation, which prints itself as tables.

        Raises:
          GraphError: If the model was compiled with `messages=False`.
        """
        require_closed("explain", self.graph)
        is_none = isinstance(examples, list | tuple) and not examples
        return explain_model(
            self.graph,
            self._draft,
            None if is_none else self.data(examples),
        )

    def verify(
        self,
        examples: Sequence[Any],
        *,
        params: Mapping[str, Any] | None = None,
        tolerance: float | None = None,
        progress: bool = True,
    ) -> Verification:
        """Compares the engine's loss and gradients with `jax.grad` of the model itself.

        The model runs as it is on each example, operation by operation in float64; if it does not fit together in float64, as it is. The
        engine runs all examples together, and no parameter changes. Three sequences or trees take seconds, most of them for compilations.
        `amp.verify` compares the graph that was made of the model with its own composed function instead, under several schedules and with
        metrics and outputs.

        Args:
          examples: A few instances, as the model takes them.
          params: Parameters of the model's structure; by default the initial ones.
          tolerance: Largest difference allowed: max |difference| / max |reference| per leaf. By default 1e-5, or 16 units of rounding of the
            narrowest floats that the model computes with: 0.02 where some are float16, 0.1 where some are bfloat16.
          progress: Whether to show progress.

        Returns:
          The verdict, which prints as a readable report.

        Raises:
          NumericsError: If they differ; names the parameters and lists all differences.
          DataError: If there is no instance, one does not fit, or the model's own loss or gradients are not finite.
          ParameterError: If the parameters do not fit.
        """
        _require_some("verify", examples)
        examples = list_once(examples)
        values = self.initial_params if params is None else params
        _require_names("verify", values, "compiled.params(trainer.params)")
        values = {key: value.dense() if is_table(value) else value for key, value in values.items()}
        if tolerance is None:
            allowed = tolerance_for(self._narrowest or narrowest_floats(self.graph))
        else:
            allowed = tolerance
        with Reporter(progress) as reporter:
            return verify_gradients(self, self._name, examples, values, allowed, reporter)

    @property
    def _name(self) -> str:
        return getattr(self._model, "__name__", "model")

    def __repr__(self) -> str:
        return f"Compiled({self._name}: {len(self.graph.nodes)} nodes)"

    def loss(
        self,
        params: Any,
        instances: Sequence[Any],
    ) -> jax.Array:
        """Computes the summed loss of instances by the model itself, in plain JAX: the reference for the graph.

        Args:
          params: Parameters of the model's structure.
          instances: The instances.

        Returns:
          The sum: one number.

        Raises:
          DataError: If there is no instance, one does not fit the spec, or they are what `data` has made of them.
          Exception: Whatever the model raises, as for a key that is not there.
        """
        _require_some("loss", instances)
        _require_names("loss", params, "compiled.params(trainer.params)")
        losses = []
        for number, one in enumerate(list_once(instances)):
            losses.append(self._model(params, self._type_instance(one, number)))
        return jnp.sum(jnp.stack([loss[0] if isinstance(loss, tuple) else loss for loss in losses]))

    def _type_instance(self, instance: Any, number: int) -> Any:
        """An instance with types as the spec says."""
        return self._structure.unflatten(
            [leaf.cast_leaf(instance, number) for leaf in self._leaves]
        )


def compile(
    model: Model,
    params: Mapping[str, Any],
    spec: Any,
    *,
    copies: int = 1,
    messages: bool = True,
) -> Compiled:
    """Compiles a model: a plain JAX function of parameters and one instance, with ampjax's combinators for control that the instance decides.

    The model is traced once, with symbolic lengths. What follows from the instance alone is computed on the host; states, loop counters,
    keys, joins and groups are deduced (AMPNet, ICLR version, section 8, asks for such a compiler).

    Args:
      model: `model(params, instance)`: the loss, a number; or `(loss, metrics)`, with a dictionary of numbers.
      params: The parameters' initial values: a dictionary, each of whose keys becomes a node of the graph. A value may be an
        `ampjax.sparse.Table` in host memory, of which the model reads rows by `amp.look_up`.
      spec: What an instance looks like: a pytree of types as JAX prints them. Names are lengths that each instance has of its own:
        `{"words": "int32[w]", "chars": "int32[w,c]", "tags": "int32[w]"}`.
      copies: Copies of the whole network, to which instances are dealt in turn; the trainer gives each a worker of its own, as far as there
        are any, and keeps their parameters together (`Settings.replica_sync`). Copies of one node: `amp.node(name, replicas=n)`.
      messages: False compiles for `mode="batch"` alone: then the model may have whatever `amp.vmap` takes, operations on whole sequences
        included. Each key of the parameters is a node, so `amp.node` takes no settings.

    Returns:
      The graph, and what makes data for it.

    Raises:
      GraphError: If the parameters are no dictionary, the spec has a leaf that is no type, or there is no copy; or if the model has
        something that can't be expressed, named with the user's line.
    """
    if not isinstance(params, Mapping):
        raise GraphError(
            "compile, params",
            "a dictionary, each of whose keys becomes a node",
            f"{type(params).__name__}",
            "Name the parts.",
        )
    for key, value in params.items():
        if not isinstance(key, str) or not key:
            where = f"compile, params, `[{key!r}]`"
            raise GraphError(
                where, "keys that are names", f"{key!r}", "Name the parts: nodes are called so."
            )
        refuse_state(f"compile, params, `[{key!r}]`", value)
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(params)):
        where = f"compile, params, `{jax.tree_util.keystr(path)}`"
        name = path[0].key
        if is_table(leaf):
            if len(path) > 1:
                fix = 'Make it the value of a key of its own: `{"embed": table, ...}`.'
                raise GraphError(
                    where, "a table as the value of a key", "one inside of another value", fix
                )
            if (first := next(key for key, value in params.items() if value is leaf)) != name:
                fix = f'Read `params["{first}"]` in both places.'
                raise GraphError(
                    where, "a table that is the value of one key", f"that of `{first}`", fix
                )
            continue
        require_float(where, leaf)
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 1:
        raise GraphError(
            "compile, copies",
            "a number of copies, at least 1",
            f"{copies!r}",
            "Leave `copies` out, or write `copies=1`, for the network alone.",
        )
    if not messages:
        _refuse_copies_and_tables(params, copies)
    compiled = Compiled(model, params, spec, copies, messages)
    for line in compiled.shared_draws[:1]:
        fix = "Fold a number of the example into the key, or draw in `amp.stochastic`, which has a key for each message."
        error = GraphError(
            line,
            "a key of each example's own",
            "one that is the same for all, which draw the same numbers",
            fix,
        )
        warnings.warn(str(error), SameNumbersWarning, stacklevel=2)
    return compiled


def _sum_of_params(params: Mapping[str, Any], instance: Any) -> jax.Array:
    """Adds up all parameters, each key in a node of its own."""
    del instance
    total = jnp.float32(0)
    for key, value in params.items():
        if jax.tree.leaves(value):
            total += node(key)(_sum_of)(value)
    return total


def _sum_of(value: Any) -> jax.Array:
    total = jnp.float32(0)
    for leaf in jax.tree.leaves(value):
        total += jnp.sum(leaf, dtype=jnp.float32)
    return total


def _refuse_copies_and_tables(params: Mapping[str, Any], copies: int) -> None:
    """Refuses copies and tables, as both need messages.

    Raises:
      GraphError: If the network has copies, or a table in host memory is among the parameters.
    """
    if copies > 1:
        fix = "Leave `copies` out: a batch is one program."
        raise GraphError("compile, messages=False", "one copy", f"{copies}", fix)
    for key, value in params.items():
        if is_table(value):
            fix = "Give its rows, `table.dense()`, or leave `messages=False` out."
            where = f"compile, messages=False, params, `{key}`"
            raise GraphError(where, "arrays", "a table in host memory", fix)


def _refuse_node_options(calls: Iterable[Call]) -> None:
    """Refuses settings of single nodes in a model, as its keys are the nodes.

    Args:
      calls: The model's combinators.

    Raises:
      GraphError: If a node has any.
    """
    for call in calls:
        if call.kind != NODE:
            continue
        given = [*call.options["options"]]
        if call.options["replicas"] > 1:
            given.append("replicas")
        if given:
            fix = "Leave it out, or `messages=False`; `frozen` and `optax.multi_transform` tell keys of the parameters apart."
            raise GraphError(
                call.line,
                "with `messages=False`, a node without settings of its own, as each key of the parameters is one node",
                f"`{given[0]}` of node `{call.options['name']}`",
                fix,
            )


def _refuse_equal_outputs(calls: Iterable[Call]) -> None:
    """Refuses two outputs with one name, of which `predict` would give the last alone.

    Args:
      calls: The model's combinators.

    Raises:
      GraphError: If there are two.
    """
    names = set()
    for call in calls:
        if call.kind != OUTPUT:
            continue
        name = call.options["name"]
        if name in names:
            got = f"`{name}`, as an output is called"
            raise GraphError(call.line, "a name of its own for each output", got, "Rename it.")
        names.add(name)


def _require_some(method: str, instances: Any) -> None:
    """Checks that there are instances, in the model's form."""
    if isinstance(instances, CompiledInstances | RedrawnInstances):
        raise _not_themselves(method, "what `compiled.data` made of them")
    if isinstance(instances, PlainSource):
        raise _not_themselves(method, "a data set that makes them, " + type(instances).__name__)
    if not hasattr(instances, "__len__"):
        raise _not_themselves(method, type(instances).__name__)
    if not len(instances):
        raise DataError(
            f"{method}, instances", "at least one instance", "none", "Pass a list of instances."
        )


def _require_names(method: str, trees: Any, source: str) -> None:
    """Checks that trees come by name.

    Raises:
      ParameterError: If not.
    """
    if not isinstance(trees, Mapping):
        fix = f"Pass what `{source}` gives."
        raise ParameterError(
            f"{method}, argument", "a tree for each name", type(trees).__name__, fix
        )


def _not_themselves(method: str, got: str) -> DataError:
    return DataError(
        f"{method}, instances",
        "instances as the model takes them",
        got,
        "Pass the instances themselves.",
    )


def _graph_of(
    model: Model,
    params: Mapping[str, Any],
    spec: Any,
    copies: int,
    messages: bool,
) -> Graph:
    return Compiled(model, params, spec, copies, messages).graph


def _params_values(params: Mapping[str, Any]) -> list[Value]:
    keys = []
    for path, _ in jax.tree_util.tree_flatten_with_path(dict(params))[0]:
        key = path[0].key
        keys.append((key, sum(other == key for other, _ in keys)))
    return [OfParams(frozenset([leaf]), lambda values, leaf=leaf: values[leaf]) for leaf in keys]


def _instance_value(leaf: LeafSpec, root: IndexSpace, low: Lowering) -> Value:
    """Makes the value of a leaf of the instance: nested sequences, with the values in the innermost space."""
    spaces = []
    space = root
    for depth, name in enumerate(leaf.dimensions):
        path = leaf.dimensions[: depth + 1]
        sizes = Column(space, lambda data, path=path: data.sizes(path))
        low.lengths.setdefault(name, sizes)
        space = space.along(name, sizes, leaf.is_of_nodes)
        spaces.append(space)
    value: Value = Static(Column(space, lambda data: data.leaf(leaf.path)))
    for inner in reversed(spaces):
        value = Elements(inner, value)
    return value


def _keys(tree: Any) -> str:
    """The top-level keys of a dictionary, in words."""
    if isinstance(tree, Mapping) and tree:
        return ", ".join(f"{key!r}" for key in tree)
    return "none"


def _line_of_result(function: Traced, number: int) -> str:
    """The user's line that makes a result of the model; "the model" if none does."""
    equations, results = flatten(
        function, {variable: Name(variable.aval) for variable in function.variables}
    )
    return next(
        (each.line for each in equations if results[number] in each.outputs),
        "the model",
    )


_RETURN = "Return the loss, or `(loss, {name: value})`."


def _metrics_of(
    function: Traced,
    results: Sequence[Any],
) -> list[tuple[int, str]]:
    """Checks the model's result; returns the metrics' places and names."""
    structure = function.results
    returned = structure.unflatten(range(structure.num_leaves))
    metrics: Any = {}
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict):
        returned, metrics = returned
    if not isinstance(returned, int):
        fix = "Is `return` missing? " * (not results) + _RETURN
        raise GraphError("the model", "a loss: one number", structure_text(structure), fix)
    for name, i in [("the loss", returned), *metrics.items()]:
        _check_name(name)
        _check_number(function, results, name, i, i == returned)
    return [(i, name) for name, i in metrics.items()]


def _check_name(name: Any) -> None:
    where = "the model, metrics"
    if not isinstance(name, str) or not name:
        raise GraphError(where, "names: texts", f"{name!r}", "Give each metric a name.")
    if name in OF_THE_LOSS:
        raise GraphError(
            where,
            f"other names than `{name}`",
            f"`{name}`",
            "Choose another name: the loss is in each history anyway.",
        )


def _check_number(
    function: Traced,
    results: Sequence[Any],
    name: str,
    i: Any,
    is_loss: bool,
) -> None:
    """Checks that one of the model's results is one number; the loss is a number of floats."""
    expected = "one number" + (" of floats" if is_loss else "")
    fix = _RETURN
    if not isinstance(i, int):
        raise GraphError(f"the model, {name}", expected, "a structure", fix)
    kind = results[i]
    if kind.shape:
        module = "jnp" if isinstance(kind.shape[0], int) else "amp"
        fix = f"Sum or average it: `{module}.sum`, `{module}.mean`."
    if kind.shape != () or (
        is_loss
        and not jnp.issubdtype(
            kind.dtype,
            np.floating,
        )
    ):
        line = _line_of_result(function, i)
        raise GraphError(f"{line}, {name}", expected, shape_text(kind), fix)
