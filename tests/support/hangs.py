"""Instances that can't end, and what is said of them when nothing moves: where each is said to stand, and what ran lately, is told in other words by now."""

import functools

import numpy as np
from support import graphs

import ampjax.graphs as ag

GOOD = {
    "x": np.float32(1),
    "label": np.float32(0),
}


def times(name, wire):
    return ag.ppt(
        name,
        graphs.times,
        params=graphs.one(),
    )(wire)


@functools.cache
def two_pumps():
    with ag.Graph() as g:
        x, y = (ag.pump(name, fields=("t",)) for name in "xy")
        ag.loss("loss", graphs.square)(
            times("f", x),
            times("g", y),
        )
    return g


@functools.cache
def one_way_out():
    """Odd instances end in a sink, but their labels do not."""
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        even, odd = ag.cond(
            times("f", x),
            lambda s: s.instance % 2 == 0,
            name="way",
        )
        ag.sink("end", odd)
        ag.loss("loss", graphs.square)(even, label)
    return g


def without(pump, instance):
    return {name: value for name, value in instance.items() if name != pump}


def at(t):
    return ag.messages(np.ones(1, np.float32), t=t)


def throttle(n=1):
    return f"in flight: {n} training and 0 inference instance(s), at most 16 of each; they enter 1 at once at least\n  queues: empty"


FIX = "Pump what the nodes wait for, or mend the conditions that route it."

HANGS = {
    "a loss that never receives its label": (
        graphs.chain(1),
        [GOOD, without("label", GOOD)],
        {},
        f"""1 instance(s) in flight: expected messages that can move, got none: node `loss` has State(instance=1) on port f0 and waits for the same key on port label. {FIX}
  port label of `loss` is fed by Pump `label`: nothing of instance 1 from it waits anywhere
  {throttle()}
  instance 1 is the oldest; lately:
    dispatch 1: forward `f0` on worker 0, State(instance=1)""",
    ),
    "a join whose keys never meet": (
        two_pumps(),
        [{"x": at(0), "y": at(1)}],
        {},
        f"""1 instance(s) in flight: expected messages that can move, got none: node `loss` has State(instance=0, t=0) on port f and waits for the same key on port g; node `loss` has State(instance=0, t=1) on port g and waits for the same key on port f. {FIX}
  port g of `loss` is fed by PPT `g`: State(instance=0, t=1) from it waits; it last ran for it in dispatch 2 (forward, State(instance=0, t=1))
  port f of `loss` is fed by PPT `f`: State(instance=0, t=0) from it waits; it last ran for it in dispatch 1 (forward, State(instance=0, t=0))
  the keys at `loss` do not meet: State(instance=0, t=0) on port f, State(instance=0, t=1) on port g
  {throttle()}
  instance 0 is the oldest; lately:
    dispatch 1: forward `f` on worker 0, State(instance=0, t=0)
    dispatch 2: forward `g` on worker 0, State(instance=0, t=1)""",
    ),
    "a group that never gets all members": (
        graphs.grouping(),
        [
            {
                **graphs.grouping_instance(2),
                "size": ag.messages(
                    np.zeros(1, np.float32),
                    n=3,
                ),
            }
        ],
        {"fuse": True},
        f"""1 instance(s) in flight: expected messages that can move, got none: node `out+loss` has State(instance=0) on port label and waits for the same key on port total; group `back` with State(instance=0, i=0) waits for 1 more of 3 member(s). {FIX}
  port total of `out+loss` is fed by Reduce `total`: nothing of instance 0 from it waits anywhere; it has not run for it lately
  port row of `back` is fed by PPT `row`: State(instance=0, i=0) and 1 more from it waits; it last ran for it in dispatch 1 (forward, State(instance=0, i=0))
  {throttle()}
  instance 0 is the oldest; lately:
    dispatch 1: forward `row` on worker 0, State(instance=0, i=0) and 1 more""",
    ),
    "a group that is never opened": (
        graphs.grouping(),
        [without("size", graphs.grouping_instance(1))],
        {"fuse": True},
        f"""1 instance(s) in flight: expected messages that can move, got none: node `out+loss` has State(instance=0) on port label and waits for the same key on port total; group `back` with State(instance=0, i=0) waits for its opener. {FIX}
  port total of `out+loss` is fed by Reduce `total`: nothing of instance 0 from it waits anywhere; it has not run for it lately
  port size of `back` is fed by Pump `size`: nothing of instance 0 from it waits anywhere
  {throttle()}
  instance 0 is the oldest; lately:
    dispatch 1: forward `row` on worker 0, State(instance=0, i=0)""",
    ),
    "a cond that sends an instance nowhere": (
        one_way_out(),
        [GOOD, GOOD],
        {},
        f"""1 instance(s) in flight: expected messages that can move, got none: node `loss` has State(instance=1) on port label and waits for the same key on port way[0]. {FIX}
  port way[0] of `loss` is fed by PPT `f` by way of Cond `way`: nothing of instance 1 from it waits anywhere; it last ran for it in dispatch 3 (backward, State(instance=1))
  {throttle()}
  instance 1 is the oldest; lately:
    dispatch 1: forward `f` on worker 0, State(instance=1)
    dispatch 3: backward `f` on worker 0, State(instance=1)""",
    ),
    "a phi input that is never pumped": (
        graphs.rnn(),
        [without("h0", graphs.rnn_instance(1))],
        {"fuse": True, "max_active_keys": 3, "min_admission": 2},
        f"""1 instance(s) in flight: expected messages that can move, got none: node `embed+concat1+linear1+tanh` has State(instance=0, t=0, length=1) on port tokens and waits for the same key on port h; node `linear2+xent` has State(instance=0) on port label and waits for the same key on port cond1[1]. {FIX}
  port h of `embed+concat1+linear1+tanh` is fed by Pump `h0` by way of Phi `h`: nothing of instance 0 from it waits anywhere
  port h of `embed+concat1+linear1+tanh` is fed by NPT `tanh` by way of Isu `isu1`, Cond `cond1`, Phi `h`: nothing of instance 0 from it waits anywhere; it has not run for it lately
  port cond1[1] of `linear2+xent` is fed by NPT `tanh` by way of Isu `isu1`, Cond `cond1`: nothing of instance 0 from it waits anywhere; it has not run for it lately
  in flight: 1 training and 0 inference instance(s), at most 3 of each; they enter 2 at once at least
  queues: empty
  instance 0 is the oldest; nothing of it has been dispatched lately""",
    ),
    "an instance that is still pumped to": (
        graphs.chain(1),
        None,
        {},
        f"""1 instance(s) in flight: expected messages that can move, got none: an instance whose pumping has not ended. {FIX}
  {throttle()}
  instance 7 is the oldest; nothing of it has been dispatched lately""",
    ),
}
