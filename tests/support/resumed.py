"""Fits that are killed and resumed, to be compared with those that were not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from support import graphs
from support.transforms import adam

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.instances import InstanceList

TOLD = (
    "train",
    "valid",
    "updates",
    "dispatches",
    "messages",
    "staleness_mean",
    "staleness_max",
    "dropped",
)
"""What a history tells of an epoch, but for real time."""


class Killed(Exception):
    """What stands for a kill: the trainer is not used again."""


@functools.cache
def net(replicas=1, hidden=4):
    """A random layer, which may have replicas, and a fixed one."""

    def noisy(p, x, key):
        return x @ p + (0 if key is None else 0.01 * jax.random.normal(key, (hidden,)))

    with ag.Graph() as g:
        x = ag.pump("x", (4,))
        label = ag.pump("label", dtype="int32")
        layer = ag.ppt(
            "layer",
            noisy,
            params=lambda key: jax.random.normal(key, (4, hidden)),
            rng=True,
        )
        h = ag.npt("tanh", jnp.tanh)(ag.replicate(layer, replicas)(x))
        ag.loss("xent", graphs.xent)(
            ag.ppt(
                "linear",
                amp.nn.Linear(hidden, 3),
            )(h),
            label,
        )
    return g


class Drawn:
    """Instances that are drawn anew for each epoch, from what was drawn before."""

    def __init__(self, n=10, scale=1.0):
        self.n = n
        self.scale = scale
        rng = np.random.default_rng(0)
        x = scale * rng.normal(size=(n, 4))
        label = rng.integers(0, 3, n)
        self.list = InstanceList(
            [{"x": np.float32(a), "label": np.int32(b)} for a, b in zip(x, label, strict=True)]
        )

    def __len__(self):
        return self.n

    def gather(self, ids):
        return self.list.gather(ids)

    def reshuffle(self, rng):
        return Drawn(self.n, self.scale * rng.uniform(0.9, 1.1))


def cost(plan):
    """A machine on which a dispatch takes as long as its rows say."""
    del plan
    return lambda dispatch: 100 + 7 * dispatch.n_rows


def trainer(
    folder,
    every=4,
    keep=2,
    replicas=1,
    **options,
):
    """A trainer with snapshots."""
    options = {"max_active_keys": 3, "min_update_interval": 4, **options}
    snapshot = amp.Snapshots(folder, every_instances=every, keep=keep)
    return amp.Trainer(
        net(replicas),
        adam(0.01),
        snapshot=snapshot,
        **options,
    )


def kill_at(one, n, kill):
    """Has a trainer killed by its next dispatch after `n` of them."""
    run = one.session.executor.run
    left = n

    def watched(launches):
        nonlocal left
        left -= len(launches)
        if left < 0:
            kill()
        return run(launches)

    one.session.executor.run = watched


def fit(one, resume=False, epochs=3, **options):
    """Trains on generated data."""
    return one.fit(
        Drawn(),
        Drawn(4),
        epochs=epochs,
        progress=False,
        resume=resume,
        **options,
    )


def killed(one, n, **options):
    """Whether a fit was killed at its `n`-th dispatch; its trainer is then not to be used."""

    def kill():
        raise Killed

    kill_at(one, n, kill)
    try:
        fit(one, **options)
    except Killed:
        return True
    return False


def state(one):
    """All that training has changed, bit for bit."""
    session = one.session
    return {
        "params": one.params,
        "gradients": one.gradients,
        "optimizers": jax.tree.map(
            np.asarray,
            session.executor.store.opt_state,
        ),
        "updates": session.scheduler.updates.state(),
        "rng": session.position.rng.bit_generator.state,
        "virtual_ns": session.position.virtual_ns,
        "epochs": session.position.epochs,
    }


def require_same(first, second, histories):
    """Checks that two fits ended with the same bits, and tell the same of their epochs."""
    ours = state(first)
    theirs = state(second)
    for part in ours:
        if part in ("params", "gradients", "optimizers"):
            jax.tree.map(
                np.testing.assert_array_equal,
                ours[part],
                theirs[part],
            )
        else:
            assert ours[part] == theirs[part], part
    told = []
    for history in histories:
        told.append([{name: getattr(e, name) for name in TOLD} for e in history.epochs])
    assert told[0] == told[1]
