"""What a compiled model must keep, checked on the synchronous interpreter of its graph, operation by operation in float64; what a batch must keep.

The model itself runs as plain JAX on the same instances, differentiated by JAX: it is its own reference. The graph's nodes compute with JAX's
operations where all gradients are compared, and on NumPy's arrays with tangents, which is quicker, for the derivative in one direction.
"""

from contextlib import contextmanager
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from support.dual_numbers import Dual, reduction, stack, tangent_of, value_of
from support.dual_numbers import run as run_program

import ampjax as amp
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.graph_draft import GraphDraft
from ampjax.frontend.instances.instance_columns import Columns, CompiledInstances
from ampjax.ir.ops.payload_nodes import Reduce
from ampjax.jaxprs.traced_bodies import TracedBody
from ampjax.testing.interpreter import InstanceRun
from ampjax.testing.oracles import find_oracle
from ampjax.testing.reference import _unpack as messages_of
from ampjax.testing.reference import reference

TOLERANCE = 1e-10


def check_batch(
    function,
    params,
    spec,
    examples,
    tolerance=1e-9,
    is_traced=False,
):
    """Compares a batch, filled up with two copies, with the function on each example: the values, and all gradients of their weighted sum.

    Args:
      function: The function, which gives a number.
      params: Its parameters, by name.
      spec: Its spec.
      examples: The examples.
      tolerance: The relative and the absolute difference that may be.
      is_traced: Whether JAX traces the function on the examples, which takes less time; else it runs operation by operation.
    """
    n = len(examples)
    batched = amp.vmap(function, spec, params=params)
    batch = batched.pack(examples, size=n + 2)
    weights = 1.0 + np.arange(n)

    def of_batch(p):
        found = batched(p, batch)[:n]
        return jnp.sum(found * weights), found

    def of_each(p):
        found = jnp.stack([jnp.asarray(function(p, each)) for each in examples])
        return jnp.sum(found * weights), found

    def both(total):
        return jax.grad(total, has_aux=True)

    grads, found = jax.jit(both(of_batch))(params)
    if is_traced:
        own, wanted = jax.jit(both(of_each))(params)
    else:
        with jax.disable_jit():
            own, wanted = both(of_each)(params)
    compared = {"values": (found, wanted)}
    for name, grad in grads.items():
        compared[f"gradient of {name}"] = grad, own[name]
    for name, (one, other) in compared.items():
        np.testing.assert_allclose(
            one,
            other,
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )


class Compiled64:
    """A model, compiled for float64, with instances.

    Args:
      model: The model.
      params: Its parameters, of float64.
      spec: Its spec, of float64.
      instances: The instances.

    Attributes:
      compiled: What `amp.compile` gave.
      exact: Wires that carry one message for each row of their region.
    """

    def __init__(self, model, params, spec, instances):
        self.params = params
        self.instances = instances
        with _noting_flows() as self.exact:
            self.compiled = amp.compile(model, params, spec)
        self.columns = Columns(self.compiled._leaves, instances)
        self.data = CompiledInstances(
            self.compiled._draft.pumps, self.compiled._draft.topologies, self.columns
        )

    @property
    def graph(self):
        return self.compiled.graph

    def model_loss(self, params):
        """The loss of the model as it is."""
        return self.compiled.loss(params, self.instances)

    def graph_loss(self, params, seen=None):
        """The loss of the graph, message by message; nothing may be left waiting, and no two messages may have one key.

        Args:
          params: The model's parameters.
          seen: Gets the states of the messages of each wire.
        """
        graph = self.graph
        oracle = find_oracle("eager")
        own = self.compiled.node_params(params)
        losses = []
        for messages in messages_of(
            graph,
            self.data.gather(np.arange(len(self.instances))),
            len(self.instances),
        ):
            if seen is not None:
                run = _Noting(graph, own, None, oracle, seen)
            else:
                run = InstanceRun(graph, own, None, oracle)
            run.run(messages)
            losses += run.results.losses
        return sum(losses, start=jnp.zeros(()))

    def reference(self):
        """What the interpreter says of loss, metrics and outputs."""
        own = self.compiled.node_params(self.params)
        return reference(
            self.graph,
            own,
            self.data,
            gradients=False,
            oracle="eager",
        )

    def check_direction(self, seed=0):
        """Loss, and its derivative in one random direction: a number in which each entry of each gradient has a weight of its own."""
        rng = np.random.default_rng(seed)
        direction = jax.tree.map(
            lambda x: rng.normal(size=x.shape),
            self.params,
        )
        seen = {}
        with jax.disable_jit():
            want = jax.jvp(
                self.model_loss,
                (self.params,),
                (direction,),
            )
            got = self.graph_derivative(direction, seen)
        for name, one, other in zip(
            ("loss", "derivative"),
            got,
            want,
            strict=True,
        ):
            assert abs(one - other) <= TOLERANCE * max(1.0, abs(other)), (
                f"{name}: {one}, the model gives {other}"
            )
        self.check_states(seen)

    def graph_derivative(self, direction, seen):
        """The loss of the graph, and its derivative in a direction.

        Args:
          direction: A tangent for each parameter.
          seen: Gets the states of the messages of each wire.
        """
        own = jax.tree.map(
            Dual,
            *map(self.compiled.node_params, (self.params, direction)),
        )
        total = [0.0, 0.0]
        for messages in messages_of(
            self.graph,
            self.data.gather(np.arange(len(self.instances))),
            len(self.instances),
        ):
            run = _WithTangents(self.graph, own, None, _Tangents(), seen)
            run.run(messages)
            for loss in run.results.losses:
                total = [
                    total[0] + value_of(loss),
                    total[1] + tangent_of(loss),
                ]
        return total

    def check_gradients(self):
        """Loss and every gradient, to 1e-10 of the largest entry of all."""
        with jax.disable_jit():
            want_loss, want = jax.value_and_grad(self.model_loss)(self.params)
            got_loss, got = jax.value_and_grad(self.graph_loss)(self.params)
        assert abs(got_loss - want_loss) <= TOLERANCE * max(1.0, abs(want_loss)), (
            f"loss: {got_loss}, {want_loss}"
        )
        largest = max(
            1.0,
            *(np.abs(x).max() for x in jax.tree.leaves(want)),
        )
        for (path, one), other in zip(
            jax.tree_util.tree_leaves_with_path(got),
            jax.tree.leaves(want),
            strict=True,
        ):
            assert np.abs(one - other).max() <= TOLERANCE * largest, (
                f"{jax.tree_util.keystr(path)}: {one}, {other}"
            )

    def check_states(self, seen):
        """Every wire has one message for each row where its values are computed, and every fact is what the instance says."""
        columns = self.columns
        for flow in self.exact:
            region = flow.region
            states = seen.get(flow.wire, [])
            if not region.is_known or region.space.is_ragged or flow.wire is None:
                continue
            space = region.space
            rows = region.rows(columns)
            fields = {**_facts(space, columns), "instance": space.instances(columns)}
            key = ("instance", *space.key)
            picked = {}
            for name, values in fields.items():
                picked[name] = values if rows is None else values[rows]
            expected = {
                values: i
                for i, values in enumerate(
                    zip(
                        *(picked[name].tolist() for name in key),
                        strict=True,
                    )
                )
            }
            got = [tuple(int(state[name]) for name in key) for state in states]
            assert sorted(got) == sorted(expected), (
                f"{flow.wire}: rows {sorted(got)}, not {sorted(expected)}"
            )
            for row, state in zip(got, states, strict=True):
                for name in [name for name in picked if flow.is_fresh or name in flow.kept]:
                    fact = int(picked[name][expected[row]])
                    assert int(state.get(name, fact)) == fact, (
                        f"{flow.wire}: `{name}` is not {fact} in {state}"
                    )


def _facts(space, columns):
    """The state fields of every row of a space, by name."""
    found = {}
    for around in space.around():
        known = {}
        for name, column in around.facts.items():
            if column is not None:
                known[name] = column.inside(space).of(columns)
        if around.parent is not None:
            known[around.index] = space.rows_of(
                columns,
                around,
                around.numbers(columns),
            )
        found |= known
    return found


class _Noting(InstanceRun):
    """Notes the states of all messages, by wire."""

    def __init__(self, graph, params, keys, oracle, seen):
        super().__init__(graph, params, keys, oracle)
        self._seen = seen

    def _send(self, wire, message):
        self._seen.setdefault(wire, []).append(dict(message.state))
        super()._send(wire, message)


class _Tangents:
    """Evaluates bodies on arrays with tangents."""

    def body(self, node, body):
        function = getattr(body.apply, "function", body.apply)

        def call(params, key, *inputs):
            if not isinstance(function, TracedBody):
                return function(*inputs)  # one that passes a payload on
            results = run_program(
                function.plain,
                jax.tree.leaves((params, *inputs)),
            )
            return jax.tree.structure(function.results).unflatten(results)

        return call


class _WithTangents(_Noting):
    """A run whose payloads may be `Dual`s."""

    def _consume(self, node, port, message):
        if not isinstance(node.op, Reduce):
            return super()._consume(node, port, message)
        wire = node.inputs[0].type
        if message.payload:
            rows = stack(message.payload)
        else:
            rows = np.zeros((0, *wire.shape), wire.dtype)
        (result,) = run_program(
            reduction(node.op.function, value_of(rows).shape, wire.dtype),
            [rows],
        )
        self._emit(node, 0, result, message.state)


@contextmanager
def _noting_flows():
    """Notes the wires that nodes compute, pumps feed and Phis merge."""
    found = []

    def noting(owner, name):
        plain = getattr(owner, name)

        def call(*args, **options):
            flows = plain(*args, **options)
            found.extend(flows if isinstance(flows, list) else [flows])
            return flows

        return mock.patch.object(owner, name, call)

    with (
        noting(payload_notes, "compute"),
        noting(GraphDraft, "pump"),
        noting(GraphDraft, "merge"),
        noting(GraphDraft, "loop"),
    ):
        yield found
