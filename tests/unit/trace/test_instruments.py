"""Who watches a run is told what happens in it, in order."""

import numpy as np
import optax
import pytest
from support import graphs
from support.engines import engine

from ampjax.drivers.run import DriverLoop
from ampjax.drivers.virtual_driver import VirtualDriver
from ampjax.trace.instruments import HOOKS, Instrument, Instruments


class All(Instrument):
    """Notes what it is told."""

    def __init__(self):
        self.told = []


def _noting(hook):
    return lambda self, *args: self.told.append((hook, *args))


for _hook in HOOKS:
    setattr(All, _hook, _noting(_hook))


@pytest.mark.slow
def test_what_it_is_told():
    e = engine(
        graphs.chain(1),
        interval=2,
        tx=optax.sgd(0.1),
        fuse=False,
    )
    everything = All()
    VirtualDriver(
        DriverLoop(
            e.scheduler,
            e.executor,
            e.sources(graphs.chain_data(2)),
            [everything],
        ),
        lambda d: 1,
    ).run()
    of = {}
    for hook, *args in everything.told:
        if hook.startswith(("before", "after")):
            what = args[0][0]
        elif args:
            what = args[0]
        else:
            what = None
        of.setdefault(
            getattr(what, "number", None),
            [],
        ).append(hook)
    assert of.keys() == {None, 1, 2, 3}
    issued = ["decided", "before_kernels", "after_kernels", "after_changes"]
    assert all(of[number] == [*issued, "done"] for number in (1, 2, 3))
    settled = [args for hook, *args in everything.told if hook == "settled"]
    assert settled == [[[], 2], [[(0, True), (1, True)], 0]]


def test_where_only_control_runs_no_kernel_is_issued():
    e = engine(graphs.chain(1), fuse=False)
    everything = All()
    VirtualDriver(
        DriverLoop(
            e.scheduler,
            None,
            e.sources(graphs.chain_data(1)),
            [everything],
        ),
        lambda d: 1,
    ).run()
    hooks = [hook for hook, *_ in everything.told]
    assert "before_kernels" in hooks and not {"after_kernels", "after_changes"} & set(hooks)


def test_the_end_of_the_data_and_workers_without_work():
    e = engine(graphs.chain(1), flush_every=4)
    everything = All()
    e.loop(
        [
            {
                "x": np.float32(1),
                "label": np.float32(0),
            }
        ]
    )
    loop = e.loops[-1]
    loop.instruments.add(everything)
    VirtualDriver(loop, lambda d: 1).run()
    loop.idle(0)
    hooks = [hook for hook, *_ in everything.told]
    assert hooks.count("data_ended") == 1 and hooks[-1] == "idle"


def test_one_that_is_not_overridden_costs_nothing():
    class Few(Instrument):
        def done(self, dispatch, choices):
            raise AssertionError

    few = Few()
    told = Instruments([few])
    assert told.done == [few.done] and not any(
        getattr(told, hook) for hook in HOOKS if hook != "done"
    )
    told.remove(few)
    assert not told.done
