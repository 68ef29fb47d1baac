"""The trainer: fit, evaluate and predict with one graph, in scripts and where an event loop already runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from ampjax.cluster.hosts.resources import Resources
from ampjax.devices.allreduce import Device
from ampjax.devices.random_keys import copy_leaf
from ampjax.drivers.controller import ControllerLoop
from ampjax.drivers.cost import Cost
from ampjax.errors import HostDiedError, HostUnreachableError, SettingsError
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosts import Hosts, HostState, hosts_from
from ampjax.ir.graph import Graph
from ampjax.plan.planner import Plan
from ampjax.sched.diagnose.statistics import Statistics
from ampjax.sched.diagnose.story import story
from ampjax.trace.trace import Trace
from ampjax.train.assemble import require_closed, require_transform
from ampjax.train.batch_training.refusals import refuse_messages
from ampjax.train.checkpoints import trainer_files
from ampjax.train.checkpoints.snapshot_settings import Snapshots, snapshots_from
from ampjax.train.history import Epoch, History
from ampjax.train.initial_params import check_params
from ampjax.train.optimizers.node_optimizers import check_by_node
from ampjax.train.optimizers.optimizer_state import OptimizerState
from ampjax.train.predictions import Predictions
from ampjax.train.runs import single_passes
from ampjax.train.runs.begin_fit import begin_fit
from ampjax.train.runs.logged_fit import logged
from ampjax.train.runs.parameter_homes import TrainerExplanation, explain
from ampjax.train.runs.recorded_fit import recorded
from ampjax.train.runs.session import Session, make_session
from ampjax.train.runs.snapshot_keeper import Keeper
from ampjax.train.settings import STALENESS_LIMITS, Settings, settings_from
from ampjax.train.training_data import AnyInstances, Data
from ampjax.utils.blocking import blocking
from ampjax.utils.counted import count_of
from ampjax.utils.progress import Reporter
from ampjax.utils.setting_checks import assignable
from ampjax.utils.text_tables import html_table

Callback = Callable[["Trainer", Epoch], Any]
"""Called after each epoch; a true result ends the training."""

_IN_PLACE_OF = {
    "learning_rate": "Make the optimizer with `optax.inject_hyperparams`, as in `inject_hyperparams(optax.adam)(learning_rate=0.1)`; then assign "
    '`trainer.opt_state["all nodes"].hyperparams["learning_rate"]`, or under a node\'s name.',
    "tx": "Make another trainer with `params=trainer.params`; of this optimizer `trainer.opt_state` can be assigned.",
}
"""By attribute what users do in place of an assignment."""


class Trainer:
    """Trains a graph (AMPNet §3, §5).

    For each of `fit`, `evaluate` and `predict` there is a coroutine, `fit_async` and so on. The plain methods also work while an event loop runs,
    as in a notebook. A trainer does one thing at a time: other calls wait, during a `fit` until the end of an epoch.

    Its parts, in `session`, do the work. The class has more than 15 methods, since `fit`, `evaluate` and `predict` come in two forms, and
    six are properties.

    Args:
      graph: A closed graph.
      tx: The optax transform of every parameterised node that has none of its own; by default `optax.adam(1e-3)`.
      params: Parameters by node name; nodes that are left out are initialised from the seed.
      controller: A user-written controller loop: a generator function from an example to the messages that are pumped for it.
      devices: The devices of the workers, in turn; by default `jax.devices()`.
      cost: Makes a cost model from the plan, as for `simulate`. Training then runs in the virtual time of that machine, and the history has
        its schedule, rates and seconds; all numbers are computed here.
      snapshot: When and where `fit` writes snapshots, from which `fit(..., resume=True)` continues after a crash; a folder alone means a
        snapshot after each epoch.
      hosts: The number of hosts on which workers run, as processes of this machine that keep the workers' parameters and payloads; or a
        `Hosts`; or a resource file, or what one holds, as for `ampjax.parallel.get_runner`. None: everything is in this process.
      settings: All other settings as one object; or pass
      **options: the settings one by one (not both): see `Settings`.

    Attributes:
      graph: The graph.
      settings: The settings.
      plan: How nodes are fused into stages, and which worker runs each.
      keeper: Writes and reads snapshots; None without.
      session: What the trainer works with (scheduler, executor, parameters on devices), for tools that look inside; it may change between
        versions.

    Raises:
      GraphError: If the graph is not closed.
      SettingsError: If a setting is outside what it can be.
      ParameterError: If parameters do not fit the graph, or hold values that are not finite.

    Warns:
      NumericsWarning: Once in a process, if its kernels compute wrong numbers (see `amp.check_numerics`).
    """

    graph: Graph
    settings: Settings
    plan: Plan
    keeper: Keeper | None
    session: Session

    def __init__(
        self,
        graph: Graph,
        tx: optax.GradientTransformation | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        controller: ControllerLoop | None = None,
        devices: Sequence[Device] | None = None,
        cost: Callable[[Plan], Cost] | None = None,
        snapshot: Snapshots | str | Path | None = None,
        hosts: int | str | Path | Mapping[str, Any] | Resources | Hosts | None = None,
        settings: Settings | None = None,
        **options: Any,
    ):
        all_settings = settings_from(options, settings)
        require_closed(
            "trainer",
            graph,
            all_settings.mode != "batch",
        )
        require_transform(tx)
        places = None if hosts is None else hosts_from(hosts)
        self.graph = graph
        self.session = make_session(
            graph,
            all_settings,
            tx,
            params=params,
            controller=controller,
            devices=devices,
            cost=cost,
            hosts=places,
        )
        self.settings, self.plan = self.session.settings, self.session.plan
        self._optimizer_state = OptimizerState(self.session.executor.store)
        self._tx = tx
        self._is_checked = False
        when = snapshots_from(snapshot)
        self.keeper = None if when is None else Keeper(self.session, when)

    def __setattr__(self, name: str, value: Any) -> None:
        assignable(self, "trainer", name, _IN_PLACE_OF)
        super().__setattr__(name, value)

    # Parameters

    @property
    def params(self) -> dict[str, Any]:
        """Parameters by node name: a copy, as NumPy arrays; all rows of a table in host memory. An assignment calls `set_params`."""
        result = {}
        for n, tree in self.session.executor.store.all_params.items():
            result[n] = jax.tree.map(copy_leaf, tree)
        return result

    @params.setter
    def params(self, params: Mapping[str, Any]) -> None:
        self.set_params(params)

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Replaces the parameters of some nodes; optimizer states stay.

        Args:
          params: A pytree for each of these nodes, by name, like those of `Trainer.params`.

        Raises:
          ParameterError: If a node is unknown, or a tree does not fit or holds values that are not finite. Nothing is changed then.
        """
        store = self.session.executor.store
        for node, value in check_params(store.params, params, store.tables).items():
            store.set_params(node, value)

    @property
    def opt_state(self) -> dict[str, Any]:
        """The optimizers' states, in optax's form, by node; of nodes with one common optimizer once, under `all nodes`.

        In synchronous and pipeline mode nodes without a transform of their own are updated together wherever it matters, for example with a
        global norm, in batch mode always. Arrays are read-only copies. Entries of dictionaries, such as hyperparameters, can be assigned, and hold from the next
        training on, also in a callback of `fit`: `trainer.opt_state["all nodes"].hyperparams["learning_rate"] = 1e-4`. Other
        changes need an assignment: `trainer.opt_state = states`, where `states` has all or some of the names.

        Raises:
          ParameterError: If what is assigned is another optimizer's state, or does not fit. Nothing is changed then.
        """
        return self._optimizer_state.read()

    @opt_state.setter
    def opt_state(self, states: Mapping[str, Any]) -> None:
        self._optimizer_state.write(states)

    @property
    def gradients(self) -> dict[str, tuple[Any, int]]:
        """The gradients that each node has accumulated since its last update: the sum of its gradient rows, in float32 at least, and their number."""
        counts = self.session.scheduler.updates.counts
        store = self.session.executor.store
        sums = {
            **store.accumulators,
            **{node: own.dense() for node, own in store.tables.items()},
        }
        result = {}
        for node, tree in sums.items():
            result[node] = (
                jax.tree.map(np.asarray, tree),
                counts[node],
            )
        return result

    def save(self, folder: str | Path) -> None:
        """Writes a checkpoint: parameters, optimizer states, gradients that wait for an update, the state of random numbers, epochs.

        A callback may call it after each epoch. After `restore` into a trainer of the same graph and settings, the next `fit` has the result
        that it would have had here; a data set that reshuffles itself starts anew from the one that is passed to that `fit`.

        Args:
          folder: The folder; a checkpoint that is there is replaced atomically.

        Raises:
          SettingsError: If the folder is no path.
          DataError: If the folder holds anything else, or is the one in which the program runs.
        """
        session = self.session
        self._optimizer_state.take_over()
        trainer_files.save(
            folder,
            session.executor.store,
            session.scheduler.updates,
            session.position,
            session.operations(),
        )

    def restore(self, folder: str | Path) -> None:
        """Restores a checkpoint that `save` wrote.

        Args:
          folder: What `save` wrote.

        Raises:
          SettingsError: If the folder is no path. Nothing is changed then.
          DataError: If it is of another graph or other optimizers. Nothing is changed then.
          TableError: If files are missing, cut off or altered. Nothing is changed then.
        """
        session = self.session
        trainer_files.restore(
            folder,
            session.executor.store,
            session.scheduler.updates,
            session.position,
            session.operations(),
        )

    @property
    def hosts(self) -> list[HostState]:
        """The hosts, if there are any: name, place, state, the nodes that each keeps, and bytes."""
        return [] if self._hosted is None else self._hosted.fleet.states

    def restart_hosts(self) -> None:
        """Starts new hosts in place of the present ones, for example after one has died.

        The new hosts have the trainer's initial parameters, and tables as they are in this program, so `restore` a checkpoint afterwards. A `fit` with snapshots does all this itself.

        Raises:
          HostError: If one does not start.
        """
        if self._hosted is not None:
            self._hosted.restart()

    def close(self) -> None:
        """Ends the hosts, if there are any. Without this call they end with the program."""
        if self._hosted is not None:
            self._hosted.fleet.close()

    @property
    def _hosted(self) -> HostedExecutor | None:
        """The executor, if workers run on hosts."""
        executor = self.session.executor
        return executor if isinstance(executor, HostedExecutor) else None

    # Runs

    def warm_up(
        self,
        train: Data,
        valid: Data | None = None,
        *,
        progress: bool = True,
    ) -> None:
        """Compiles all kernels that `fit` on these data will need, before its first epoch. No parameter changes.

        Without it `fit` compiles a kernel when it is first needed, so its first epoch takes longer, and the remaining ones before the second
        epoch (with `compile_ahead=True` all of them before the first).

        Args:
          train: Training instances.
          valid: Validation instances.
          progress: Whether to show progress.

        Raises:
          SettingsError: If there is no instance.
          MessageError: If a message, payload or state function of those that are looked at does not fit.
        """
        data, held_out = self.session.train_and_valid(train, valid)
        with Reporter(progress) as reporter:
            blocking(single_passes.warm_up(self.session, data, held_out, reporter))

    def fit(
        self,
        train: Data,
        valid: Data | None = None,
        **options: Any,
    ) -> History:
        """Trains for some epochs and validates after each; see `fit_async`, which has the same arguments, result and errors.

        Args:
          train: Training instances.
          valid: Validation instances.
          **options: As for `fit_async`.

        Returns:
          The history.

        Raises:
          Exception: As `fit_async`.
        """
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
        update_log: str | Path | None = None,
        resume: bool = False,
        stop_on_nan: bool = True,
    ) -> History:
        """Trains for some epochs and validates after each.

        Args:
          train: Training instances; a data set with a method `reshuffle(rng)` is reshuffled for each epoch. With a controller
            loop: a sequence of examples.
          valid: Validation instances.
          epochs: How many epochs.
          callbacks: Called with the trainer and each epoch's record; a true result ends the training.
          progress: Whether to show progress.
          label: What to put into each record, for example `{"experiment": "mnist"}`.
          history: A history to which epochs are added.
          trace: Gets a record of each worker's time in training (not in validation). In batch mode there is nothing to tell, nor for `record` and `update_log`.
          record: A file for the scheduler's decisions, about 40 bytes a dispatch, from which `amp.replay` repeats this run bit for bit.
          update_log: A file that gets, as JSON Lines, for each update of each node the instances whose gradients it contains and the
            parameter version that each one's forward pass saw (`ampjax.trace.update_log.read_update_log` reads it).
          resume: Whether to continue from the newest complete snapshot, if there is one; `epochs` includes the epochs before it. Pass the
            data that the run began with. In synchronous, pipeline and batch mode and in virtual time (`cost`), the result has the same bits as a
            run with these snapshots that was not killed. In real time an asynchronous run continues with another legal schedule, and its
            recording with it.
          stop_on_nan: Whether training ends with the epoch after which parameters are not finite any more: nothing that follows would be a
            number. No snapshot is taken of them.

        Returns:
          The history; shorter, with `interrupted` set, after Ctrl-C or a cancellation, and with `diverged` set if parameters were lost.

        Raises:
          SettingsError: If there is no training instance, `epochs` < 1, there is nothing to resume from, or snapshots depend on a clock
            although the run must not.
          DataError: If the folder has snapshots but `resume` is False, or they are of another graph, settings or data; or the log of
            updates that is to be continued is no such log.
          TableError: If all snapshots are damaged.
          ReplayError: If the recording that is to be continued is another one.
          OSError: If the recording, the log of updates or a snapshot can't be written.
          DeadlockError: If messages wait for others that never come.
          LimitError: If a single instance does not fit into the memory limit.
          MessageError: If a message, payload or state function does not fit.

        Warns:
          RuntimeWarning: Once in a call each: if the training loss or parameters are not finite; in asynchronous mode, if a node has made
            fewer than two updates in an epoch, or its gradients were more than ten updates late in the mean. It says what to change.
        """
        _check_fit(epochs, trace)
        refuse_messages(self.settings, trace=trace, record=record, update_log=update_log)
        callers = [partial(self._call_back, callback) for callback in _callbacks(callbacks)]
        self._before_training()
        if history is None:
            history = History(settings=dict(label or {}))
        data, held_out = self.session.train_and_valid(train, valid)
        part = None if record is None else "bytes"
        run, place = begin_fit(
            self.session, self.keeper, data, held_out, history, resume, recording=part
        )
        with Reporter(progress) as reporter:
            while True:
                run.trace = trace
                run.reporter = reporter
                run.stop_on_nan = stop_on_nan
                try:
                    with recorded(run, record, epochs, place), logged(run, update_log):
                        await run.run(epochs, callers)
                    return history
                except (HostDiedError, HostUnreachableError) as error:
                    if self.keeper is None or (
                        self._hosted is not None and self._hosted.fleet.is_closed
                    ):
                        raise
                    reporter.line(f"{error} Other hosts go on from the newest snapshot.")
                    self.restart_hosts()
                    run, place = begin_fit(
                        self.session, self.keeper, data, held_out, history, True, recording=part
                    )

    def _call_back(self, callback: Callback, epoch: Epoch) -> Any:
        """Calls a callback, whose assignments to `opt_state` hold from then on."""
        result = callback(self, epoch)
        self._optimizer_state.take_over()
        return result

    def _before_training(self) -> None:
        """Checks, once, that the optimizer can be each node's own; and puts assignments to `opt_state` into the states.

        Raises:
          SettingsError: If the optimizer can't.
        """
        if not self._is_checked and self.settings.mode == "async":
            check_by_node(self.graph, self._tx, self.settings.frozen)
        self._is_checked = True
        self._optimizer_state.take_over()

    def evaluate(
        self,
        data: Data,
        *,
        params: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> dict[str, float]:
        """Computes the mean loss and the metrics over some instances; nothing is trained.

        Args:
          data: The instances.
          params: Parameters by node name to use in place of the trainer's own, for all nodes or some: for example averaged ones.
          progress: Whether to show progress; by default where kernels may have to be compiled, the first time.

        Returns:
          By name: `loss`, the mean over instances of what is minimised (of a compiled model, of what its function returns), and the metrics that
          the losses' bodies return.

        Raises:
          SettingsError: If there is no instance.
          ParameterError: If a node is unknown, or its parameters do not fit.
          Exception: As `fit_async`.
        """
        return blocking(self.evaluate_async(data, params=params, progress=progress))

    async def evaluate_async(
        self,
        data: Data,
        *,
        params: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> dict[str, float]:
        """Computes the mean loss and the metrics over some instances; see `evaluate`.

        Args:
          data: The instances.
          params: As for `evaluate`.
          progress: Whether to show progress; by default where kernels may have to be compiled, the first time.

        Returns:
          The metrics by name.

        Raises:
          Exception: As `evaluate`.
        """
        instances = self.session.instances(data)
        with self._reporter(progress, instances, "losses") as reporter:
            return await single_passes.evaluate(
                self.session, instances, reporter, self._check_params(params)
            )

    def predict(
        self,
        data: Data,
        *,
        params: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> dict[str, Predictions]:
        """Computes the messages that arrive at each sink. Losses are left out, so no labels are needed.

        Args:
          data: The instances; of a compiled model without labels, what `compiled.data(instances, labels=False)` gives.
          params: Parameters by node name to use in place of the trainer's own, for all nodes or some.
          progress: Whether to show progress; by default where kernels may have to be compiled, the first time.

        Returns:
          By the sink's name, the payloads and states of its messages, in the order of instances and states.

        Raises:
          GraphError: If the graph has no sink.
          SettingsError: If there is no instance.
          ParameterError: If a node is unknown, or its parameters do not fit.
          Exception: As `fit_async`.
        """
        return blocking(self.predict_async(data, params=params, progress=progress))

    async def predict_async(
        self,
        data: Data,
        *,
        params: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> dict[str, Predictions]:
        """Computes the messages that arrive at each sink; see `predict`.

        Args:
          data: The instances.
          params: As for `predict`.
          progress: Whether to show progress; by default where kernels may have to be compiled, the first time.

        Returns:
          The messages by sink.

        Raises:
          Exception: As `predict`.
        """
        instances = self.session.instances(data, labels=False)
        with self._reporter(progress, instances, "sinks") as reporter:
            return await single_passes.predict(
                self.session, instances, reporter, self._check_params(params)
            )

    def _check_params(
        self,
        params: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Parameters to be used in place of the trainer's own."""
        store = self.session.executor.store
        if params:
            return check_params(store.params, params or {}, store.tables)
        return {}

    def _reporter(
        self,
        progress: bool | None,
        data: AnyInstances,
        purpose: str,
    ) -> Reporter:
        """Shows how far an inference is, if that was asked for; if nothing was said, where something may have to be compiled."""
        return Reporter(
            not self.session.preparation.is_ready(data, purpose) if progress is None else progress
        )

    def accumulate(
        self,
        data: Data,
        *,
        update: bool = True,
        trace: Trace | None = None,
    ) -> dict[str, float]:
        """Runs training instances forward and backward once, in order; nodes update as the settings say. Each call draws new random numbers.

        Args:
          data: The instances.
          update: False changes no parameter, whatever the settings say; `gradients` then has the sums over all instances.
          trace: Gets a record of each worker's time.

        Returns:
          The metrics, as `evaluate` gives them, and `loss_sum`: the loss summed over all instances, whose gradients `gradients` has.

        Raises:
          SettingsError: If there is no instance.
          Exception: As `fit_async`.
        """
        refuse_messages(self.settings, accumulate=data, trace=trace)
        instances = self.session.instances(data)
        if update:
            self._before_training()
        return blocking(single_passes.accumulate(self.session, instances, update, trace))

    # What has been counted

    @property
    def statistics(self) -> Statistics:
        """Counts of the last training run, or of the last run if there was no training; `run` says which.

        Validation, evaluation and prediction do not change it (see `inference_statistics`).
        """
        return self.session.passes.statistics.training

    @property
    def inference_statistics(self) -> Statistics:
        """Counts of the last run without training: a validation, an evaluation or a prediction."""
        return self.session.passes.statistics.inference

    def explain(self) -> TrainerExplanation:
        """Makes a table of each node's parameters, where they live, and how their copies are kept together.

        Returns:
          A table to print, with updates and staleness of the last run that trained. Copies that `amp.graphs.replicate` has made are one entry.
        """
        return explain(self.session)

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on devices, by purpose.

        The purposes are `arenas` (payloads and adjoints), `records` (activations that the backward pass needs), `params`, `opt_state` and
        `accumulators` (of gradients).
        """
        return self.session.executor.device_bytes

    @property
    def left_over(self) -> list[str]:
        """The messages in flight at the last interrupt: waiting nodes, the throttle, the queues, the oldest instance's story.

        A loop that never ends because of computed numbers raises no error: interrupt the run, and read here where the oldest instance loops.
        """
        return self.session.passes.left_over

    def story(self, instance: int, **fields: int) -> list[str]:
        """Lists the events of an instance's messages in the latest dispatches.

        Args:
          instance: The instance's number.
          **fields: Values of state fields; only messages with these values are shown.

        Returns:
          A line for each event.
        """
        return story(self.session.scheduler.snapshot(), instance, fields)

    def __repr__(self) -> str:
        s = self.settings
        limits = {name: getattr(s, name) for name in STALENESS_LIMITS}
        budget = "".join(f", {name}={value}" for name, value in limits.items() if value is not None)
        return f"Trainer({len(self.graph.nodes)} nodes, {count_of(len(self.plan.stages), 'stage')} on {count_of(s.workers, 'worker')}, {s.mode}, max_active_keys={s.max_active_keys}, min_update_interval={s.min_update_interval}{budget})"

    def _repr_html_(self) -> str:
        rows = []
        for stage in self.plan.stages:
            rows.append(
                [
                    stage.name,
                    str(stage.kind),
                    str(stage.worker),
                    ", ".join(node.name for node in stage.nodes),
                ]
            )
        return html_table(["stage", "kind", "worker", "nodes that run together"], rows, repr(self))


def _check_fit(epochs: Any, trace: Any) -> None:
    """Checks the arguments of `fit` beside data.

    Raises:
      SettingsError: If something can't be what it is to be.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, Integral) or epochs < 1:
        raise SettingsError(
            "fit, `epochs`", "at least 1", f"{epochs!r}", "Train for one epoch or more."
        )
    if trace is not None and not isinstance(trace, Trace):
        raise SettingsError(
            "fit, `trace`", "an `amp.Trace`", f"{trace!r:.80}", "Write `trace=amp.Trace()`."
        )


def _callbacks(callback: Any) -> list[Callback]:
    """The callbacks of a fit.

    Raises:
      SettingsError: If they are no functions.
    """
    callbacks = list(callback) if isinstance(callback, Iterable) else None
    if callbacks is None or not all(map(callable, callbacks)):
        fix = "Write `callbacks=[function]`, also for one; it is called with the trainer and the epoch's record."
        raise SettingsError("fit, `callbacks`", "a list of functions", f"{callback!r:.80}", fix)
    return callbacks


# `fit` takes the arguments of `fit_async`: completion shows them.
setattr(Trainer.fit, "__signature__", inspect.signature(Trainer.fit_async))  # noqa: B010
