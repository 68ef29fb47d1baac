"""Verification looks at training and at inference; what a graph or a schedule says of updates does not matter to it."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from support import graphs
from support.effort import left_to_nightly
from support.laws import ROWS, random_one, start

import ampjax.graphs as ag
from ampjax.engine.kernels import loss_kernels, rows
from ampjax.testing.engine_run import outputs_apart
from ampjax.testing.verify import SCHEDULES, verify
from ampjax.train.predictions import Predictions
from ampjax.train.settings import Settings

pytestmark = pytest.mark.slow

SINGLE = Settings(max_dispatch_size=1, fuse=False, arena_rows=ROWS)
FULL = Settings(arena_rows=ROWS)


def data(n=3):
    result = []
    for i in range(n):
        result.append(
            {
                "x": np.array([i, 1 - i], np.float32),
                "label": np.float32(0.5),
            }
        )
    return result


@pytest.mark.parametrize(
    ("interval", "schedules"),
    [
        (1, SCHEDULES[1:2]),
        (None, [Settings()]),
        (None, [Settings(mode="sync")]),
    ],
    ids=["a node's own interval", "updates after every row", "the controller's updates"],
)
def test_nothing_updates_while_gradients_are_compared(interval, schedules):
    found = verify(
        graphs.chain(1, min_update_interval=interval),
        graphs.chain_data(3),
        schedules=schedules,
    )
    assert found, found


@pytest.mark.nightly
@pytest.mark.parametrize(
    "seed",
    [1, *left_to_nightly((4, 7, 11))],
)
def test_random_graphs_agree_in_inference_too(seed):
    """Loops, groups, ragged rows, replicas, edges: sinks with their states, and metrics."""
    case = random_one(seed)
    found = verify(
        case.graph,
        case.instances,
        params=start(seed),
        schedules=[dataclasses.replace(SINGLE, max_dispatch_size=4)],
    )
    assert found, found


# What a broken engine looks like.


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A program whose float results are a thousandth too large."""

    right: object

    def __call__(self, *arguments):
        return self._more(self.right(*arguments))

    def _more(self, out):
        if isinstance(out, tuple):
            return tuple(map(self._more, out))
        return 1.001 * out if getattr(out, "dtype", None) == jnp.float32 else out

    def __getattr__(self, name):
        return getattr(self.right, name)


def break_inference(monkeypatch, kernels, name):
    """Inference kernels, of rows or of losses, that compute something else than those of training."""
    real = getattr(kernels, name)
    monkeypatch.setattr(
        kernels,
        name,
        lambda program, wiring: real(Wrong(program), wiring),
    )


@pytest.mark.users
@pytest.mark.parametrize(
    "schedule",
    [SINGLE, FULL],
    ids=["single", "full"],
)
@pytest.mark.parametrize(
    ("kernels", "broken", "told"),
    [(rows, "forward", "predict   `see y` "), (loss_kernels, "infer", "evaluate  loss ")],
    ids=["rows", "losses"],
)
def test_a_mistake_of_inference_alone_is_found(monkeypatch, kernels, broken, told, schedule):
    assert verify(graphs.with_sinks(), data(), schedules=[schedule])
    break_inference(monkeypatch, kernels, broken)
    found = verify(graphs.with_sinks(), data(), schedules=[schedule])
    assert not found and found.worst > 5e-4, found
    marked = [line for line in found.report.splitlines() if "> 1e-05" in line]
    assert any(line.startswith(told) for line in marked), found
    assert not [line for line in marked if not line.startswith(("predict", "evaluate"))], (
        found
    )  # training is right


def test_what_is_not_finite_never_agrees():
    with ag.Graph() as g:
        ag.loss(
            "loss",
            lambda x: jnp.log(x),
        )(ag.pump("x"))
    assert not verify(
        g,
        [{"x": np.float32(-1)}],
        quick=True,
    )


# The report.


@pytest.mark.nightly
def test_the_report_says_what_was_compared_and_what_was_not():
    found = verify(graphs.with_sinks(), data(), schedules=[SINGLE])
    lines = found.report.splitlines()
    assert lines[0].startswith(
        "The engine agrees with jax.grad, evaluated operation by operation in float64: largest difference "
    )
    assert "loss, gradient norm and 4 gradients, at most" in lines[1]
    assert "`evaluate`: loss, at most" in lines[1] and "`predict`: 3 sinks, at most" in lines[1]
    assert [line.strip() for line in lines[3:]] == list(found.not_looked_at)
    for part in (
        "optimizers",
        "dispatches of more than 1 row",
        "controllers",
        "parameters of the forward pass",
        "metrics: no loss",
    ):
        assert any(part in line for line in found.not_looked_at), part


def test_what_was_not_looked_at_depends_on_the_graph():
    def noisy(x, key=None):
        return x

    with ag.Graph() as g:
        ag.loss(
            "loss",
            lambda x: x * x,
        )(ag.npt("noise", noisy, rng=True)(ag.pump("x")))
    found = verify(
        g,
        [{"x": np.float32(1)}],
        schedules=[Settings(weights="stashed")],
        oracle="jit",
    )
    assert found, found
    unseen = "\n".join(found.not_looked_at)
    assert "random numbers of `noise`" in unseen and "the graph has no sink" in unseen
    assert "its bodies were compiled, too" in unseen and "stashed" not in unseen


def test_quick_tries_one_schedule():
    found = verify(
        graphs.chain(1),
        graphs.chain_data(2),
        quick=True,
    )
    assert found
    assert sum("max_active_keys" in line for line in found.report.splitlines()) == 1


# The measure of a sink.


def predictions(rows, t=(0, 1)):
    return Predictions(
        np.asarray(rows, np.float32),
        np.array([0, 0]),
        {"t": np.array(t)},
    )


@functools.cache
def wanted():
    return [
        (
            {"t": 1, "instance": 0},
            np.array([4.0, np.inf]),
        ),
        (
            {"t": 0, "instance": 0},
            np.array([1.0, np.nan]),
        ),
    ]


@pytest.mark.parametrize(
    ("got", "apart"),
    [
        (predictions([[1, np.nan], [4, np.inf]]), 0),
        (predictions([[1, np.nan], [5, np.inf]]), 0.25),
        (
            predictions(
                [[1, np.nan], [4, np.inf]],
                t=(0, 2),
            ),
            np.inf,
        ),
        (predictions([[1, 2], [4, np.inf]]), np.inf),
        (predictions([[np.nan, np.nan], [4, np.inf]]), np.inf),
        (predictions([[1], [4]]), np.inf),
        (
            Predictions(
                np.ones((1, 2)),
                np.array([0]),
                {"t": np.array([0])},
            ),
            np.inf,
        ),
    ],
    ids=[
        "equal",
        "a value",
        "a state",
        "not a number in the reference",
        "not a number",
        "shapes",
        "a message missing",
    ],
)
def test_how_far_the_rows_of_a_sink_are_apart(got, apart):
    assert outputs_apart(got, wanted()) == apart


def test_an_empty_sink():
    nothing = Predictions(
        np.zeros((0, 2)),
        np.zeros(0, int),
        {"t": np.zeros(0, int)},
    )
    assert outputs_apart(nothing, []) == 0
    assert outputs_apart(nothing, wanted()) == np.inf


def test_a_difference_that_random_numbers_explain_is_told_first():
    def noisy(x, key=None):
        return x if key is None else x + 1

    with ag.Graph() as g:
        ag.loss(
            "loss",
            lambda x: x * x,
        )(ag.npt("noise", noisy, rng=True)(ag.pump("x")))
    found = verify(
        g,
        [{"x": np.float32(1)}],
        quick=True,
        oracle="jit",
    )
    first = found.report.splitlines()[0]
    assert not found and first.endswith(
        "Random numbers of `noise` are drawn by the engine alone: to compare, leave them out, such as with a dropout rate of 0."
    )
