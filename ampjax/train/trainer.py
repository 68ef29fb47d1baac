"""The trainer: fit, evaluate and predict with one graph, in scripts and where an event loop already runs."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from ampjax.devices.allreduce import Device
from ampjax.devices.memory_budget import payload_budget
from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.controller import Loop as ControllerLoop
from ampjax.drivers.controller import LoopInstances, source_of
from ampjax.drivers.cost import Cost
from ampjax.drivers.issue_queue import abandon
from ampjax.drivers.replay_driver import Follower, RecordingEnds, ReplayDriver
from ampjax.drivers.run import Loop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.engine.compilation import compilations
from ampjax.engine.loss_metrics import loss_sum, metrics_of
from ampjax.errors import GraphError, ParameterError, SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances
from ampjax.numerics.check import warn_of_wrong_numbers
from ampjax.plan.passes import Pass
from ampjax.plan.planner import Plan
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.diagnose.deadlock import report
from ampjax.sched.diagnose.statistics import Statistics
from ampjax.sched.diagnose.story import story
from ampjax.sched.scheduler import Scheduler
from ampjax.trace.instruments import Ended
from ampjax.trace.journal import FAILED, FINISHED, INTERRUPTED, Journal
from ampjax.trace.recording import Recorder, Recording
from ampjax.trace.trace import Trace
from ampjax.train import checkpoint, divergence
from ampjax.train.assemble import (
    as_instances,
    make_executor,
    plan_for,
    ragged_pumps,
    require_closed,
    require_sequence,
    require_transform,
    scheduler_settings,
)
from ampjax.train.grouping import Orders
from ampjax.train.history import Epoch, History
from ampjax.train.initial_params import check_like
from ampjax.train.predictions import Outputs, Predictions, gather_predictions
from ampjax.train.preparation import AnyInstances, Preparation
from ampjax.train.provenance import differences, provenance, require_same
from ampjax.train.settings import Settings, settings_from
from ampjax.utils.blocking import blocking
from ampjax.utils.compilation_cache import use_compilation_cache
from ampjax.utils.patience import patiently
from ampjax.utils.progress import SILENT, Reporter
from ampjax.utils.text_tables import html_table
from ampjax.utils.turns import Turns

Data = Instances | Sequence[Any]
Callback = Callable[["Trainer", Epoch], Any]
"""Called after each epoch; a true result ends the training."""


class Trainer:
    """Trains a graph (AMPNet §3, §5).

    Args:
      graph: A closed graph.
      tx: The optax transform of every parameterised node that has none of its own.
      params: Parameters by node name; nodes that are left out are initialised from the seed.
      controller: A user-written controller loop: a generator function from an example to the messages that are pumped for it.
      devices: The devices of the workers, in turn; by default `jax.devices()`.
      cost: Makes a cost model from the plan, as for `simulate`: training then goes on in the virtual time of that machine, whose schedule,
        rates and seconds the history tells; the numbers are computed here all the same.
      settings: All other settings as one object, or (not both)
      **options: the settings one by one: see `Settings`.

    Attributes:
      left_over: What was in flight when a run was last interrupted, a line each: who waited, the throttle, the queues, and the story of
        the oldest instance. A loop that never ends is no standstill: interrupt it, and read here where that instance goes round.

    Raises:
      GraphError: If the graph is not closed.
      SettingsError: If a setting is outside what it can be.
      ParameterError: If parameters do not fit the graph, or hold values that are not finite.

    Warns:
      NumericsWarning: Once in a process, if its kernels compute wrong numbers (see `amp.check_numerics`).
    """

    def __init__(
        self,
        graph: Graph,
        tx: optax.GradientTransformation | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        controller: ControllerLoop | None = None,
        devices: Sequence[Device] | None = None,
        cost: Callable[[Plan], Cost] | None = None,
        settings: Settings | None = None,
        **options: Any,
    ):
        require_closed("trainer", graph)
        require_transform(tx)
        self.graph, self.settings, self._controller = graph, settings_from(options, settings), controller
        s = self.settings
        use_compilation_cache()
        available = list(devices) if devices is not None else jax.devices()
        used = available[: min(s.workers, len(available))]
        warn_of_wrong_numbers("Trainer", used)
        self.plan = plan_for(graph, s, tx, [w % len(used) for w in range(s.workers)])
        self._executor = make_executor(self.plan, s, tx, params or {}, used)
        self._scheduler = Scheduler(self.plan, scheduler_settings(graph, s), s.check)
        budget = payload_budget(used) if s.memory_limit is None else s.memory_limit
        self._orders = Orders(s.group_by_size)
        self._preparation = Preparation(self.plan, s, self._scheduler, self._executor, self._orders, budget)
        self._turns = Turns("trainer")
        self._cost = None if cost is None else cost(self.plan)
        self._statistics: dict[bool, Statistics] = {}  # by whether it was training
        self._counted: tuple[bool, str] | None = None  # of the latest run: whether it trains, its name
        self._virtual_ns = self._epochs = 0
        self._rng = np.random.default_rng(s.seed)
        self.left_over: list[str] = []
        self._journal: Journal | None = None
        self._follower: Follower | None = None
        compilations()

    # -- parameters

    @property
    def params(self) -> dict[str, Any]:
        """Parameters by node name: a copy, as NumPy arrays."""
        return {node: jax.tree.map(lambda x: np.array(x), tree) for node, tree in self._executor.store.params.items()}

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Replaces the parameters of some nodes; optimizer states stay.

        Raises:
          ParameterError: If a node is unknown, or a tree does not fit or holds values that are not finite. Nothing is changed then.
        """
        checked = {node: check_like(node, self._known(node), value) for node, value in params.items()}
        for node, value in checked.items():
            self._executor.store.set_params(node, value)

    def save(self, folder: str | Path) -> None:
        """Writes everything that training goes on from: parameters, optimizer states, gradients that wait for an update, random numbers, epochs.

        A callback may call it after each epoch. `restore` into a trainer of the same graph and settings, and the next `fit` gives what it would have
        given here; a data set that is reshuffled starts from what is passed to that `fit`.

        Args:
          folder: Where to; a checkpoint that is there is replaced, in one go.

        Raises:
          SettingsError: If the folder is no path.
          DataError: If the folder holds anything else, or is the one in which the program runs.
        """
        standing = checkpoint.Standing(self._epochs, self._virtual_ns)
        checkpoint.save(folder, self._executor.store, self._scheduler.updates, self._rng, standing)

    def restore(self, folder: str | Path) -> None:
        """Goes on from what `save` wrote.

        Args:
          folder: What `save` wrote.

        Raises:
          SettingsError: If the folder is no path. Nothing is changed then.
          DataError: If it is of another graph or other optimizers. Nothing is changed then.
          TableError: If files are missing, cut off or altered. Nothing is changed then.
        """
        standing = checkpoint.restore(folder, self._executor.store, self._scheduler.updates, self._rng)
        self._epochs, self._virtual_ns = standing.epochs, standing.virtual_ns

    @property
    def gradients(self) -> dict[str, tuple[Any, int]]:
        """What each node has accumulated since its last update: the sum of its gradient rows, and their number."""
        counts = self._scheduler.updates.counts
        return {
            node: (jax.tree.map(np.asarray, tree), counts[node])
            for node, tree in self._executor.store.accumulators.items()
        }

    @property
    def statistics(self) -> Statistics:
        """Counts of the last training run, whatever was validated, evaluated or predicted since; of the last run if nothing has been trained. `run` names it."""
        self._keep_statistics()
        return self._statistics.get(True) or self._statistics.get(False) or self._scheduler.stats

    @property
    def inference_statistics(self) -> Statistics:
        """Counts of the last run without training: a validation, an evaluation or a prediction."""
        self._keep_statistics()
        return self._statistics.get(False) or Statistics()

    def _keep_statistics(self) -> None:
        """Keeps what has been counted of the latest run so far."""
        if self._counted is not None:
            train, run = self._counted
            self._statistics[train] = replace(self._scheduler.stats, run=run)

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on devices: `arenas` (adjoints included), `records` beside them (activations that adjoints need), `params`, `opt_state` and gradient `accumulators`."""
        return self._executor.device_bytes

    def story(self, instance: int, **fields: int) -> list[str]:
        """What happened lately to an instance's messages."""
        return story(self._scheduler.snapshot(), instance, fields)

    # -- runs

    def most_kernels(self, data: Data) -> int:
        """How many kernels `accumulate`, `evaluate` and `predict` can need for some instances, at most.

        Raises:
          SettingsError: If there is no instance.
          MessageError: If a message, payload or state function of those that are looked at does not fit.
        """
        return self._preparation.most_kernels(self._data(data))

    def warm_up(self, train: Data, valid: Data | None = None, *, progress: bool = True) -> None:
        """Compiles all that `fit` on these data will need, before its first epoch. No parameter changes.

        Without it `fit` compiles a kernel when it is first needed, so its first epoch takes longer, and the rest before the second epoch
        (with `compile_ahead=True` all of them before the first).

        Args:
          train: Training instances.
          valid: Validation instances.
          progress: Whether to show progress.

        Raises:
          SettingsError: If there is no instance.
          MessageError: If a message, payload or state function of those that are looked at does not fit.
        """
        with Reporter(progress) as reporter:
            blocking(self._warm_up(*self._both(train, valid), reporter))

    def fit(self, train: Data, valid: Data | None = None, **options: Any) -> History:
        """Trains; see `fit_async`. Works also where an event loop runs, as in a notebook."""
        return blocking(self.fit_async(train, valid, **options))

    async def fit_async(
        self,
        train: Data,
        valid: Data | None = None,
        *,
        epochs: int = 1,
        callbacks: Iterable[Callback] = (),
        progress: bool = True,
        label: Mapping[str, Any] | None = None,
        history: History | None = None,
        trace: Trace | None = None,
        record: str | Path | None = None,
    ) -> History:
        """Trains for some epochs and validates after each. What else is asked of the trainer meanwhile, as `predict_async` beside it, waits until an epoch has ended.

        Args:
          train: Training instances; a data set with a method `reshuffle(rng)` is reshuffled for each epoch. With a controller
            loop: a sequence of examples.
          valid: Validation instances.
          epochs: How many epochs.
          callbacks: Called with the trainer and each epoch's record; a true result ends the training.
          progress: Whether to show progress.
          label: What to put into each record, for example `{"experiment": "mnist"}`.
          history: A history to go on with.
          trace: Where each worker's time goes in training (not in validation).
          record: A file for all that is decided, about 40 bytes a dispatch, from which `amp.replay` repeats this run bit for bit.

        Returns:
          The history; cut short, with `interrupted` set, if Ctrl-C (or a cancellation) came.

        Raises:
          SettingsError: If there is no training instance, or `epochs` < 1.
          OSError: If the recording can't be written.
          DeadlockError: If instances are in flight and nothing can move.
          LimitError: If a single instance can't fit within the memory limit.
          MessageError: If a message, payload or state function does not fit.
        """
        if epochs < 1:
            raise SettingsError("fit, `epochs`", "at least 1", f"{epochs}", "Train for one epoch or more.")
        history = history if history is not None else History(settings=dict(label or {}))
        with self._recorded(record, epochs, history):
            await self._fit(train, valid, history, epochs, callbacks, progress, trace)
        return history

    def replay(self, path: str | Path, train: Data, valid: Data | None = None, **options: Any) -> History:
        """Runs a recorded `fit` again; see `amp.replay`. The trainer must be as the recorded one was."""
        return blocking(self.replay_async(path, train, valid, **options))

    async def replay_async(
        self,
        path: str | Path,
        train: Data,
        valid: Data | None = None,
        *,
        partial: bool = False,
        callbacks: Iterable[Callback] = (),
        progress: bool = True,
    ) -> History:
        """Runs a recorded `fit` again; see `amp.replay`, also for what is raised."""
        recording, now = Recording(path, partial), self._provenance()
        require_same(recording.path, recording.header, now)
        self._follower = Follower(recording, self._scheduler.messages_of, differences(recording.header, now))
        self._journal = self._follower.journal
        history = History()
        try:
            await self._fit(train, valid, history, recording.header["epochs"], callbacks, progress)
        finally:
            self._follower = self._journal = None
        return history

    async def _fit(
        self,
        train: Data,
        valid: Data | None,
        history: History,
        epochs: int,
        callbacks: Iterable[Callback],
        progress: bool,
        trace: Trace | None = None,
    ) -> None:
        """Trains, and adds an epoch's record after each; a replay ends with its recording."""
        history.interrupted = False
        callbacks, warned = list(callbacks), False
        with Reporter(progress) as reporter:
            try:
                data, held_out = self._both(train, valid)
                async with self._turn():
                    await self._preparation.prepare(data, held_out, reporter, ahead=self.settings.compile_ahead)
                for _ in range(epochs):
                    if self._follower is not None and self._follower.over:
                        self._follower.require_end()
                        break
                    data = data.reshuffle(self._rng) if hasattr(data, "reshuffle") else data  # type: ignore[attr-defined]
                    spent = history.epochs[-1].seconds if history.epochs else 0.0
                    async with self._turn():
                        if self._epochs:
                            await self._preparation.finish(reporter)
                        with self._preparation.while_needed(reporter):
                            epoch = await self._epoch(data, held_out, reporter, spent, trace)
                    history.epochs.append(epoch)
                    reporter.line(epoch.line())
                    warned = warned or divergence.warn_of(
                        epoch.train.get("loss", 0.0), f"epoch {epoch.epoch}", self._executor.store.params, data
                    )
                    if any([callback(self, epoch) for callback in callbacks]):
                        break
                else:
                    if self._follower is not None:
                        self._follower.require_end()
            except (KeyboardInterrupt, asyncio.CancelledError, RecordingEnds):
                history.interrupted = True

    def evaluate(self, data: Data, *, progress: bool = False) -> dict[str, float]:
        """The metrics over some instances; see `evaluate_async`."""
        return blocking(self.evaluate_async(data, progress=progress))

    async def evaluate_async(self, data: Data, *, progress: bool = False) -> dict[str, float]:
        """The mean loss and the metrics over some instances, with the parameters as they are; nothing is trained.

        Raises:
          SettingsError: If there is no instance.
          Exception: As `fit_async`.
        """
        instances = self._data(data)
        with Reporter(progress) as reporter:
            async with self._turn():
                await self._infer(instances, "losses", reporter, "evaluate")
                return metrics_of(self._executor.losses.take(False))

    def predict(self, data: Data, *, progress: bool = False) -> dict[str, Predictions]:
        """What arrives at the sinks; see `predict_async`."""
        return blocking(self.predict_async(data, progress=progress))

    async def predict_async(self, data: Data, *, progress: bool = False) -> dict[str, Predictions]:
        """What arrives at each sink, by its name, in the order of instances and states. Losses are left out: no label is needed.

        Raises:
          GraphError: If the graph has no sink.
          Exception: As `fit_async`.
        """
        sinks = {node.role: node for node in self.graph.nodes.values() if node.kind == "Sink"}
        if not sinks:
            raise GraphError(
                "predict",
                "a sink in the graph",
                "none",
                "End the wire that you want to see with `amp.sink(name, wire)`.",
            )
        instances = self._data(data)
        with Reporter(progress) as reporter:
            async with self._turn():
                outputs = await self._infer(instances, "sinks", reporter, "predict")
        return gather_predictions(self.plan, outputs, sinks)

    def accumulate(self, data: Data, *, update: bool = True, trace: Trace | None = None) -> dict[str, float]:
        """Runs training instances forward and backward once, in order; nodes update as the settings say.

        Returns the metrics, and `loss_sum`: the summed loss of all rows, which the gradients are gradients of.

        Args:
          data: The instances.
          update: False changes no parameter, whatever the settings say: `gradients` has what came of all instances.
          trace: Where each worker's time goes.
        """
        return blocking(self._accumulate(self._data(data), update, trace))

    # -- parts

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Waits for other runs of this trainer to end, since all share its scheduler; an interrupt leaves nothing in flight for the next one."""
        async with self._turns.turn():
            try:
                yield
            except (KeyboardInterrupt, asyncio.CancelledError, RecordingEnds):
                abandon(self._scheduler, self._executor)
                raise

    async def _warm_up(self, train: AnyInstances, valid: AnyInstances | None, reporter: Reporter) -> None:
        async with self._turn():
            await self._preparation.prepare(train, valid, reporter)
            await self._preparation.finish(reporter)

    async def _infer(self, instances: AnyInstances, purpose: str, reporter: Reporter, what: str) -> Outputs:
        await self._preparation.prepare(instances, None, reporter, purpose, ahead=self.settings.compile_ahead)
        with self._preparation.while_needed(reporter):
            return await self._run(Pass(instances, self._orders.settled(instances), purpose), reporter, what)

    async def _accumulate(self, instances: AnyInstances, update: bool, trace: Trace | None) -> dict[str, float]:
        async with self._turn():
            await self._preparation.prepare(instances, None, SILENT, warm=False)
            of = Pass(instances, np.arange(len(instances)), may_update=update, seeds=self._seeds)
            await self._run(of, SILENT, "train", trace)
            sums = self._executor.losses.take(True)
        return {"loss_sum": loss_sum(sums), **metrics_of(sums)}

    @contextmanager
    def _recorded(self, path: str | Path | None, epochs: int, history: History) -> Iterator[None]:
        """Writes what is decided into a file, if one is given."""
        if path is None:
            yield
            return
        recorder, reason = Recorder(path, {"epochs": epochs, **self._provenance()}), FAILED
        self._journal = Journal(recorder.take, self._scheduler.messages_of)
        try:
            yield
            reason = INTERRUPTED if history.interrupted else FINISHED
        finally:
            recorder.close(reason)
            self._journal = None

    def _provenance(self) -> dict[str, Any]:
        return provenance(
            self.plan, self.settings, self._executor.store, self._scheduler.updates, self._rng, self._seeds
        )

    async def _epoch(
        self,
        train: AnyInstances,
        valid: AnyInstances | None,
        reporter: Reporter,
        spent: float,
        trace: Trace | None,
    ) -> Epoch:
        """One epoch, after others that took `spent` seconds."""
        self._epochs += 1
        compiled, began = compilations(), self._now()
        order = self._orders.draw(train, self._rng)
        await self._run(Pass(train, order, seeds=self._seeds), reporter, f"epoch {self._epochs}", trace)
        self._scheduler.end_of_epoch()
        await self._run(Pass(train, order[:0]), reporter, "")
        metrics = metrics_of(self._executor.losses.take(True))
        train_s, stats = self._now() - began, self._scheduler.stats
        valid_metrics, valid_s = {}, 0.0
        if valid is not None:
            begin = self._now()
            await self._run(Pass(valid, self._orders.settled(valid), "losses"), reporter, "validate")
            valid_metrics = metrics_of(self._executor.losses.take(False))
            valid_s = self._now() - begin
        return Epoch(
            self._epochs,
            metrics,
            valid_metrics,
            _rate(train, train_s),
            _rate(valid, valid_s) if valid is not None else 0.0,
            spent + self._now() - began,
            stats.staleness_mean,
            stats.staleness_max,
            stats.messages,
            stats.dispatches,
            stats.updates,
            compilations() - compiled,
        )

    @property
    def _seeds(self) -> RowSeeds:
        """Where random bodies' numbers come from in this epoch."""
        return RowSeeds(self.settings.seed, self._epochs)

    async def _run(self, of: Pass, reporter: Reporter, what: str, trace: Trace | None = None) -> Outputs:
        """Runs a pass; gives what has arrived at sinks."""
        if len(of.ids):
            self._keep_statistics()
            self._scheduler.reset_statistics()
            self._counted = of.train, what
        source, journal = source_of(self._scheduler, of, self._preparation.guard(of)), self._journal
        with reporter.part(what, len(of.ids)) as advance:
            instruments = [Ended(advance)] if journal is None else [Ended(advance), journal]
            loop = Loop(self._scheduler, self._executor, [source], instruments)
            try:
                if journal is not None:
                    journal.begins(of)
                await self._drive(loop, trace)
                await patiently(self._executor.fences.wait, "the last dispatch of some worker")
                if journal is not None:
                    journal.ends(self._executor.store.params if of.train else None)
            except BaseException as error:
                if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
                    self.left_over = report(self._scheduler.snapshot())
                loop.queue.abandon()
                raise
            return loop.queue.outputs

    async def _drive(self, loop: Loop, trace: Trace | None) -> None:
        """Runs a loop to its end: as a recording says, else on the clock that the run goes by."""
        if self._follower is not None:
            await ReplayDriver(loop, self._follower, self.settings.run_ahead).run()
        elif self._cost is None:
            await AsyncioDriver(loop, self.settings.run_ahead, trace).run()
        else:
            driver = VirtualDriver(loop, self._cost, trace, self._virtual_ns)
            await driver.run_beside()
            self._virtual_ns = driver.now_ns

    def _now(self) -> float:
        """Seconds on the clock that the run goes by; a replay goes by this machine's."""
        return time.perf_counter() if self._cost is None or self._follower is not None else self._virtual_ns / 1e9

    def _both(self, train: Data, valid: Data | None) -> tuple[AnyInstances, AnyInstances | None]:
        return self._data(train, "training data"), None if valid is None else self._data(valid, "validation data")

    def _data(self, data: Data, what: str = "data") -> AnyInstances:
        if self._controller is None:
            return as_instances(self.graph, data, what)
        return LoopInstances(self._controller, require_sequence(data, what), ragged_pumps(self.graph))

    def _known(self, node: str) -> Any:
        if node not in self._executor.store.params:
            raise ParameterError(
                f"parameters of `{node}`",
                f"one of the parameterised nodes {list(self._executor.store.params)}",
                "an unknown node",
                "Use a node's name.",
            )
        return self._executor.store.params[node]

    def __repr__(self) -> str:
        s = self.settings
        return f"Trainer({len(self.graph.nodes)} nodes, {len(self.plan.stages)} stages on {s.workers} worker(s), {s.mode}, max_active_keys={s.max_active_keys}, min_update_interval={s.min_update_interval})"

    def _repr_html_(self) -> str:
        rows = [
            [stage.name, stage.kind, str(stage.worker), ", ".join(node.name for node in stage.nodes)]
            for stage in self.plan.stages
        ]
        return html_table(["stage", "kind", "worker", "nodes that run together"], rows, repr(self))


for _name in ("fit", "replay"):  # their arguments are those of what they wait for: completion shows them
    setattr(getattr(Trainer, _name), "__signature__", inspect.signature(getattr(Trainer, f"{_name}_async")))  # noqa: B010


def n_examples(data: Any) -> int:
    """Training examples in a data set: its `n_examples` where an instance holds several, else its length."""
    return int(getattr(data, "n_examples", len(data)))


def _rate(data: Any, seconds: float) -> float:
    """Examples per second; infinite where nothing took any time."""
    return n_examples(data) / seconds if seconds else math.inf
