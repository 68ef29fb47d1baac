"""Random cases and random schedules, and one run of the one under the other: what the tests of the laws share.

A failing example prints a line of Python that does the same again, to be run in `tests/`. Where the clock decided what several workers did,
their decisions are kept in a file that the line names.
"""

import asyncio
import functools
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import numpy as np
import optax
from hypothesis import strategies as st
from support.effort import NIGHTLY
from support.engines import Told
from support.random_graphs.random_case import random_case

from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.replay_driver import Follower, ReplayDriver
from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.engine.executor import Executor
from ampjax.engine.memory.loss_metrics import loss_sum
from ampjax.ir.instances import InstanceList
from ampjax.numerics.differences import compare, difference_table
from ampjax.plan.affinity import assign, list_hosted
from ampjax.plan.passes import Pass
from ampjax.plan.planner import make_plan
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD
from ampjax.sched.decisions.parameter_changes import updates_in
from ampjax.sched.diagnose.deadlock import waiting
from ampjax.sched.diagnose.invariants import check
from ampjax.sched.scheduler import Scheduler
from ampjax.testing import reference
from ampjax.trace.journal import FAILED, Journal
from ampjax.trace.recording import Recorder, Recording
from ampjax.train.assemble import optimizers, scheduler_settings
from ampjax.train.initial_params import initial_params
from ampjax.train.settings import Settings

NEVER = 1 << 60
"""An interval that no run reaches: parameters are frozen, gradients stay in the accumulators."""

if NIGHTLY:
    SIZES = (1, 2, 3, 4, 7, 16)
else:
    SIZES = (1, 3, 4)
"""Of dispatches that run kernels: padded sizes are powers of two, and each is a compilation. An ordinary run compiles the smallest."""

GRAPHS = st.integers(0, 400 if NIGHTLY else 40)
"""Seeds of random graphs for laws of control alone, which compile no kernels. An ordinary run builds a tenth of them, and its laws share them."""

if NIGHTLY:
    GRAPHS_THAT_SHARE = st.integers(-100, 400)
else:
    GRAPHS_THAT_SHARE = st.integers(-10, 40)
"""The same, with graphs whose nodes share parameters."""

ROWS = 4096
"""Rows of every arena: kernels are compiled per shape, so one size serves all cases."""


@dataclass(frozen=True)
class Scattered:
    """An affinity rule: every node on any worker, from a seed."""

    seed: int

    def __call__(self, graph, workers):
        rng = np.random.default_rng(self.seed)
        nodes = list_hosted(graph)
        drawn = {}
        for node in nodes:
            drawn[node.name] = int(rng.integers(workers))
        return {node.name: drawn[node.params_name] for node in nodes}


@dataclass(frozen=True)
class Costs:
    """A cost model: any whole number of nanoseconds below `most`, from a seed and the dispatch's number."""

    seed: int
    most: int = 100

    def __call__(self, dispatch):
        return int(np.random.default_rng((self.seed, dispatch.number)).integers(self.most))


@dataclass(frozen=True)
class Schedule:
    """How a case is run.

    Args:
      settings: As for a trainer.
      devices: Devices that the workers share, in turn.
      costs: Runs in virtual time with these costs; None runs under asyncio.
      recording: A file of decisions that is followed in place of a clock.
    """

    settings: Settings = field(default_factory=lambda: frozen())
    devices: int = 1
    costs: Costs | None = None
    recording: str | None = None

    def __repr__(self):
        given = ", ".join(
            f"{name}={value!r}"
            for name, value in vars(self.settings).items()
            if value != getattr(_DEFAULTS, name) and name not in ("arena_rows", "check")
        )
        recording = f", {self.recording!r}" if self.recording else ""
        return f"Schedule(frozen({given}), {self.devices}, {self.costs}{recording})"


def frozen(**options):
    """Settings that never update, check every invariant after every event, and have arenas of one size."""
    return Settings(
        **{"min_update_interval": NEVER, "fuse": False, "arena_rows": ROWS, "check": True} | options
    )


_DEFAULTS = frozen()


@functools.cache
def random_one(seed, dtype="float32"):
    """A random case, made once. Small and large graphs take turns; in those of negative seeds nodes share parameters."""
    return random_case(
        abs(seed),
        size=3 + seed % 6,
        dtype=dtype,
        sharing=seed < 0,
    )


@functools.cache
def start(seed, dtype="float32"):
    """Its parameters."""
    return initial_params(random_one(seed, dtype).graph, {}, abs(seed))


@functools.cache
def wanted(seed, dtype="float32"):
    """What the oracle says of it: in float64 and operation by operation, so that it shares neither rounding nor fusions with the engine."""
    case = random_one(seed, dtype)
    return reference(
        case.graph,
        start(seed, dtype),
        case.instances,
        oracle="eager",
    )


FROZEN = optax.sgd(0.0)


class Engine:
    """A scheduler and an executor for a graph, as a trainer would have them.

    Args:
      graph: The graph.
      params: All its parameters; None runs the control plane alone, without payloads.
      schedule: How it is run.
      tx: The optimizer of every node.
    """

    def __init__(self, graph, params, schedule, tx=FROZEN):
        s = schedule.settings
        self.graph = graph
        self.schedule = schedule
        spaces = [w % schedule.devices for w in range(s.workers)]
        self.plan = make_plan(
            graph,
            assign(graph, s.workers, s.affinity, s.seed),
            spaces,
            s.fuse,
        )
        control = replace(scheduler_settings(graph, s, tx), capacity=s.arena_rows)
        self.scheduler = Scheduler(self.plan, control, s.check)
        self.executor = None
        if params is not None:
            trained = optimizers(graph, s, tx)
            devices = jax.devices()[: schedule.devices]
            self.executor = Executor(
                self.plan, params, trained.training, devices, control.stashed, trained.groups
            )
        self.dispatches = []
        self.arrived = []
        self.watchers = []
        self.instruments = []
        messages_of = self.scheduler.contents.messages_of
        if schedule.recording:
            self._follower = Follower(Recording(schedule.recording), messages_of)
        else:
            self._follower = None
        decisions = _DECISIONS.get()
        decisions.clear()
        self.journal = (
            Journal(decisions.append, messages_of)
            if self._follower is None
            else self._follower.journal
        )

    def run(self, data, train=True, also=()):
        """Runs instances; `also` are further `(data, train)` that are in flight at the same time. Keeps the dispatches."""
        seeds = RowSeeds(self.schedule.settings.seed)
        passes = []
        for each, is_train in ((data, train), *also):
            passes.append(
                Pass(
                    self._instances(each),
                    np.arange(len(each)),
                    "train" if is_train else "both",
                    seeds=seeds,
                )
            )
        sources = [InstanceSource(self.scheduler, of) for of in passes]
        loop = DriverLoop(
            self.scheduler,
            self.executor,
            sources,
            [
                Told(self.scheduler, self._note),
                self.journal,
                *self.instruments,
            ],
        )
        self.journal.begins(passes[0])
        if self._follower is not None:
            asyncio.run(ReplayDriver(loop, self._follower).run())
        elif self.schedule.costs is None:
            asyncio.run(AsyncioDriver(loop, self.schedule.settings.run_ahead).run())
        else:
            VirtualDriver(loop, self.schedule.costs).run()
        self.journal.ends(None)
        self.arrived += loop.queue.outputs
        return self

    def _note(self, dispatch):
        self.dispatches.append(dispatch)
        for watcher in self.watchers:
            watcher(dispatch)

    def _instances(self, data):
        ragged = []
        for name, node in self.graph.pumps.items():
            if node.op.type.ragged:
                ragged.append(name)
        return data if hasattr(data, "gather") else InstanceList(data, ragged)

    def updates(self):
        """All updates so far, in order."""
        result = []
        for d in self.dispatches:
            for change in d.changes:
                for update in updates_in(change):
                    result.append(update)
        return result

    @property
    def loss(self):
        """The summed loss of the training rows since it was last asked for."""
        return loss_sum(self.executor.losses.take(True))

    @property
    def gradients(self):
        """Summed gradients by node."""
        return jax.tree.map(np.asarray, self.executor.store.accumulators)

    @property
    def gradient_rows(self):
        """Gradient rows by node."""
        return dict(self.scheduler.updates.counts)

    @property
    def params(self):
        """Parameters by node, as NumPy arrays."""
        return jax.tree.map(np.array, self.executor.store.params)


def schedule_of(engine):
    """Every dispatch in words, with the messages in it, in order."""
    return [f"{d!r} {d.states.tolist()} {d.in_rows} {d.out_rows}" for d in engine.dispatches]


def gives_gradients(dispatch):
    """Whether it adds to its nodes' accumulators: an adjoint, or a loss, which has its adjoint in it."""
    at_loss = (
        dispatch.stage is not None
        and dispatch.stage.kind.starts_backward
        and dispatch.direction == FORWARD
    )
    return dispatch.direction == BACKWARD or at_loss


def rows_at(engine):
    """Gradient rows by node, counted from the dispatches that make them."""
    rows = Counter()
    for d in engine.dispatches:
        if gives_gradients(d):
            for node in d.stage.parameterised:
                rows[node.params_name] += d.n_rows
    return rows


def updated(engine):
    """Gradient rows by node that went into updates."""
    rows = Counter()
    for update in engine.updates():
        rows[update.node] += update.count
    return rows


def assert_parity(seed, schedule, dtype="float32", tolerance=1e-5):
    """Law 2 for one case under one schedule: loss, every gradient, gradient rows. Returns the engine, run."""
    case = random_one(seed, dtype)
    want = wanted(seed, dtype)
    with replayed("assert_parity", seed, schedule, dtype):
        engine = Engine(
            case.graph,
            start(seed, dtype),
            schedule,
        ).run(case.instances)
        assert_gradients(engine, want, tolerance)
    return engine


def assert_gradients(engine, want, tolerance=1e-5):
    """The engine's loss, gradients and gradient rows are the oracle's."""
    loss = engine.loss
    differences = [("loss", "", abs(loss - want.loss) / (abs(want.loss) or 1))]
    differences += compare(engine.gradients, want.grads)
    assert max(value for *_, value in differences) <= tolerance, difference_table(
        differences, tolerance
    )
    assert engine.gradient_rows == want.rows


def assert_empty(engine):
    """Law 1: nothing is left in flight, in a queue, join or group, or in a slot."""
    scheduler = engine.scheduler
    check(scheduler.snapshot())
    assert scheduler.idle and not scheduler.can_move()
    assert waiting(scheduler.snapshot()) == []
    assert scheduler.tables.slots_in_use == 0


def run_python(code, **environment):
    """What a Python process prints, with `support` to import."""
    path = os.pathsep.join(
        [
            str(Path(__file__).parents[1]),
            *filter(
                None,
                sys.path,
            ),
        ]
    )
    variables = os.environ | {"PYTHONPATH": path} | environment
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-6000:]
    return run.stdout


_DECISIONS = ContextVar("decisions", default=[])  # noqa: B039 (the default is for engines whose decisions nobody asks for)


@contextmanager
def replayed(function, *arguments):
    """Adds to any error the line of Python that does it again."""
    decisions = []
    token = _DECISIONS.set(decisions)
    try:
        yield
    except Exception as error:
        again = []
        for a in arguments:
            again.append(_recorded(a, decisions) if isinstance(a, Schedule) else a)
        error.add_note(
            f"replay: from support.laws import *; {function}({', '.join(map(repr, again))})"
        )
        raise
    finally:
        _DECISIONS.reset(token)


def _recorded(schedule, decisions):
    """The schedule; with the decisions in a file, where several workers and the clock made them."""
    if (
        schedule.costs is not None
        or schedule.recording
        or schedule.settings.workers == 1
        or not decisions
    ):
        return schedule
    file = str(Path(tempfile.mkdtemp(prefix="ampjax-")) / "run.trace")
    recorder = Recorder(file, {})
    for decision in decisions:
        recorder.take(decision)
    recorder.close(FAILED)
    return replace(schedule, recording=file)


@st.composite
def schedules(
    draw,
    sizes=(1, 2, 3, 4, 7, 16),
    rich=False,
    **options,
):
    """Any schedule; `options` are fixed settings.

    Args:
      draw: Hypothesis's.
      sizes: Of dispatches; padded sizes are powers of two, and each is a compilation.
      rich: Also fused stages and workers with a device each: these have kernels of their own, so they are for few graphs.
      **options: Fixed settings.
    """
    workers = draw(st.integers(1, 3))
    affinity = draw(
        st.sampled_from(["default", "paper", "coloured"]) | st.builds(Scattered, st.integers(0, 99))
    )
    keys = options.get("max_active_keys") or draw(st.integers(1, 7))
    settings = frozen(
        max_active_keys=keys,
        min_admission=draw(st.integers(1, keys)),
        max_dispatch_size=draw(st.sampled_from((*sizes, 64) if rich else sizes)),
        workers=workers,
        policy=draw(st.sampled_from(["balanced", "backward_first", "largest", "wavefront"])),
        affinity=affinity if workers > 1 else "default",
        fuse=rich and draw(st.booleans()),
    )
    costs = draw(st.none() | st.builds(Costs, st.integers(0, 99), st.sampled_from([1, 2, 100])))
    if rich:
        devices = draw(st.sampled_from([1, workers]))
    else:
        devices = 1
    return Schedule(replace(settings, **options), devices, costs)


@st.composite
def cases(draw, graphs, rich=0, **options):
    """`(seed, schedule)`: one of the first `graphs` random graphs, of which the first `rich` get every kind of schedule."""
    seed = draw(st.integers(0, graphs - 1))
    return seed, draw(schedules(rich=seed < rich, **options))


def run_control(seed, schedule):
    """A case under a schedule without payloads: what a failing test of the control plane replays."""
    return Engine(
        random_one(seed).graph,
        None,
        schedule,
    ).run(random_one(seed).instances)
