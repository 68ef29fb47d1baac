"""Schedules of the project's models and of some random graphs, frozen as digests: the scheduler that routed messages while it scheduled made the same ones.

A change that is wanted is written down by `python -m support.frozen`, run in `tests/`; say why in the commit.
"""

import functools
import hashlib
import json
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
from support.models import MODELS, model
from support.random_graphs.random_case import random_case
from support.schedules import at_once, in_virtual_time, planned, settings_for

from ampjax.plan.passes import PURPOSES
from ampjax.sched.decisions.parameter_changes import ReplicaSync
from ampjax.sched.decisions.policy import POLICIES, backward_first
from ampjax.unfold.demand import demand
from ampjax.unfold.unfolder import Unfolder

FILE = Path(__file__).with_name("frozen.json")

SEVERAL = "sequences in replicas", "trees in replicas", "tagger", "perceptron in copies"
FEW = "sequences", "trees", "molecules", "questions, edge by edge", "tagger"
FROZEN_POLICIES = "backward_first", "largest", "balanced", "wavefront", "one_forward_one_backward"
"""Those that there were when schedules were frozen: a new one changes none of them."""
CLOCKS = {"at once": at_once, "virtual time": in_virtual_time}

RANDOM = *range(12), 193, 420, 533, 1531
"""In 193 and 420 a group that nobody consumes answers its members while they travel; in 533 copies of one message wait in a join when it needs room for
other keys; in 1531 a node behind a chain works on the rows that the chain makes, not on those that it takes."""


def shortest_queue(queues, now):
    """A user's policy: it wants to wait now and then."""
    assert all(
        q.items > 0 and q.ready <= q.max_rows and q.born <= now and q.longest >= q.items
        for q in queues
    )
    if now % 3 == 0 and not any(q.backward for q in queues):
        return None
    return min(
        queues,
        key=lambda q: (q.rows, q.stage.number, q.direction),
    )


def decided(
    side,
    name,
    drive=at_once,
    workers=1,
    train=True,
    interval=7,
    around=lambda one: one,
    stashes=False,
    **options,
):
    """What is decided for a model.

    Args:
      side: Makes a scheduler over a data set, as `schedules.Scheduled`.
      name: The model's.
      drive: How it is driven.
      workers: Workers.
      train: Whether it trains.
      interval: Of all nodes.
      around: Changes what is driven.
      stashes: Whether every other node has stashed weights.
      **options: Other settings.
    """
    graph, data = model(name)
    if stashes:
        stashed = tuple(graph.parameterised)[::2]
    else:
        stashed = ()
    options = {"max_active_keys": 4, "max_dispatch_size": 4, "stashed": stashed, **options}
    settings = settings_for(graph, interval, **options)
    return list(
        drive(
            around(side(planned(graph, workers), settings, data, train)),
            len(data),
            workers,
        )
    )


def decided_at_random(side, seed):
    """What is decided for a random graph."""
    case = random_case(seed, n_instances=6)
    policy = FROZEN_POLICIES[seed % 5]
    settings = settings_for(
        case.graph,
        1 + seed % 9,
        max_active_keys=1 + seed % 6,
        max_dispatch_size=(1, 2, 3, 5, 64)[seed % 5],
        policy=POLICIES[policy],
        flush_every=None if seed % 6 else 3,
    )
    plan = planned(
        case.graph,
        1 + seed % 3,
        fuse=seed % 4 > 0,
    )
    drive = (at_once, in_virtual_time)[seed // 5 % 2]
    return list(
        drive(
            side(plan, settings, case.instances, seed % 3 > 0),
            6,
            plan.workers,
        )
    )


def decided_within_limits(side, name, share):
    """What is decided where arenas have room for so many of the largest instances; nobody holds instances back, so all may come to stand still."""
    graph, data = model(name)
    plan = planned(graph)
    unfolder = Unfolder(planned(graph))
    need = demand(
        plan,
        unfolder.end(
            unfolder.unfold(
                [data.gather(np.arange(len(data)))],
                range(len(data)),
            )
        ),
    )
    limits = {}
    for key, rows in need.items():
        limits[key] = 1 + share * int(rows.max())
    settings = settings_for(
        graph, max_active_keys=3, max_dispatch_size=8, capacity=4, limits=limits
    )
    told = []
    with suppress(AssertionError):
        told.extend(
            at_once(
                side(plan, settings, data),
                len(data),
            )
        )
    return told


def decided_by_two(side):
    """What is decided where the policy changes on the way."""
    graph, data = model("trees")
    one = side(
        planned(graph),
        settings_for(graph, max_active_keys=6, max_dispatch_size=4),
        data,
    )
    told = []
    for what in at_once(one, len(data)):
        told.append(what)
        if len(told) == 21:
            one.scheduler.queues.decide_by(backward_first)
    return told


def unfolded(side, name, purpose):
    """The programs of a model's instances, or of those of a random graph, which no scheduler changes."""
    if isinstance(name, str):
        graph, data = model(name)
    else:
        graph = random_case(name).graph
        data = random_case(name).instances
    unfolder = Unfolder(planned(graph))
    n = len(data)
    programs = unfolder.end(
        unfolder.unfold(
            [data.gather(np.arange(n))],
            3 * np.arange(n) + 1,
            purpose,
            assume=True,
        )
    )
    result = []
    for f in fields(programs):
        if f.name != "edges":
            result.append(getattr(programs, f.name).tolist())
    return result


def cases():
    """By name: what is decided, given how a scheduler is made."""
    found = {}

    def add(name, *args, **options):
        found[name] = functools.partial(
            decided,
            name=args[0],
            **options,
        )

    for name in MODELS:
        for policy in FROZEN_POLICIES:
            for size in (2, 64):
                options = {
                    "max_active_keys": 5,
                    "max_dispatch_size": size,
                    "policy": POLICIES[policy],
                }
                add(f"{name}; {policy}; {size}", name, **options)
    for name in SEVERAL:
        for policy in FROZEN_POLICIES:
            add(
                f"{name}; {policy}; 3 workers",
                name,
                drive=in_virtual_time,
                workers=3,
                policy=POLICIES[policy],
            )
    for name in FEW:
        add(f"{name}; inference", name, train=False, max_dispatch_size=5)
        for share in (1, 2):
            found[f"{name}; limits {share}"] = functools.partial(
                decided_within_limits, name=name, share=share
            )
    for clock, drive in CLOCKS.items():
        both = {"drive": drive, "workers": 2}
        for rule in ("every_k", "message"):
            for every, flush in ((1, None), (3, None), (2, 4)):
                options = {
                    "interval": 2,
                    "sync": ReplicaSync(rule, every),
                    "flush_every": flush,
                    **both,
                }
                add(
                    f"replicas meet; {rule} {every}, {flush}; {clock}",
                    "sequences in replicas",
                    **options,
                )
        for name in ("sequences", "trees", "molecules", "tagger"):
            for size in (3, 64):
                options = {
                    "interval": 2,
                    "max_active_keys": 5,
                    "max_dispatch_size": size,
                    "stashes": True,
                    **both,
                }
                add(f"{name}; stashed weights; {size}; {clock}", name, **options)
        add(f"a user's policy; {clock}", "trees in replicas", policy=shortest_queue, **both)
        for name in ("pondering", "experts"):
            for train in (True, False):
                options = {"max_active_keys": 2, "max_dispatch_size": 3, "train": train, **both}
                add(f"{name}; {'training' if train else 'inference'}; {clock}", name, **options)
        for name in ("sequences", "trees", "tagger", "questions", "questions, edge by edge"):
            for size, active in ((2, 3), (64, 1)):
                options = {
                    "max_active_keys": active,
                    "max_dispatch_size": size,
                    "around": Later,
                    **both,
                }
                add(f"{name}; pumped later; {size}; {clock}", name, **options)
    for name in ("sequences", "trees"):
        for every in (1, 5):
            add(
                f"{name}; updates every {every}",
                name,
                max_active_keys=every,
                max_dispatch_size=64,
                flush_every=every,
            )
    add("trees; in waves", "trees", max_dispatch_size=64, min_admission=2)
    found["trees; another policy on the way"] = decided_by_two
    for name in MODELS:
        for purpose in PURPOSES:
            found[f"{name}; programs; {purpose}"] = functools.partial(
                unfolded, name=name, purpose=purpose
            )
    for seed in RANDOM:
        found[f"random graph {seed}; programs"] = functools.partial(
            unfolded, name=seed, purpose="train"
        )
        found[f"random graph {seed}"] = functools.partial(decided_at_random, seed=seed)
    return found


class Later:
    """Pumps an instance's messages one pump after the other, topologies first, two dispatches between them, as a user-written controller may."""

    def __init__(self, side):
        self.scheduler = side.scheduler
        self._side = side
        self._train = side._train
        self.tell = side.tell
        self._left = []
        scheduler = side.scheduler
        done = side.scheduler.done
        n = iter(range(1 << 30))

        def later(d):
            done(d)
            if next(n) % 2:
                self._pump_next()

        scheduler.done = later

    def admit(self, ids):
        for i in ids.tolist():
            handles = self.scheduler.open(
                np.array([i]),
                "train",
                grows=True,
            )
            batch = self._side._data.gather(np.array([i])).items()
            self._left.append(
                (
                    handles,
                    sorted(
                        batch,
                        key=lambda one: not isinstance(one[1].payload, list),
                    ),
                )
            )
        self._pump_next()

    def _pump_next(self):
        for handles, waiting in [*self._left]:
            while waiting:
                name, messages = waiting.pop(0)
                self.scheduler.pump(handles, {name: messages})
                if not isinstance(messages.payload, list):  # nothing moves for topologies alone
                    break
            if not waiting:
                self.scheduler.close(handles)
        self._left = [one for one in self._left if one[1]]


def digest(told):
    """A number for a whole schedule."""
    return hashlib.blake2b(
        json.dumps(told, default=int).encode(),
        digest_size=8,
    ).hexdigest()


if __name__ == "__main__":
    from support.schedules import Scheduled

    FILE.write_text(
        json.dumps(
            {name: digest(case(Scheduled)) for name, case in cases().items()},
            indent=0,
        )
        + "\n"
    )
