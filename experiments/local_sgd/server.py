"""The training as a graph in virtual time: a server node with the parameters, and a node on a worker of its own for each kind of device.

A visit is an instance. Forward, its worker waits until the grace time of its group is over, and the server sends its parameters; backward, which
takes the visit's time on the clock, the worker answers with its pseudo-gradient, by which the server's outer rule updates the parameters. So
staleness is what the engine counts for any node.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsWarning
from ampjax.ir.wires import Wire
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD, Dispatch
from experiments.data.clusters import N_FEATURES, Clusters
from experiments.local_sgd.inner_training import init, make_visit, rates
from experiments.local_sgd.visits import Visit, in_order_of_admission, plan_visits

BATCH = 32
"""Examples of an inner step."""

WORKERS = 4


@dataclass(frozen=True)
class LocalSgd:
    """The settings of a training.

    Args:
      hidden: Hidden units.
      inner_steps: Of a visit.
      phases: Visits of each part of the data, on average.
      decay: AdamW's weight decay.
      way: `synchronous`: an update from the mean of four pseudo-gradients, for which all wait. `asynchronous`: an update from each, times a
        half. `delayed`: each is added to a sum when it comes; an update from the mean of four.
      seed: Of parameters and order.
    """

    hidden: int = 65_000
    inner_steps: int = 20
    phases: int = 100
    decay: float = 1e-3
    way: str = "asynchronous"
    seed: int = 0

    @property
    def n_visits(self) -> int:
        """All visits."""
        return WORKERS * self.phases


def make_graph(settings: LocalSgd, outer: optax.GradientTransformation) -> ag.Graph:
    """The server and its workers.

    Args:
      settings: Of the training.
      outer: By what the server updates its parameters.
    """
    weight = WORKERS**-0.5 if settings.way == "asynchronous" else 1.0
    visit = make_visit(settings.hidden, settings.decay, weight)
    shape = (settings.inner_steps, BATCH)
    first = init(settings.seed, settings.hidden)
    with ag.Graph() as graph:
        begin = ag.pump("begin", (), fields=("worker",))
        inputs = (
            ag.pump("features", (*shape, N_FEATURES), fields=("worker",)),
            ag.pump("labels", shape, "int32", fields=("worker",)),
            ag.pump("rates", shape[:1], fields=("worker",)),
        )
        server = ag.ppt(
            "server",
            lambda params, one: params * one,
            params=first,
            tx=outer,
            worker=0,
        )
        ready = []
        for number, wire in enumerate(_by_worker(begin)):
            wait = ag.npt(f"wait {number}", lambda one: one, worker=1 + number)
            ready.append(wait(wire))
        sent = server(ag.phi("ready", *ready))
        routes = []
        for wire in (sent, *inputs):
            routes.append(_by_worker(wire))
        losses = []
        for number, of_worker in enumerate(zip(*routes, strict=True)):
            node = ag.npt(f"worker {number}", visit, worker=1 + number)
            losses.append(node(*of_worker))
        loss = ag.loss("first_batch", lambda value: value, worker=0)
        loss(ag.phi("done", *losses))
    return graph


def _by_worker(wire: Wire) -> tuple[Wire, ...]:
    """A wire for each worker."""
    return ag.cond(
        wire,
        lambda state: state.worker,
        WORKERS,
    )


class VisitData:
    """Visits as instances; batches are cut from the data on demand.

    Args:
      data: All examples; as many parts of them as workers.
      visits: The visits, in the order of admission.
      settings: Of the training.
    """

    def __init__(
        self,
        data: Clusters,
        visits: Sequence[Visit],
        settings: LocalSgd,
    ):
        rng = np.random.default_rng(settings.seed + 1)
        self._data = data
        self._visits = visits
        self._settings = settings
        self._total = settings.inner_steps * settings.phases
        order = rng.permutation(len(data))
        size = len(data) // WORKERS
        needed = self._total * BATCH
        self._order = []
        for shard in range(WORKERS):
            own = order[shard * size : (shard + 1) * size]
            turns = []
            for _ in range(1 + 2 * needed // size):
                turns.append(rng.permutation(own))
            self._order.append(np.concatenate(turns))
        self.sizes = np.ones(len(visits), int)

    def __len__(self) -> int:
        return len(self._visits)

    def batches(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features, labels and learning rates of a visit.

        Args:
          number: Of the visit.
        """
        visit = self._visits[number]
        steps = self._settings.inner_steps
        first = visit.first_step * BATCH
        chosen = self._order[visit.shard][first : first + steps * BATCH]
        return (
            self._data.features[chosen].reshape(steps, BATCH, -1),
            self._data.labels[chosen].reshape(steps, BATCH),
            rates(visit.first_step, steps, self._total),
        )

    def gather(self, ids: np.ndarray) -> dict[str, ag.Messages]:
        """The messages of some visits.

        Args:
          ids: `[n]`: which.
        """
        places = np.arange(len(ids))
        worker = np.array([self._visits[i].worker for i in ids])
        features, labels, steps = zip(*map(self.batches, ids), strict=True)
        payloads = {
            "features": np.stack(features),
            "labels": np.stack(labels),
            "rates": np.stack(steps),
            "begin": np.ones(len(ids), np.float32),
        }
        messages = {}
        for name, payload in payloads.items():
            messages[name] = ag.Messages(payload, places, {"worker": worker})
        return messages


class VisitTimes:
    """A cost model: the way back through a worker takes the time of its inner steps, its wait the rest of a grace time, all else nothing.

    Args:
      plan: The plan.
      visits: The visits, in the order of admission.
      waits: Whether workers wait, as they must unless the engine updates in rounds.
    """

    def __init__(
        self,
        plan: Plan,
        visits: Sequence[Visit],
        waits: bool,
    ):
        times = defaultdict(list)
        back = [0.0] * WORKERS
        for visit in visits:
            worker = visit.worker
            waiting = 0
            if waits:
                waiting = _nanoseconds(back[worker], visit.begin)
            times[f"wait {worker}", FORWARD].append(waiting)
            training = _nanoseconds(visit.begin, visit.back)
            times[f"worker {worker}", BACKWARD].append(training)
            back[worker] = visit.back
        self._next: dict[tuple[int, str], Iterator[int]] = {}
        for stage in plan.stages:
            for node in stage.nodes:
                for direction in (FORWARD, BACKWARD):
                    if (node.name, direction) in times:
                        own = iter(times[node.name, direction])
                        self._next[stage.number, direction] = own

    def __call__(self, dispatch: Dispatch) -> int:
        """Nanoseconds that a dispatch takes.

        Args:
          dispatch: The dispatch.
        """
        times = self._next.get((dispatch.stage, dispatch.direction))
        return 0 if times is None else next(times)


def _nanoseconds(begin: float, end: float) -> int:
    """The whole nanoseconds between two moments; sums are moments again."""
    return round(1e9 * end) - round(1e9 * begin)


class KeptParams(NamedTuple):
    """Parameters at some updates.

    Args:
      count: Updates so far.
      kept: `[n, p]`.
    """

    count: jax.Array
    kept: jax.Array


def keep_params(every: int, n: int) -> optax.GradientTransformation:
    """A transform that changes nothing, and keeps the parameters before the updates 0, `every`, 2 · `every` and so on.

    Args:
      every: Updates between two that are kept.
      n: The most that are kept.
    """

    def start(params: Any) -> KeptParams:
        kept = jnp.zeros((n, *params.shape), params.dtype)
        return KeptParams(jnp.int32(0), kept)

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
    ) -> tuple[Any, KeptParams]:
        is_due = state.count % every == 0
        place = jnp.where(is_due, state.count // every, n)
        kept = state.kept.at[place].set(params, mode="drop")
        return updates, KeptParams(state.count + 1, kept)

    return optax.GradientTransformation(start, update)


@dataclass(frozen=True)
class Outcome:
    """The results of a training.

    Args:
      params: Parameters after each so many visits, `[n, p]`, the first and the last ones too.
      visits: After how many visits, `[n]`.
      seconds: At the same moments, seconds on the clock, by the times of the visits.
      clock: Seconds on the engine's clock at the end.
      staleness: By staleness, how many pseudo-gradients had it.
    """

    params: list[np.ndarray]
    visits: list[int]
    seconds: list[float]
    clock: float
    staleness: Mapping[int, int]


def train(
    settings: LocalSgd,
    data: Clusters,
    outer: optax.GradientTransformation,
    grace: float = 0.5,
    moments: int = 10,
) -> Outcome:
    """Trains in virtual time.

    Args:
      settings: Of the training.
      data: All examples.
      outer: The outer rule.
      grace: Seconds for which the server waits for others, in asynchronous training.
      moments: At how many moments parameters are kept, beside the beginning: at equal distances.
    """
    is_synchronous = settings.way == "synchronous"
    n = settings.n_visits
    planned = plan_visits(
        n,
        settings.inner_steps,
        math.inf if is_synchronous else grace,
        settings.seed,
    )
    admitted = in_order_of_admission(planned)
    of_update = 1 if settings.way == "asynchronous" else WORKERS
    every = max(1, n // of_update // moments)
    places = range(0, n // of_update + 1, every)
    kept = optax.chain(keep_params(every, len(places)), outer)
    trainer = amp.Trainer(
        make_graph(settings, kept),
        mode="pipeline" if is_synchronous else "async",
        workers=1 + WORKERS,
        max_active_keys=WORKERS,
        min_update_interval=of_update,
        max_dispatch_size=1,
        policy="backward_first",
        fuse=False,
        devices=jax.local_devices()[:1],
        cost=lambda plan: VisitTimes(plan, admitted, not is_synchronous),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsWarning)  # parameters are kept by node
        trainer.accumulate(VisitData(data, admitted, settings))
    (state,) = trainer.opt_state.values()
    updates = int(state[0].count)
    params = []
    for place, update in enumerate(places):
        if update < updates:
            params.append(np.asarray(state[0].kept[place]))
        else:
            params.append(np.asarray(trainer.params["server"]))
    seconds = []
    for update in places:
        applied = planned[: update * of_update]
        seconds.append(applied[-1].back if applied else 0.0)
    histogram = trainer.statistics.nodes["server"].histogram
    return Outcome(
        params,
        [update * of_update for update in places],
        seconds,
        trainer.session.position.virtual_ns / 1e9,
        {int(age): int(histogram[age]) for age in np.flatnonzero(histogram)},
    )
