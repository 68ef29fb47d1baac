"""What a user may get wrong after the graph is built, and what is said then: settings, data, payloads, states, parameters."""

import asyncio

import numpy as np
import optax
import pytest
from support import graphs

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import (
    DataError,
    DeadlockError,
    GraphError,
    LimitError,
    MessageError,
    ParameterError,
    ReplayError,
    SettingsError,
)
from ampjax.ir.instances import InstanceList
from ampjax.sched.decisions.policy import POLICIES

ROWS = 'Make a list of them: of columns, for example, `[{"x": x, "y": y} for x, y in zip(xs, ys)]`.'
FROZEN = 'Write `frozen=("embed",)`, also for one.'
DEVICES = "Pass for example `jax.devices()[:2]`."
CALLBACKS = "Write `callbacks=[function]`, also for one; it is called with the trainer and the epoch's record."
GOOD = {
    "x": np.float32(1),
    "label": np.float32(0),
}

WAITS = "before instance {} is admitted: expected messages that all find their partners, got some that wait for ever: "


def trainer(graph=None, tx=None, **options):
    return amp.Trainer(
        graph or graphs.chain(1),
        tx or optax.sgd(0.1),
        **options,
    )


def fit(data, graph=None, **options):
    trainer(graph, **options).fit(data, progress=False)


def pump_graph(**options):
    with ag.Graph() as g:
        ag.sink(
            "end",
            ag.npt("f", lambda x: x)(ag.pump("x", **options)),
        )
    return g


def stateful(function):
    with ag.Graph() as g:
        x = ag.ppt(
            "f",
            graphs.times,
            params=graphs.one(),
        )(ag.pump("x", fields=("t",)))
        a, b = ag.cond(x, function, name="way")
        ag.sink("a", a)
        ag.sink("b", b)
    return g


def compiled():
    return amp.compile(
        lambda p, s: (p["w"] * s["x"]) ** 2,
        {"w": np.float32(1)},
        {"x": "float32[]"},
    )


def at(t):
    return {
        "x": ag.messages(
            np.ones(1, np.float32),
            t=t,
        )
    }


def late(wrong):
    return lambda s: wrong(s) if len(s) and s.t.max() > 50 else s.t * 0


def open_graph():
    graph = ag.Graph()
    with graph:
        ag.sink("end", ag.pump("x"))
        trainer(graph)


class Columns(InstanceList):
    """A data set of the user's own whose columns do not fit."""

    def __init__(self, messages):
        super().__init__([GOOD])
        self.messages = messages

    def gather(self, ids):
        return self.messages


def setting(name, value, expected, fix=None):
    if fix is None and expected == "an integer below 2^63":
        fix = "Pass a smaller integer."
    elif fix is None:
        least = expected.rsplit(maxsplit=1)[-1]
        fix = f"Pass `{name}={least}`, or more."
    return (
        lambda: trainer(**{name: value}),
        SettingsError,
        f"setting `{name}`: expected {expected}, got {value!r}. {fix}",
    )


PARAMS = {
    "w": np.zeros((4, 3), np.float32),
    "b": np.zeros(3, np.float32),
}


def dense():
    with ag.Graph() as g:
        ag.sink(
            "y",
            ag.ppt(
                "linear",
                amp.nn.Linear(4, 3),
            )(ag.pump("x", (4,))),
        )
    return g


def with_params(params):
    return lambda: trainer(dense(), params=params)


MISTAKES = {
    # Settings
    "no instance in flight": setting("max_active_keys", 0, "an integer of at least 1"),
    "admission of more than can be in flight": (
        lambda: trainer(max_active_keys=4, min_admission=5),
        SettingsError,
        "setting `min_admission`: expected at most `max_active_keys`, 4, got 5. Lower it, or raise `max_active_keys`.",
    ),
    "an interval of zero": setting("min_update_interval", 0, "an integer of at least 1"),
    "half a worker": setting("workers", 1.5, "an integer of at least 1"),
    "a truth value for a number": setting("max_dispatch_size", True, "an integer of at least 1"),
    "a negative seed": setting("seed", -1, "an integer of at least 0"),
    "a seed that no array holds": setting("seed", 2**63, "an integer below 2^63"),
    "an interval that no array holds": setting(
        "min_update_interval", 2**64, "an integer below 2^63"
    ),
    "a text for a truth value": setting(
        "check", "no", "one of [True, False]", "Choose one of these."
    ),
    "one name of a frozen node": setting("frozen", "f0", "names of nodes", FROZEN),
    "frozen nodes that are no names": setting("frozen", 5, "names of nodes", FROZEN),
    "whether each node is frozen": setting("frozen", {"f0": False}, "names of nodes", FROZEN),
    "no devices": setting("devices", [], "a list of JAX's devices, at least one", DEVICES),
    "a number of devices": setting("devices", 2, "a list of JAX's devices, at least one", DEVICES),
    "a cost that is a number": (
        lambda: trainer(cost=5),
        SettingsError,
        "setting `cost`: expected a function of the plan, got int. Pass for example `ampjax.simulation.FlopsCost`, or a function that makes a cost model.",
    ),
    "no memory": setting("memory_limit", 0, "an integer of at least 1"),
    "an arena of one row": setting("arena_rows", 1, "an integer of at least 2"),
    "an unknown mode": setting(
        "mode", "fast", "one of ['async', 'pipeline', 'sync', 'batch']", "Choose one of these."
    ),
    "unknown weights": setting(
        "weights", "old", "one of ['current', 'stashed', 'estimated']", "Choose one of these."
    ),
    "a velocity that never forgets": setting(
        "velocity_decay",
        1.0,
        "a number in [0, 1)",
        "0.135 is usual; 0 takes the last change for the velocity.",
    ),
    "an unknown gradient": setting(
        "gradient", "max", "one of ['mean', 'sum']", "Choose one of these."
    ),
    "an unknown policy": setting(
        "policy",
        "fifo",
        f"one of {list(POLICIES)}, or a function",
        "Choose one of these names.",
    ),
    "an unknown replica rule": setting(
        "replica_sync",
        "sometimes",
        "`epoch`, `none`, ('every_k', k) or ('message', k) with k >= 1",
        "Choose one of these.",
    ),
    "a replica rule that never comes": setting(
        "replica_sync",
        ("every_k", 0),
        "`epoch`, `none`, ('every_k', k) or ('message', k) with k >= 1",
        "Choose one of these.",
    ),
    "a misspelled setting": (
        lambda: trainer(max_activ_keys=4),
        SettingsError,
        f"setting `max_activ_keys`: expected one of {sorted(amp.Settings.__dataclass_fields__)}, got an unknown setting. "
        "Did you mean `max_active_keys`?",
    ),
    "the size of a batch by its usual name": (
        lambda: trainer(batch_size=4),
        SettingsError,
        f"setting `batch_size`: expected one of {sorted(amp.Settings.__dataclass_fields__)}, got an unknown setting. "
        "How many examples an update has is `max_active_keys`, with `mode='batch'`.",
    ),
    "no optax transform": (
        lambda: amp.Trainer(graphs.chain(1), 0.1),
        SettingsError,
        "setting `tx`: expected an optax transform, got float. Pass for example `optax.adam(1e-3)`.",
    ),
    "data from a generator": (
        lambda: fit(example for example in [GOOD]),
        SettingsError,
        "training data: expected a data set, or a sequence of examples, got generator. " + ROWS,
    ),
    "examples of a controller loop from a generator": (
        lambda: fit(
            (example for example in [GOOD]),
            controller=lambda example: iter([example]),
        ),
        SettingsError,
        "training data: expected a data set, or a sequence of examples, got generator. " + ROWS,
    ),
    "data in columns": (
        lambda: fit(
            {
                "x": np.ones(3, np.float32),
                "label": np.ones(3, np.float32),
            }
        ),
        SettingsError,
        "training data: expected a data set, or a sequence of examples, got dict. " + ROWS,
    ),
    "no epochs": (
        lambda: trainer().fit([GOOD], epochs=0),
        SettingsError,
        "fit, `epochs`: expected at least 1, got 0. Train for one epoch or more.",
    ),
    "a text of epochs": (
        lambda: trainer().fit([GOOD], epochs="3"),
        SettingsError,
        "fit, `epochs`: expected at least 1, got '3'. Train for one epoch or more.",
    ),
    "half an epoch": (
        lambda: trainer().fit([GOOD], epochs=1.5),
        SettingsError,
        "fit, `epochs`: expected at least 1, got 1.5. Train for one epoch or more.",
    ),
    "no callbacks": (
        lambda: trainer().fit([GOOD], callbacks=None),
        SettingsError,
        f"fit, `callbacks`: expected a list of functions, got None. {CALLBACKS}",
    ),
    "a callback that is no function": (
        lambda: trainer().fit([GOOD], callbacks=[5]),
        SettingsError,
        f"fit, `callbacks`: expected a list of functions, got [5]. {CALLBACKS}",
    ),
    "a text for a trace": (
        lambda: trainer().fit([GOOD], trace="file"),
        SettingsError,
        "fit, `trace`: expected an `amp.Trace`, got 'file'. Write `trace=amp.Trace()`.",
    ),
    "an open graph": (
        open_graph,
        GraphError,
        "trainer: expected a closed graph, got one that is still being built. Leave the `with amp.graphs.Graph()` block first.",
    ),
    "predict without a sink": (
        lambda: trainer().predict([GOOD]),
        GraphError,
        "predict: expected a sink in the graph, got none. End the wire that you want to see with `amp.graphs.sink(name, wire)`; "
        "in a model as a function say `amp.output(name, value)`.",
    ),
    # Data
    "no instances": (
        lambda: fit([]),
        SettingsError,
        "training data: expected at least one instance, got none. Pass a data set that is not empty.",
    ),
    "no instances to validate on": (
        lambda: trainer().fit([GOOD], []),
        SettingsError,
        "validation data: expected at least one instance, got none. Pass a data set that is not empty.",
    ),
    "the optimizer in the graph's place": (
        lambda: amp.Trainer(optax.sgd(0.1), pump_graph()),
        GraphError,
        "trainer, `graph`: expected an `amp.graphs.Graph`, got GradientTransformationExtraArgs. Pass the graph first, then the optax transform.",
    ),
    "a compiled model in its graph's place": (
        lambda: amp.Trainer(compiled(), optax.sgd(0.1)),
        GraphError,
        "trainer, `graph`: expected an `amp.graphs.Graph`, got Compiled. Pass its `.graph`.",
    ),
    "hosts as text": (
        lambda: trainer(hosts="2"),
        SettingsError,
        "setting `hosts`: expected an integer of at least 1, got '2'. Pass `hosts=1`, or more.",
    ),
    "a compiled model to verify": (
        lambda: amp.verify(compiled(), [GOOD]),
        GraphError,
        "verify, `graph`: expected an `amp.graphs.Graph`, got Compiled. Pass its `.graph`.",
    ),
    "plain instances for a compiled graph": (
        lambda: amp.Trainer(
            compiled().graph,
            optax.sgd(0.1),
        ).fit([{"x": np.float32(1)}]),
        SettingsError,
        "training data: expected what `compiled.data(instances)` gives, as the graph was compiled from a model, got a list of instances as the model takes them. "
        "Pass them through `compiled.data`.",
    ),
    "no instances to evaluate": (
        lambda: trainer().evaluate([]),
        SettingsError,
        "data: expected at least one instance, got none. Pass a data set that is not empty.",
    ),
    "an instance that is no dictionary": (
        lambda: fit([GOOD, 7]),
        MessageError,
        "instance 1: expected a dictionary from pump names to payloads, got int. "
        'Give each instance as `{pump: payload, ...}`: of columns, for example, `[{"x": x, "y": y} for x, y in zip(xs, ys)]`.',
    ),
    "an unknown pump": (
        lambda: fit([{**GOOD, "y": np.float32(0)}]),
        MessageError,
        "pump `y`: expected one of the graph's pumps ['label', 'x'], got an unknown name. Name the pumps of the graph in the instance.",
    ),
    "a missing state field": (
        lambda: trainer(pump_graph(fields=("t", "length"))).predict([at(0)]),
        MessageError,
        "pump `x`: expected messages with the state fields ['length', 't'], got ['t']. Pump each declared field, and no other.",
    ),
    "a state field too many": (
        lambda: trainer(pump_graph()).predict([at(0)]),
        MessageError,
        "pump `x`: expected messages with the state fields [], got ['t']. Pump each declared field, and no other.",
    ),
    "fields that differ between instances": (
        lambda: trainer(pump_graph(fields=("t",))).predict(
            [
                at(0),
                {"x": np.float32(0)},
            ]
        ),
        MessageError,
        "pump `x`: expected the same state fields in every instance (['t']), got []. Give every message the same fields.",
    ),
    "a state column of another length": (
        lambda: trainer(pump_graph(fields=("t",))).predict([at([0, 1, 2])]),
        MessageError,
        "pump `x`, instance 0, state field `t`: expected a scalar or 1 values, one per message, got 3 values. Give each message one value.",
    ),
    "a state that is no integer": (
        lambda: trainer(pump_graph(fields=("t",))).predict([at(0.5)]),
        MessageError,
        "pump `x`, instance 0, state field `t`: expected integers, got float64. States are integers: convert them.",
    ),
    "sizes that do not add up": (
        lambda: trainer(pump_graph(ragged=True)).predict(
            [
                {
                    "x": ag.messages(
                        np.zeros(3, np.float32),
                        sizes=[1, 1],
                    )
                }
            ]
        ),
        MessageError,
        "pump `x`, instance 0: expected 2 payload rows, as the sizes say, got 3. Give `sizes` one number of rows for each message; their sum is the payload's length.",
    ),
    "a payload of another shape": (
        lambda: trainer(pump_graph(shape=(4,))).predict([{"x": np.zeros(5, np.float32)}]),
        MessageError,
        "pump `x`, payload: expected rows of shape (4,), as the pump was declared, one for each message, got (5,) in one message. "
        "Give payloads of the pump's shape.",
    ),
    "payloads of different shapes": (
        lambda: trainer(pump_graph(shape=(4,))).predict(
            [
                {"x": np.zeros(4)},
                {"x": np.zeros(5)},
            ]
        ),
        MessageError,
        "pump `x`, instance 1: expected rows of shape (4,), as in other instances, got (5,). Give all instances rows of the pump's shape.",
    ),
    "a payload of another kind": (
        lambda: trainer(pump_graph(dtype="int32")).predict([{"x": 1.5}]),
        MessageError,
        "pump `x`, payload: expected int32, got float64. Convert the payload to int32, or declare the pump with its dtype.",
    ),
    "a data set's ragged messages without sizes": (
        lambda: trainer(pump_graph(ragged=True)).predict(
            Columns(
                {
                    "x": ag.Messages(
                        np.zeros(2, np.float32),
                        np.zeros(1, int),
                    )
                }
            )
        ),
        MessageError,
        "pump `x`: expected sizes, the rows of each message of a ragged pump, got none. Give `Messages.sizes`.",
    ),
    "a topology that points outside": (
        lambda: ag.Topology(
            ([0],),
            ([3],),
            2,
        ),
        DataError,
        "Topology.scatter: expected row numbers below n_rows = 2, got 3. Give n_rows the number of rows that collect should make.",
    ),
    # What messages do
    "two messages of one state": (
        lambda: fit(
            [
                {
                    "x": ag.messages(np.zeros(2, np.float32)),
                    "label": np.float32(0),
                }
            ]
        ),
        MessageError,
        "node `f0+loss`, port x: expected one message per key, got a second one with State(instance=0). "
        "Make states unique with an isu, or join on more fields.",
    ),
    "a label that never comes": (
        lambda: fit([{"x": np.float32(0)}]),
        DeadlockError,
        f"{WAITS.format(0)}node `f0+loss` has State(instance=0) on port x and "
        "waits for the same key on port label. Pump what the nodes wait for, or mend the conditions that route it.",
    ),
    "a loop that ends with another state than its partner's": (
        lambda: fit(
            [
                *graphs.rnn_data([2]),
                {
                    **graphs.rnn_instance(3),
                    "h0": ag.messages(
                        np.zeros((1, 4)),
                        t=1,
                        length=3,
                    ),
                },
            ],
            graphs.rnn(),
            max_active_keys=1,
            mode="sync",
        ),
        DeadlockError,
        f"{WAITS.format(1)}node `embed+concat1+linear1+tanh` has "
        "State(instance=1, t=0, length=3) on port tokens and waits for the same key on port h. "
        "Pump what the nodes wait for, or mend the conditions that route it.",
    ),
    "a group that is never full": (
        lambda: fit(
            [
                {
                    **graphs.grouping_instance(2),
                    "size": ag.messages(
                        np.zeros(1, np.float32),
                        n=3,
                    ),
                }
            ],
            graphs.grouping(),
        ),
        DeadlockError,
        f"{WAITS.format(0)}node `out+loss` has State(instance=0) on port label "
        "and waits for the same key on port total; group `back` with State(instance=0, i=0) waits for 1 more of 3 member(s). "
        "Pump what the nodes wait for, or mend the conditions that route it.",
    ),
    "a condition that fails": (
        lambda: fit(
            [at(99)],
            stateful(late(lambda s: s.u)),
        ),
        MessageError,
        "node `way`, condition: expected a state function that works for every state, got AttributeError: no state field `u`; "
        "there are ('instance', 't'), for State(instance=0, t=99). Let the function give a result for this state: it is called for all states that reach the node.",
    ),
    "a condition outside its outputs": (
        lambda: fit(
            [at(99)],
            stateful(late(lambda s: s.t)),
        ),
        MessageError,
        "node `way`, condition: expected an output's number in [0, 2), got 99 for State(instance=0, t=99). "
        "Mend the condition, or give the cond more outputs.",
    ),
    "an instance that is too large for the memory": (
        lambda: fit(
            graphs.rnn_data([9]),
            graphs.rnn(),
            memory_limit=1,
        ),
        LimitError,
        "instance 0: expected at most 1 rows of shape (4,) float32, which the memory limit allows, got 10 rows. "
        "Raise `memory_limit`, or split the instance.",
    ),
    "a molecule without its topology": (
        lambda: fit(
            [
                {
                    "atoms": np.zeros((2, 2), np.float32),
                    "label": np.float32(0),
                }
            ],
            graphs.molecule(),
        ),
        MessageError,
        "node `out`: expected a topology on pump `maps` before the message, got none for this instance. "
        "Pump the topology with the instance.",
    ),
    # Parameters
    "parameters of an unknown node": (
        with_params({"linaer": PARAMS}),
        ParameterError,
        "parameters of `linaer`: expected one of the parameterised nodes ['linear'], got an unknown node. Use a node's name; `compiled.node_params` gives the parameters of a compiled model by node.",
    ),
    "parameters in a list": (
        lambda: trainer(dense()).set_params([PARAMS]),
        ParameterError,
        "parameters: expected a tree for each name, got list. Begin with `trainer.params`.",
    ),
    "parameters of another structure": (
        with_params({"linear": {"w": PARAMS["w"]}}),
        ParameterError,
        "parameters of `linear`: expected the structure PyTreeDef({'b': *, 'w': *}), got PyTreeDef({'w': *}). "
        "Start from `trainer.params` and change values.",
    ),
    "parameters of another shape": (
        with_params(
            {
                "linear": {
                    **PARAMS,
                    "w": np.zeros((3, 4)),
                }
            }
        ),
        ParameterError,
        "parameters of `linear`, leaf ['w']: expected shape (4, 3), got (3, 4). Give arrays of the node's shapes.",
    ),
    "parameters that are not finite": (
        with_params(
            {
                "linear": {
                    **PARAMS,
                    "b": np.full(3, np.inf),
                }
            }
        ),
        ParameterError,
        "parameters of `linear`, leaf ['b']: expected finite values, got NaN or infinity. Check where these parameters come from.",
    ),
    "an unknown node in set_params": (
        lambda: trainer(dense()).set_params({"nonlinear": PARAMS}),
        ParameterError,
        "parameters of `nonlinear`: expected one of the parameterised nodes ['linear'], got an unknown node. Use a node's name; `compiled.node_params` gives the parameters of a compiled model by node.",
    ),
}


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    MISTAKES.values(),
    ids=MISTAKES,
)
def test_mistakes(make, kind, text):
    with pytest.raises(kind) as caught:
        make()
    assert first_line(caught.value) == text


def first_line(error):
    """Below it the hang doctor speaks: see `test_hangs`."""
    return str(error).split("\n")[0]


def test_a_mistake_is_a_value_error_and_a_standstill_is_not():
    kinds = (DataError, GraphError, MessageError, ParameterError, SettingsError)
    assert all(issubclass(kind, ValueError) for kind in kinds)
    assert all(
        issubclass(kind, RuntimeError) and not issubclass(kind, ValueError)
        for kind in (DeadlockError, LimitError, ReplayError)
    )


def test_mistakes_say_the_same_where_a_loop_runs():
    make, kind, text = MISTAKES["a label that never comes"]

    async def cell():
        with pytest.raises(kind) as caught:
            make()
        assert first_line(caught.value) == text

    asyncio.run(cell())


def test_a_nan_that_training_makes_is_seen_in_the_loss():
    """Numbers that blow up are no mistake of the messages: they are shown, not hidden."""
    with pytest.warns(RuntimeWarning, match="expected a finite training loss, got inf"):
        history = trainer(tx=optax.sgd(1e30)).fit(
            [GOOD] * 4,
            epochs=3,
            progress=False,
        )
    assert not np.isfinite(history[-1].train["loss"])
