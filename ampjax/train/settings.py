"""The settings of a training: one frozen object, checked at construction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampjax.errors import SettingsError
from ampjax.ir.nodes import WEIGHTS
from ampjax.sched.decisions.parameter_changes import ReplicaSync
from ampjax.sched.decisions.policy import Policy, find_policy
from ampjax.utils.setting_checks import at_least, one_of, spelling

MODES = ("async", "pipeline", "sync", "batch")

STALENESS_LIMITS = ("max_staleness", "drop_staler_than", "exact_staleness")
"""Settings in versions: one for all nodes, or one for each of some."""

ASYNC_DISPATCH = 64
"""Rows in one dispatch of asynchronous training at most, unless the user says otherwise."""
ROUND_DISPATCH = 512
"""The same in the other modes, where the size of a dispatch changes no update."""

MOST_STALENESS = (1 << 16) - 1
"""The largest budget: a node has a counter for each version that gradients in flight may have seen."""


@dataclass(frozen=True)
class Settings:
    """The settings with which a graph is trained.

    It has more than twelve fields: each is one choice of the user, and has a default.

    Args:
      max_active_keys: The most instances in flight.
      min_admission: Instances are admitted when there is room for so many, all together: they then travel in step and fill dispatches. 1
        admits each as soon as there is room for it (as in the paper). At most `max_active_keys`, which admits instances in waves.
      group_by_size: How many instances of about the same size follow one another, in an otherwise random order. With as many admitted at
        once, dispatches stay full to the end of a wave. The size is the data set's `sizes`, or the number of messages and ragged rows that
        are pumped. Evaluation goes from small to large. 1 takes all instances in random order.
      min_update_interval: The least number of gradient rows that a node accumulates before it updates (asynchronous mode).
      max_staleness: The largest staleness, in versions of its node, of a gradient that goes into an update (asynchronous mode). A node whose
        update would make gradients in flight staler holds the update back and goes on accumulating; no instance is admitted in the
        meantime. A number for all nodes, or a mapping for some by name. None sets no bound.
      drop_staler_than: The largest staleness, in versions of its node, of a gradient that its node accumulates (asynchronous mode). Staler
        ones are dropped: they go on to the nodes before, but are neither added nor counted. A number for all nodes, or a mapping for some by
        name. None drops nothing.
      exact_staleness: The exact staleness, in updates of its node, with which each gradient is applied; for all nodes or for some by name.
        Such a node updates as with `max_staleness=0`, so its gradients arrive fresh, and are applied so many updates later
        (`ampjax.optim.delayed`).
      mode: `async`: nodes update themselves, each with an optimizer of its own (AMPNet, figure 1c). `pipeline`: `max_active_keys` instances, then
        a step of one optimizer for all parameters (figure 1b). `sync`: one instance, then such a step (figure 1a). `batch`: as `pipeline`, but each
        round is one compiled call without messages: the plain and fastest way to train a compiled model.
      workers: Number of workers; each has a device if there are enough, else they share.
      affinity: The rule that places nodes on workers: `default`, `paper`, `coloured`, a mapping or a function (see `plan.affinity`). A
        mapping has a worker's number for each node, or the name of a host (`host1`, or `host1:1` for its second worker).
      policy: The rule by which a worker chooses its next messages: a name, such as `balanced` or `backward_first`, or a function. Concepts,
        Asynchrony, has a table; an unknown name's error lists all.
      max_dispatch_size: The most rows in one dispatch; 1 is the paper's Algorithm 1. By default 64 in asynchronous mode, where a dispatch may be
        followed by an update, so that larger ones make fewer; 512 in the others, where updates wait for the end of a round.
      weights: The parameters that the adjoint uses: `current`; `stashed`, those of the forward pass, of which each version in flight is kept; or
        `estimated`, the current ones less their velocity times the staleness (PipeMare's T2), for one more copy of the parameters.
      velocity_decay: With estimated weights, D of PipeMare, in [0, 1): a change's weight in the velocity falls by this factor in as many updates as
        gradients are late. The default, e⁻², gives the changes the mean age of those since the forward pass; 0 takes the last change.
      gradient: `mean` or `sum`: over the accumulated gradient rows of each node in asynchronous mode, else over the examples of a round.
      frozen: Nodes whose parameters stay as they are, by name; of a compiled model the keys of its parameters, or the names given to
        `amp.node`. Optimizers don't see them: a global norm, for one, is without their gradients.
      replica_sync: In asynchronous mode: `epoch`, `none`, `("every_k", k)` or `("message", k)`: see `ReplicaSync`. In the others all copies of
        a node make each step together.
      memory_limit: The most bytes of payloads on one device; by default half of its memory (CPU devices share the host's memory).
      device_memory: Bytes that nodes may keep on one device: parameters, gradients and optimizer state (with Adam four times the
        weights). Nodes are placed so that they fit; if they can't, there is an error. None sets no limit.
      arena_rows: Rows that each arena starts with; by default a dry run of the first instances determines this. Arenas grow by doubling.
      fuse: Whether chains of payload nodes run as one kernel.
      compile_ahead: Whether all kernels are compiled before the first epoch, as `warm_up` does, so that measured rates contain no
        compilation. False compiles a kernel when it is first called, and the remaining ones before the second epoch. The first step then
        comes sooner; the numbers are the same.
      run_ahead: About how many dispatches may be issued to a device before it has done them; to a device of a host at least 192.
      seed: The seed of parameters, of the order of instances, of random bodies, and of the random affinity rule.
      check: Whether the scheduler's invariants are checked after every event (slow).

    Raises:
      SettingsError: If a setting is out of its range.
    """

    max_active_keys: int = 16
    min_admission: int = 1
    group_by_size: int = 1
    min_update_interval: int = 1
    max_staleness: int | Mapping[str, int] | None = None
    drop_staler_than: int | Mapping[str, int] | None = None
    exact_staleness: int | Mapping[str, int] | None = None
    mode: str = "async"
    workers: int = 1
    affinity: str | Mapping[str, int | str] | Callable[..., Mapping[str, int | str]] = "default"
    policy: str | Policy = "balanced"
    max_dispatch_size: int | None = None
    weights: str = "current"
    velocity_decay: float = 0.135
    gradient: str = "mean"
    frozen: Sequence[str] = ()
    replica_sync: str | tuple[str, int] = "epoch"
    memory_limit: int | None = None
    device_memory: int | None = None
    arena_rows: int | None = None
    fuse: bool = True
    compile_ahead: bool = False
    run_ahead: int = 64
    seed: int = 0
    check: bool = False

    def __post_init__(self) -> None:
        for name in (
            "max_active_keys",
            "min_admission",
            "group_by_size",
            "min_update_interval",
            "workers",
            "run_ahead",
        ):
            at_least(name, getattr(self, name), 1)
        at_least("seed", self.seed, 0)
        for name in STALENESS_LIMITS:
            _check_versions(name, getattr(self, name))
        if self.min_admission > self.max_active_keys:
            raise SettingsError(
                "setting `min_admission`",
                f"at most `max_active_keys`, {self.max_active_keys}",
                f"{self.min_admission}",
                "Lower it, or raise `max_active_keys`.",
            )
        limits = {"arena_rows": 2, "device_memory": 1, "max_dispatch_size": 1, "memory_limit": 1}
        for name, least in limits.items():
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), least)
        one_of("mode", self.mode, MODES)
        one_of("weights", self.weights, WEIGHTS)
        if not isinstance(self.velocity_decay, int | float) or not 0 <= self.velocity_decay < 1:
            fix = "0.135 is usual; 0 takes the last change for the velocity."
            raise SettingsError(
                "setting `velocity_decay`", "a number in [0, 1)", f"{self.velocity_decay!r}", fix
            )
        one_of("gradient", self.gradient, ("mean", "sum"))
        for name in ("fuse", "compile_ahead", "check"):
            one_of(name, getattr(self, name), (True, False))
        is_collection = isinstance(self.frozen, Collection) and not isinstance(
            self.frozen, str | Mapping
        )
        if not is_collection or not all(isinstance(name, str) for name in self.frozen):
            fix = 'Write `frozen=("embed",)`, also for one.'
            raise SettingsError("setting `frozen`", "names of nodes", f"{self.frozen!r}", fix)
        find_policy(self.policy)
        self.sync_rule  # noqa: B018 (raises if it is not one)

    @property
    def sync_rule(self) -> ReplicaSync:
        """The rule that keeps replicas of a node together.

        Raises:
          SettingsError: If `replica_sync` is none of the rules.
        """
        if self.replica_sync in ("epoch", "none"):
            return ReplicaSync(str(self.replica_sync))
        rule = self.replica_sync
        if (
            isinstance(rule, tuple)
            and len(rule) == 2
            and rule[0] in ("every_k", "message")
            and isinstance(rule[1], int)
            and rule[1] > 0
        ):
            return ReplicaSync(rule[0], rule[1])
        raise SettingsError(
            "setting `replica_sync`",
            "`epoch`, `none`, ('every_k', k) or ('message', k) with k >= 1",
            f"{rule!r}",
            "Choose one of these.",
        )

    @property
    def flush_every(self) -> int | None:
        """Instances between the controller's updates; None in asynchronous mode."""
        rounds = {"async": None, "sync": 1}
        return rounds.get(self.mode, self.max_active_keys)

    @property
    def dispatch_limit(self) -> int:
        """Rows in one dispatch at most, given the mode."""
        if self.max_dispatch_size is not None:
            return self.max_dispatch_size
        return ASYNC_DISPATCH if self.flush_every is None else ROUND_DISPATCH

    @property
    def in_flight(self) -> int:
        """Instances in flight at most, given the mode."""
        return 1 if self.mode == "sync" else self.max_active_keys


_BATCH_SIZE = "How many examples an update has is `max_active_keys`, with `mode='batch'`."


def settings_from(
    options: Mapping[str, Any],
    base: Settings | None = None,
) -> Settings:
    """Makes settings from keyword options; `min_update_frequency`, the arXiv version's word, means `min_update_interval`.

    Args:
      options: Settings by name.
      base: Settings that the options change; None for the defaults.

    Raises:
      SettingsError: If an option is unknown, or outside what it can be.
    """
    named = {}
    for k, v in options.items():
        named["min_update_interval" if k == "min_update_frequency" else k] = v
    known = sorted(Settings.__dataclass_fields__)
    for name in named:
        if name not in known:
            fix = _BATCH_SIZE if name == "batch_size" else spelling(name, known)
            raise SettingsError(f"setting `{name}`", f"one of {known}", "an unknown setting", fix)
    return replace(base if base is not None else Settings(), **named)


def require_messages(where: str, settings: Settings) -> None:
    """Checks that a graph is run through messages.

    Args:
      where: What an error calls the caller.
      settings: How it is run.

    Raises:
      SettingsError: If it is not.
    """
    if settings.mode == "batch":
        fix = "Take `pipeline`, which makes the same updates through messages."
        raise SettingsError(f"{where}, setting `mode`", f"one of {MODES[:-1]}", "`batch`", fix)


def _check_versions(setting: str, value: Any) -> None:
    """Checks a setting in versions.

    Args:
      setting: Its name.
      value: What the user passed.

    Raises:
      SettingsError: If it is neither None, nor versions, nor versions by node.
    """
    if value is None:
        return
    for k in value.values() if isinstance(value, Mapping) else [value]:
        if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= MOST_STALENESS:
            expected = (
                f"versions from 0 to {MOST_STALENESS}, or such a number for each of some nodes"
            )
            fix = f"Pass an integer, as in `{setting}=4` or `{setting}={{'embed': 4}}`, or leave it out."
            raise SettingsError(f"setting `{setting}`", expected, f"{value!r:.80}", fix)
