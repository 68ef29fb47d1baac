"""Mistakes in building a graph: each is a GraphError that says where, what was expected, what came, and what to do."""

import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import GraphError

D = 4


def double(x):
    return 2 * x


def add(x, y):
    return x + y


def pump(name="x", shape=(D,), **options):
    return ag.pump(name, shape, **options)


def end(*wires):
    for i, wire in enumerate(wires):
        ag.sink(f"end{i}", wire)


# Shapes, dtypes, bodies.


def wrong_shape():
    ag.ppt(
        "lstm",
        amp.nn.Linear(128, 10),
    )(pump("embed", (64,)))


def wrong_shape_for_a_plain_body():
    ag.npt("add", add)(
        pump("a", (3,)),
        pump("b", (D,)),
    )


def wrong_dtype():
    ag.ppt(
        "embed",
        amp.nn.Embed(10, D),
    )(pump("ids", (), dtype="float32"))


def plain_function_without_parameters():
    ag.ppt("layer", lambda p, x: x @ p)


def body_that_cannot_be_called():
    ag.npt("layer", 3)


def init_that_fails():
    ag.ppt(
        "layer",
        lambda p, x: x,
        params=lambda key: jnp.zeros(3) @ jnp.zeros(4),
    )(pump())


def wrong_arity():
    ag.npt("add", add)(pump())


def wrong_number_of_outputs():
    ag.npt("double", double, outputs=2)(pump())


def no_inputs():
    ag.npt("double", double)()


def split_sizes():
    ag.split(pump(), (3, 2), name="split")


def loss_not_scalar():
    ag.loss("loss", double)(pump())


def loss_of_integers():
    ag.loss("loss", lambda x: x)(pump(shape=(), dtype="int32"))


def metric_not_scalar():
    ag.loss(
        "loss",
        lambda x: (x.sum(), {"each": x}),
    )(pump())


def metric_called_loss():
    ag.loss(
        "loss",
        lambda x: (
            x.sum(),
            {"loss": x.sum()},
        ),
    )(pump())


def metric_without_a_name():
    ag.loss(
        "loss",
        lambda x: (
            x.sum(),
            {1: x.sum()},
        ),
    )(pump())


def pump_without_a_name():
    ag.pump((3,))


def pump_of_one_number():
    ag.pump("x", 3)


def copies_in_words():
    ag.replicate(ag.npt("double", double), "2", "round_robin")


# Ports, wires, loops, names.


def unconnected_port():
    end(ag.npt("add", add)(pump(), None))


def unconnected_phi():
    end(ag.phi("h"))


def two_wires_into_one_port():
    x = pump()
    node = ag.npt("double", double)(x).source
    x.source.outputs and ag.Graph.connect(
        amp.ir.graph.current_graph(),
        node,
        0,
        x,
    )


def port_that_is_not_there():
    x = pump()
    amp.ir.graph.current_graph().connect(x.source, 0, x)


def phi_connected_twice():
    x = pump()
    ag.phi("h").connect(x).connect(x)


def builder_called_twice():
    x = pump()
    node = ag.npt("double", double)
    node(x)
    node(x)


def loop_without_phi():
    x = pump()
    graph = amp.ir.graph.current_graph()
    y = ag.npt("add", add)(x, None)
    graph.connect("add", 1, ag.npt("double", double)(y))


def loop_that_no_pump_enters():
    h = ag.phi("h")
    more, done = ag.cond(
        ag.npt("double", double)(h),
        lambda s: s.instance > 0,
    )
    h.connect(more)
    end(done, pump())


def float_in_a_state():
    end(
        ag.isu(
            pump(fields=("t",)),
            lambda s: s.replace(t=s.t + 0.5),
            lambda s: s.replace(t=s.t - 0.5),
        )
    )


def unknown_dtype():
    end(ag.pump("x", dtype="flaot32"))


def dtype_of_64_bits():
    end(ag.pump("x", dtype="float64"))


def dtype_of_texts():
    end(ag.pump("x", dtype="U3"))


def wire_of_another_graph():
    with ag.Graph():
        end(other := pump("other"))
    ag.npt("double", double)(other)


def not_a_wire():
    ag.npt("double", double)(3.0)


def dangling_wire():
    _, done = ag.cond(
        pump(),
        lambda s: s.instance > 0,
        name="cond",
    )
    end(done)


def duplicate_names():
    end(pump("x"))
    pump("x")


def empty_graph():
    pass


def node_in_a_closed_graph():
    with ag.Graph() as g:
        end(pump())
    g.add(
        "late",
        amp.ir.ops.payload_nodes.Sink(),
        (),
        0,
    )


def connect_in_a_closed_graph():
    with ag.Graph() as g:
        end(x := pump())
    g.connect("end0", 0, x)


# States.


def pump_field_named_instance():
    pump(fields=("instance", "t"))


def pump_field_twice():
    pump(fields=("t", "t"))


def missing_state_field():
    ag.cond(
        pump("z", fields=("t",)),
        lambda s: s.t < s.length,
        name="cond",
    )


def isu_that_does_not_invert():
    ag.isu(
        pump(fields=("t",)),
        lambda s: s.replace(t=s.t + 1),
        lambda s: s.replace(t=s.t - 2),
        name="step",
    )


def isu_that_loses_information():
    ag.isu(
        pump(fields=("v",)),
        lambda s: s.replace(v=s.v // 2),
        lambda s: s.replace(v=s.v * 2),
        name="up",
    )


def inverse_that_keeps_a_field():
    ag.isu(
        pump(fields=("t",)),
        lambda s: s.replace(u=s.t),
        lambda s: s,
        name="step",
    )


def inverse_that_drops_a_field():
    ag.isu(
        pump(fields=("t", "n")),
        lambda s: s.replace(t=s.t + 1),
        lambda s: s.drop("n"),
        name="step",
    )


def isu_without_a_state():
    ag.isu(
        pump(fields=("t",)),
        lambda s: s.t + 1,
        lambda s: s,
        name="step",
    )


def isu_that_replaces_the_instance():
    ag.isu(
        pump(),
        lambda s: s.replace(instance=s.instance + 1),
        lambda s: s,
        name="step",
    )


def scaled(name, **options):
    return ag.ppt(name, lambda p, x: p * x, **options)


def params_of_nobody():
    scaled("b", params_of="a")(pump())


def params_of_a_node_that_is_made_later():
    own = scaled("a", params=np.float32(1))
    scaled("b", params_of=own)(pump())


def params_of_a_node_without_any():
    scaled(
        "b",
        params_of=ag.npt("a", double)(pump()),
    )(pump("y"))


def params_of_another_graph():
    with ag.Graph():
        x = scaled("a", params=np.float32(1))(pump())
        ag.sink("end", x)
    with ag.Graph():
        scaled("b", params_of=x)(pump())


def params_of_a_copy_outside_of_it():
    y = ag.replicate(
        scaled("a", params=np.float32(1)),
        2,
    )(pump())
    scaled("b", params_of="a/0")(y)


def shared_params_that_do_not_fit():
    x = scaled(
        "a",
        params=np.ones(3, np.float32),
    )(pump(shape=(3,)))
    scaled("b", params_of="a")(
        ag.npt(
            "wider",
            lambda x: jnp.append(x, x),
        )(x)
    )


def params_and_params_of():
    scaled("b", params=np.float32(1), params_of="a")


def interval_of_shared_params():
    scaled("b", params_of="a", min_update_interval=3)


def shared_params_on_two_workers():
    x = scaled(
        "b",
        params_of=scaled("a", params=np.float32(1))(pump()),
    )(pump("y"))
    scaled(
        "d",
        params_of="b",
        worker=0,
    )(scaled("c", params_of="a", worker=1)(x))


def relabel_that_reads_a_missing_field():
    ag.relabel(
        pump(fields=("t",)),
        lambda s: s.replace(t=s.u),
        name="step",
    )


def relabel_without_a_state():
    ag.relabel(
        pump(fields=("t",)),
        lambda s: s.t // 2,
        name="step",
    )


def relabel_that_drops_the_instance():
    ag.relabel(
        pump(fields=("t",)),
        lambda s: s.drop("instance"),
        name="step",
    )


def relabel_that_moves_rows():
    ag.relabel(
        pump(fields=("t",)),
        lambda s: s.take(np.arange(len(s))[::-1]),
        name="step",
    )


def cond_with_float_result():
    ag.cond(
        pump(fields=("t",)),
        lambda s: s.t / 2,
        name="cond",
    )


def cond_of_three_by_a_truth_value():
    ag.cond(
        pump(fields=("t",)),
        lambda s: s.t > 2,
        3,
        name="cond",
    )


def if_on_a_column():
    ag.cond(
        pump(fields=("t",)),
        lambda s: 1 if s.t > 2 else 0,
        name="cond",
    )


def column_of_another_length():
    ag.cond(
        pump(fields=("t",)),
        lambda s: s.t[:3],
        name="cond",
    )


def flatmap_count_not_integer():
    ag.flatmap(
        pump(fields=("n",)),
        lambda s: s.n * 0.5,
        lambda s, i: s.replace(i=i),
        name="children",
    )


def flatmap_without_a_state():
    ag.flatmap(
        pump(fields=("n",)),
        lambda s: s.n,
        lambda s, i: i,
        name="children",
    )


# Joins and keys.


def phi_of_different_payloads():
    ag.phi(
        "h",
        pump("a", (3,)),
        pump("b", (D,)),
    )


def phi_of_different_schemas():
    ag.phi(
        "h",
        pump("a", fields=("t",)),
        pump("b", fields=("t", "n")),
    )


def join_schema_mismatch():
    ag.npt("add", add)(
        pump("a", fields=("t",)),
        pump("label"),
    )


def unknown_key_field():
    ag.npt("add", add, join=("t",))(
        pump("a", fields=("t",)),
        pump("b"),
    )


def keying_function_that_gives_floats():
    ag.npt("add", add, join=lambda s: s.t / 2)(
        pump("a", fields=("t",)),
        pump("b", fields=("t",)),
    )


def unknown_group_field():
    ag.group(
        pump("a", fields=("t",)),
        by=("parent",),
        size=lambda s: s.t,
        name="children",
    )


def group_size_not_integer():
    ag.group(
        pump("a", fields=("t",)),
        size=lambda s: s.t / 2,
        name="children",
    )


# Ragged messages and topologies.


def ragged_and_ordinary():
    ag.npt("add", add)(
        pump("a", ragged=True),
        pump("b"),
    )


def group_of_ragged():
    ag.group(
        pump("a", ragged=True),
        size=lambda s: 1,
        name="group",
    )


def ungroup_of_ordinary():
    ag.ungroup(pump("a"), "i", name="ungroup")


def ungroup_without_a_state():
    ag.ungroup(pump("a", ragged=True))


def reduce_of_ordinary():
    ag.reduce("sum", lambda rows, ids, n: rows, pump("a"))


def reduce_with_wrong_leading_size():
    ag.reduce(
        "sum",
        lambda rows, ids, n: rows,
        pump("a", ragged=True),
    )


def topology_as_payload():
    ag.npt("double", double)(ag.topology("map"))


def distribute_without_a_topology():
    ag.distribute(
        pump("a", ragged=True),
        pump("map"),
        2,
        name="edges",
    )


def distribute_of_ordinary():
    ag.distribute(
        pump("a"),
        ag.topology("map"),
        2,
        name="edges",
    )


def collect_of_different_rows():
    ag.collect(
        [
            pump("a", (3,), ragged=True),
            pump("b", ragged=True),
        ],
        ag.topology("map"),
        name="sum",
    )


# Routing by payload.


def choice_of_floats():
    ag.route_by(
        pump("x"),
        pump("gate", ()),
        "expert",
        name="route",
    )


def choices_for_one_field():
    ag.route_by(
        pump("x"),
        pump("gate", (2,), dtype="int32"),
        "expert",
        name="route",
    )


def route_ragged_rows():
    ag.route_by(
        pump("x", ragged=True),
        pump("gate", (), dtype="int32", ragged=True),
        "expert",
        name="route",
    )


def route_into_the_instance():
    ag.route_by(
        pump("x"),
        pump("gate", (), dtype="int32"),
        "instance",
        name="route",
    )


def assumption_for_one_of_two():
    choices = pump("gate", (2,), dtype="int32")
    ag.route_by(
        pump("x"),
        choices,
        "first",
        "second",
        assume=lambda s: s.instance,
        name="route",
    )


# Options.


def interval_of_zero():
    ag.ppt(
        "layer",
        amp.nn.Linear(D, D),
        min_update_interval=0,
    )


def dispatch_size_not_integer():
    ag.ppt(
        "layer",
        amp.nn.Linear(D, D),
        max_dispatch_size=1.5,
    )


def old_weights():
    ag.ppt(
        "layer",
        amp.nn.Linear(D, D),
        weights="old",
    )


def gradient_max():
    ag.ppt(
        "layer",
        amp.nn.Linear(D, D),
        gradient="max",
    )


def tx_by_name():
    ag.ppt(
        "layer",
        amp.nn.Linear(D, D),
        tx="adam",
    )


def replicate_no_copies():
    ag.replicate(
        ag.ppt("layer", amp.nn.Linear(D, D)),
        0,
    )


def replicate_unknown_route():
    ag.replicate(
        ag.ppt("layer", amp.nn.Linear(D, D)),
        2,
        "random",
    )


def replicate_a_pump():
    ag.replicate(
        lambda x: ag.concat(x, pump("y")),
        2,
        name="both",
    )(pump("x"))


def replicate_with_a_wire_from_outside():
    y = pump("y")
    ag.replicate(
        lambda x: ag.concat(x, y, name="join"),
        2,
        name="both",
    )(pump("x"))


def replicate_with_another_copys_wire():
    seen = []

    def peeping(x):
        seen.append(ag.npt("same", lambda x: x)(x))
        return ag.concat(x, seen[0], name="join")

    ag.replicate(peeping, 2)(pump("x"))


def replicate_and_use_a_copys_wire_outside():
    seen = []

    def leaking(x):
        seen.append(ag.npt("same", lambda x: x)(x))
        return seen[-1]

    ag.replicate(leaking, 2)(pump("x"))
    ag.sink("end", seen[-1])


def replicate_and_connect_a_copys_phi_later():
    phis = []

    def waiting(x):
        phis.append(ag.phi("h"))
        return ag.npt("add", lambda a, b: a + b)(
            x,
            phis[-1],
        )

    ag.replicate(waiting, 2)(pump("x"))
    phis[0].connect(pump("y"))


def replicate_a_node_with_the_name_of_one_outside():
    ag.sink("end", pump("x"))
    ag.replicate(
        lambda x: ag.sink("end", x),
        2,
        name="both",
    )(pump("y"))


def replicate_a_node_inside_a_copy_under_its_name():
    def twice(x):
        y = ag.ppt(
            "lin",
            amp.nn.Linear(D, D),
        )(x)
        return ag.replicate(
            ag.ppt("lin", amp.nn.Linear(D, D)),
            2,
        )(y)

    ag.replicate(twice, 2)(pump("x"))


def replicate_parts_that_differ():
    calls = iter([1, 2])

    def growing(x):
        return tuple(ag.npt(f"same{i}", lambda x: x)(x) for i in range(next(calls)))

    ag.replicate(growing, 2)(pump("x"))


MISTAKES = [
    (wrong_shape, "node `lstm`, port 0: expected a payload of shape (128,) float32, got (64,) float32 from node `embed`. Give `embed` 128 features, or put a Linear(64, 128) between them."),
    (wrong_shape_for_a_plain_body, "node `add`: expected payloads that its body takes, got port 0: shape (3,) float32 from `a`, port 1: shape (4,) float32 from `b`; the body raised TypeError: … Change the body so that it takes these shapes, or the nodes that feed it so that they give others."),
    (wrong_dtype, "node `embed`: expected payloads that its body takes, got port 0: shape () float32 from `ids`; the body raised TypeError: … Change the body so that it takes these shapes, or the nodes that feed it so that they give others."),
    (plain_function_without_parameters, "node `layer`: expected parameters for a plain function, got none. Pass `params=` a pytree or a function of a PRNG key; for a node without parameters use `npt`."),
    (body_that_cannot_be_called, "node `layer`: expected a function as its body, got int. Pass a function of the payloads."),
    (init_that_fails, "node `layer`, parameters: expected an init function of a PRNG key that gives a pytree of arrays, got TypeError: … Let `init(key)` run without an error and return the pytree of parameters."),
    (wrong_arity, "node `add`: expected as many wires as its body takes inputs (x, y), got 1 wires. Connect one wire per input."),
    (wrong_number_of_outputs, "node `double`: expected 2 output array(s), got float32[4]. Return an array, or a tuple and say `outputs=`."),
    (no_inputs, "node `double`: expected at least one input wire, got none. Call it with the wires that feed it."),
    (split_sizes, "node `split`: expected payloads that its body takes, got port 0: shape (4,) float32 from `x`; the body raised ValueError: sizes (3, 2) add up to 5, not to axis -1 of shape (4,). Change the body so that it takes these shapes, or the nodes that feed it so that they give others."),
    (loss_not_scalar, "node `loss`: expected a scalar float loss, or (loss, {name: metric}), got float32[4]. Reduce the loss to one number per message, for example with `.mean()`."),
    (loss_of_integers, "node `loss`: expected a scalar float loss, or (loss, {name: metric}), got int32[]. Reduce the loss to one number per message, …"),
    (metric_not_scalar, "node `loss`, metric `each`: expected a scalar, or a pair (sum, count) of scalars, got float32[4]. Reduce it to one number per message."),
    (metric_called_loss, "node `loss`: expected names for the metrics: texts, and not `loss` or `loss_sum`, which are told anyway, got 'loss'. Give the metric another name in the dictionary that the loss returns."),
    (metric_without_a_name, "node `loss`: expected names for the metrics: texts, and not `loss` or `loss_sum`, which are told anyway, got 1. Give the metric another name in the dictionary that the loss returns."),
    (pump_without_a_name, "pump: expected a name, a text, got (3,). Name it first, then give its shape."),
    (pump_of_one_number, "pump `x`, shape: expected a tuple of integers, got 3. Write `shape=(3,)`, also for one."),
    (copies_in_words, "replicate `double`: expected n >= 1, got n = '2'. Pass the number of replicas; 1 leaves the part as it is."),
    (unconnected_port, "node `add`, port y: expected a wire, got an unconnected port. Connect it before the graph is closed."),
    (unconnected_phi, "node `h`: expected inputs, got an unconnected phi. Call `h.connect(...)` before the graph is closed."),
    (two_wires_into_one_port, "node `double`, port x: expected one wire, got a second one, `x`, beside `x`. Join the two with a phi."),
    (port_that_is_not_there, "node `x`, port 0: expected one of the 0 ports, got port 0. Pass a port that the node has; ports count from 0."),
    (phi_connected_twice, "node `h`: expected one call of connect, got a second one. Give connect all wires at once."),
    (builder_called_twice, "node `double`: expected one wire into each port, got a second call. Join the wires with a phi first, or build a second node."),
    (loop_without_phi, "node `add`: expected a phi wherever a loop closes, got the loop add -> double -> add. Merge the loop's entry and its return with `amp.graphs.phi`."),
    (loop_that_no_pump_enters, "node `h`: expected inputs whose shapes are known without it, got a loop whose phi nothing enters from outside, so that its shape would have to tell itself. Connect the phi to a pump, or to a node before the loop, too."),
    (float_in_a_state, "node `isu1`, f: expected a function that works on columns of integers, got TypeError: field `t` takes integers, not float64: use `//` instead of `/`, or cast. Write it in NumPy style, for example `np.where(...)` instead of `if`."),
    (unknown_dtype, "pump `x`, dtype: expected a dtype, such as `float32` or `int32`, got 'flaot32'. Write the name of a NumPy dtype of numbers, such as `float32`."),
    (dtype_of_64_bits, "pump `x`, dtype: expected a dtype that JAX holds now, got float64. Declare it as float32, or let JAX compute in 64 bits: `jax.config.update(\"jax_enable_x64\", True)`."),
    (dtype_of_texts, "pump `x`, dtype: expected a dtype of numbers, got <U3. Encode what is no number as integers."),
    (wire_of_another_graph, "node `double`, port x: expected a wire of the same graph, got `other` of another graph. Build all nodes inside one `with amp.graphs.Graph()` block."),
    (not_a_wire, "node `double`, port x: expected a wire, got float. Connect what a pump or a node returned."),
    (dangling_wire, "node `cond`, output 0: expected a consumer, got a wire that goes nowhere. Connect it, or end it with `amp.graphs.sink` or `amp.graphs.discard`."),
    (duplicate_names, "node `x`: expected a name that no other node has, got the name of a Pump. Give each node its own name."),
    (empty_graph, "graph: expected at least one node, got an empty graph. Build nodes inside the `with amp.graphs.Graph()` block."),
    (node_in_a_closed_graph, "node `late`: expected an open graph, got a graph that has been closed. Add nodes inside the `with amp.graphs.Graph()` block."),
    (connect_in_a_closed_graph, "node `end0`, port 0: expected an open graph, got a graph that has been closed. Connect inside the `with amp.graphs.Graph()` block."),
    (pump_field_named_instance, "pump `x`: expected different field names other than `instance`, which is always there, got ('instance', 't'). Give each field a name of its own; `instance` need not be declared."),
    (pump_field_twice, "pump `x`: expected different field names other than `instance`, which is always there, got ('t', 't'). Give each field a name of its own; `instance` need not be declared."),
    (missing_state_field, "node `cond`, condition: expected a function of the state fields ('instance', 't'), got `no state field `length`; there are ('instance', 't')`. Pump the field, or set it in an isu before."),
    (isu_that_does_not_invert, "node `step`, f_inv: expected f_inv(f(s)) == s = State(instance=0, t=0), got State(instance=0, t=-1) with f(s) = State(instance=0, t=1). Let f_inv undo f for every state."),
    (isu_that_loses_information, "node `up`, f_inv: expected f_inv(f(s)) == s = State(…), got State(…) with f(s) = State(…). Let f_inv undo f for every state."),
    (inverse_that_keeps_a_field, "node `step`, f_inv: expected states with the fields ['t'] back, got ['t', 'u']. Let f_inv undo f: drop what f added."),
    (inverse_that_drops_a_field, "node `step`, f_inv: expected states with the fields ['n', 't'] back, got ['t']. Let f_inv undo f: drop what f added."),
    (isu_without_a_state, "node `step`, f: expected a State with as many rows as it was given, got ndarray. Return `s.replace(...)` or `s.drop(...)`."),
    (isu_that_replaces_the_instance, "node `step`, f: expected a function of the state fields ('instance',), got ``instance` can't be replaced: a message belongs to its instance for good`. …"),
    (params_of_nobody, "node `b`, params_of: expected a PPT that has been called before: there is none yet, got `a`. Call the node that has the parameters first, and name it."),
    (params_of_a_node_that_is_made_later, "node `b`, params_of: expected a PPT that has been called before: there is none yet, got `a`. Call …"),
    (params_of_a_node_without_any, "node `b`, params_of: expected a PPT that has been called before: there is none yet, got the NPT `a`. Call …"),
    (params_of_another_graph, "node `b`, params_of: expected a PPT that has been called before: there is none yet, got `a`. Call …"),
    (params_of_a_copy_outside_of_it, "node `b`, params_of: expected a PPT outside of all copies, or in the same copy, got `a/0`, in a copy of `a`. Build both nodes in the function of `a`: each copy has its own parameters."),
    (shared_params_that_do_not_fit, "node `b`: expected payloads that its body takes, got port 0: shape (6,) float32 from `wider`; the body raised TypeError: …. Change the body so that it takes these shapes, or the nodes that feed it so that they give others."),
    (params_and_params_of, "node `b`: expected no `params` beside `params_of`, got `params`. Give it to the node that has the parameters: they have one tree, one optimizer state and one update rule."),
    (interval_of_shared_params, "node `b`: expected no `min_update_interval` beside `params_of`, got `min_update_interval`. Give it …"),
    (shared_params_on_two_workers, "node `d`, worker: expected worker 1, that of `c`, as the two compute with the parameters of `a`, got worker 0. Put the two on one worker, or leave one of them to the affinity rule."),
    (relabel_that_reads_a_missing_field, "node `step`, f: expected a function of the state fields ('instance', 't'), got `no state field `u`; there are ('instance', 't')`. Pump the field, or set it in an isu before."),
    (relabel_without_a_state, "node `step`, f: expected a State with as many rows as it was given, got ndarray. Return `s.replace(...)` or `s.drop(...)`."),
    (relabel_that_drops_the_instance, "node `step`, f: expected states of the same instances, row by row, got instances [0, 0, … for [0, 1, …. Keep the rows in their order, and `instance` as it is."),
    (relabel_that_moves_rows, "node `step`, f: expected states of the same instances, row by row, got instances [15, … for [0, …. Keep the rows in their order, and `instance` as it is."),
    (cond_with_float_result, "node `cond`, condition: expected integers or truth values, got float64. States are integers: use `//` instead of `/`, or cast."),
    (cond_of_three_by_a_truth_value, "node `cond`, condition: expected an output's number in [0, 3), got truth values. Return integers, or use two outputs."),
    (if_on_a_column, "node `cond`, condition: expected a function that works on columns of integers, got ValueError: The truth value of an array with more than one element is ambiguous. … Write it in NumPy style, for example `np.where(...)` instead of `if`."),
    (column_of_another_length, "node `cond`, condition: expected a scalar or 16 values, one per message, got shape (3,). Return one value per message."),
    (flatmap_count_not_integer, "node `children`, count: expected integers or truth values, got float64. States are integers: use `//` instead of `/`, or cast."),
    (flatmap_without_a_state, "node `children`, state: expected a State with as many rows as it was given, got ndarray. Return `s.replace(...)` or `s.drop(...)`."),
    (phi_of_different_payloads, "node `h`, port 1: expected shape (3,) float32, as on port 0 from `a`, got shape (4,) float32 from `b`. All inputs of a phi carry the same payload."),
    (phi_of_different_schemas, "node `h`, port 1: expected the state fields ['t'], as on port 0 from `a`, got ['n', 't'] from `b`. Pump the missing fields, or drop the extra ones in an isu."),
    (join_schema_mismatch, "node `add`, port 1: expected the state fields ['t'], as on port 0 from `a`, got [] from `label`. Pump the missing fields, or say which fields to join on with `join=(...)`."),
    (unknown_key_field, "node `add`, port 1: expected a state with the field `t`, which the key names, got the fields ('instance',) from `b`. Pump the field, or take it out of the key."),
    (keying_function_that_gives_floats, "node `add`, port 0, key: expected integers or truth values, got float64. States are integers: …"),
    (unknown_group_field, "node `children`, port 0: expected a state with the field `parent`, which the key names, got the fields ('instance', 't') from `a`. Pump the field, or take it out of the key."),
    (group_size_not_integer, "node `children`, size: expected integers or truth values, got float64. States are integers: …"),
    (ragged_and_ordinary, "node `add`, port 1: expected a ragged message, as on port 0, got shape (4,) float32 from `b`. Use `amp.graphs.repeat` to copy a row to every row of a ragged message."),
    (group_of_ragged, "node `group`, port 0: expected an ordinary message, got rows of shape (4,) float32 from `a`. Ungroup it first."),
    (ungroup_of_ordinary, "node `ungroup`, port 0: expected a ragged message, got shape (4,) float32 from `a`. Group the messages first, or pump them with `ragged=True`."),
    (ungroup_without_a_state, "ungroup: expected either `field` or `state`, got neither. Say how the rows' states differ."),
    (reduce_of_ordinary, "node `sum`, port 0: expected a ragged message, got shape (4,) float32 from `a`. Group the messages first."),
    (reduce_with_wrong_leading_size, "node `sum`: expected one row per segment, [n_segments, ...], got float32[3, 4]. Use a segment operation such as `jax.ops.segment_sum`."),
    (topology_as_payload, "node `double`, port 0: expected a payload, got the topology pump `map`. Topologies drive distribute and collect only."),
    (distribute_without_a_topology, "node `edges`, port 1: expected the wire of a topology pump, got shape (4,) float32 from `map`. Make one with `amp.graphs.topology(name)` and connect it directly."),
    (distribute_of_ordinary, "node `edges`, port 0: expected a ragged message, got shape (4,) float32 from `a`. Group the messages first, or pump them with `ragged=True`."),
    (collect_of_different_rows, "node `sum`, port 1: expected rows of shape (3,) float32, got rows of shape (4,) float32 from `b`. All inputs of a collect carry rows of one shape."),
    (choice_of_floats, "node `route`, port 1: expected integers or truth values of shape (), for the fields ('expert',), got shape () float32 from `gate`. Let an npt compute the choice, for example by `argmax`."),
    (choices_for_one_field, "node `route`, port 1: expected integers or truth values of shape (), for the fields ('expert',), got shape (2,) int32 from `gate`. …"),
    (route_ragged_rows, "node `route`, port 0: expected an ordinary message, got rows of shape (4,) float32. Ungroup or reduce the rows first."),
    (route_into_the_instance, "node `route`: expected different field names other than `instance`, got ('instance',). Name the state fields behind `choice`: at least one, none twice, and not `instance`."),
    (assumption_for_one_of_two, "node `route`, assume: expected 2 columns, got 1. Return one for each field."),
    (interval_of_zero, "node `layer`: expected min_update_interval an integer of at least 1, got 0. Give a positive number of gradient rows."),
    (dispatch_size_not_integer, "node `layer`: expected max_dispatch_size an integer of at least 1, got 1.5. …"),
    (old_weights, "node `layer`: expected weights one of ['current', 'stashed', 'estimated'], got 'old'. Pass `weights=` with one of these; without it the trainer's `weights` holds."),
    (gradient_max, "node `layer`: expected gradient `mean` or `sum`, got 'max'. Choose one of the two."),
    (tx_by_name, "node `layer`: expected an optax transform as `tx`, got str. Pass for example `optax.adam(1e-3)`."),
    (replicate_no_copies, "replicate `layer`: expected n >= 1, got n = 0. …"),
    (replicate_a_pump, "replicate `both`: expected no pumps in what is copied, got the pump `y`. Make it outside, and pass its wire to the function; a topology's can be used as it is."),
    (replicate_with_a_wire_from_outside, "node `join/0`, port 1: expected a wire of the same copy, got `y`, which is outside of it. Pass it to what `replicate` of `both` gives, so that it is routed with the others."),
    (replicate_with_another_copys_wire, "node `join/1`, port 1: expected a wire of the same copy, got `same/0`, which is outside of it. …"),
    (replicate_and_use_a_copys_wire_outside, "node `end`, port 0: expected a wire of the same copy, got `same/1`, which is inside of one. Let the function of `leaking` return it, so that the copies' wires are joined."),
    (replicate_and_connect_a_copys_phi_later, "node `h/0`, port 0: expected a wire of the same copy, got `y`, which is outside of it. …"),
    (replicate_a_node_with_the_name_of_one_outside, "node `end` in `both`: expected a name that no other node has, got the name of one outside of all copies. …"),
    (replicate_a_node_inside_a_copy_under_its_name, "node `lin` in `twice/lin`: expected a name that no other node has, got the name of one in `twice`. …"),
    (replicate_parts_that_differ, "replicate `growing`: expected as many outputs of each copy, got 1 and 2. Build the same in every call."),
    (replicate_unknown_route, "replicate `layer`, route: expected `round_robin` or a state function, got 'random'. Pass a function of the state."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "text"),
    MISTAKES,
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_mistake(build, text):
    with pytest.raises(GraphError) as caught, ag.Graph():
        build()
    got = str(caught.value)
    start = 0
    for part in text.split("…"):  # an ellipsis stands for what NumPy, JAX or the samples say
        assert part in got[start:] if start else got.startswith(part), got
        start = got.index(part, start) + len(part)
    assert text.endswith("…") or start == len(got), got
    error = caught.value
    assert error.where and error.expected and error.got and error.fix


def test_node_outside_any_graph():
    with pytest.raises(
        GraphError, match="ampjax: expected a graph to build in, got a node outside any graph"
    ):
        pump()


def test_a_failed_block_leaves_no_graph_behind():
    with pytest.raises(GraphError), ag.Graph():
        old_weights()
    with pytest.raises(GraphError, match="outside any graph"):
        pump()


def test_the_user_s_own_error_in_the_block_is_not_covered_by_an_unfinished_graph():
    with pytest.raises(ZeroDivisionError), ag.Graph():
        pump()
        1 // 0
