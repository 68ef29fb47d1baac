"""A combinator is an object with traits and a rule for each back end, listed nowhere else."""

import importlib
import pkgutil

import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray

import ampjax as amp
from ampjax.frontend import combinators
from ampjax.frontend.batched import _RULES as OF_STEPS
from ampjax.frontend.batches.row_lowering import STEP_RULES
from ampjax.frontend.combinators.embeddings import LOOK_UP
from ampjax.frontend.combinators.sequences import dimension_of
from ampjax.frontend.combinators.tracing import Call, Combinator, along, bind, user_line
from ampjax.frontend.compile_model import _RULES as OF_MESSAGES
from ampjax.frontend.deduction.joined_calls import REDUCTIONS, SWITCHES
from ampjax.frontend.deduction.lowering import MESSAGE_RULES
from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.values import Elements, Static
from ampjax.frontend.rules.sequence_rules import elements_space
from ampjax.testing.reference import reference


def kinds():
    """The combinators that models use, by name."""
    found = {}
    for module in pkgutil.iter_modules(combinators.__path__, f"{combinators.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Combinator):
                assert found.setdefault(value.name, value) is value, "two of one name"
    return found


def test_each_combinator_has_its_rules():
    of_nodes = {kind for kind in kinds().values() if not kind.inside_node}
    assert {*OF_MESSAGES} == {*of_nodes, REDUCTIONS, SWITCHES}
    assert {*OF_STEPS} == of_nodes - {LOOK_UP}


@pytest.fixture
def count_down():
    """A combinator of the test's own: how many elements come after each."""
    kind = Combinator("count_down", on_host="with operands", by_example=False)

    def left(xs):
        result = along(
            dimension_of("count_down", [xs]),
            ShapedArray((), jnp.int32),
        )
        return bind(
            Call(kind, [result], line=user_line()),
            [xs],
        )[0]

    @MESSAGE_RULES.of(kind)
    def to_messages(low, call, operands, region, wanted):
        space = elements_space(operands, call.line)

        def numbers(data):
            ends = np.repeat(space.lengths(data), space.lengths(data))
            return (ends - 1 - space.numbers(data)).astype(np.int32)

        return [Elements(space, Static(Column(space, numbers)))]

    @STEP_RULES.of(kind)
    def to_steps(body, call, operands):
        return to_messages(body.low.host, call, operands, body.region, None)

    yield left
    del OF_MESSAGES[kind]
    del OF_STEPS[kind]


def test_two_registered_rules_make_a_combinator(count_down):
    def model(params, example):
        xs = example["x"]
        return amp.sum(
            amp.map(
                lambda x, n: params["w"] * x * n,
                xs,
                count_down(xs),
            )
        )

    params = {"w": jnp.float32(2)}
    spec = {"x": "float32[n]"}
    instances = [{"x": np.arange(1, n + 1, dtype=np.float32)} for n in (3, 1, 4)]
    expected = []
    for one in instances:
        n = len(one["x"])
        expected.append(2 * np.dot(one["x"], np.arange(n)[::-1]))
    batched = amp.vmap(model, spec)
    np.testing.assert_allclose(batched(params, instances), expected)
    compiled = amp.compile(model, params, spec)
    told = reference(
        compiled.graph,
        compiled.node_params(params),
        compiled.data(instances),
        gradients=False,
    )
    np.testing.assert_allclose(told.loss, sum(expected))
