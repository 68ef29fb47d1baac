"""When a host says that batches are done."""

from collections import deque
from types import SimpleNamespace

import pytest
from support import graphs
from support.engines import engine, spread

from ampjax.cluster.wire.message import Message
from ampjax.hosts.host import ServingHost
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import BatchWriter, Names

EACH = 3  # operations in a batch


class Driver:
    """Sends batches, all at once, and then the end; notes what the host says in the list of what happens."""

    def __init__(self, batches, happened):
        messages = []
        for n, batch in enumerate(batches, 1):
            messages.append(
                Message(
                    "batch",
                    (0, n),
                    arrays=tuple(batch),
                )
            )
        self.messages = deque([*messages, Message("end")])
        self.happened = happened

    def receive(self, timeout_s):
        return self.messages.popleft()

    def send(self, message):
        self.happened.append((message.kind, message.numbers[1]))


class Fence:
    """Is ready when so many operations have been carried out; fails then, if it is to."""

    def __init__(self, happened, after, fails):
        self.happened = happened
        self.after = after
        self.fails = fails

    def is_ready(self):
        return self.happened.count("operation") >= self.after

    def block_until_ready(self):
        if self.fails:
            raise RuntimeError("a kernel has failed")


def happens(late, n_batches=3, fails=False):
    """What a host does with batches whose kernels end so many operations after they were issued: operations, and what it says."""
    happened = []
    plan = engine(
        graphs.chain(2),
        spread(graphs.chain(2), 1),
        (0,),
        check=False,
    ).plan
    writer = BatchWriter(Names.of(plan))
    batches = []
    for _ in range(n_batches):
        for _ in range(EACH):
            writer.forget()
        batches.append(writer.take())
    fences = SimpleNamespace(
        of_worker=lambda worker: Fence(happened, happened.count("operation") + late, fails)
    )
    executor = SimpleNamespace(
        plan=plan,
        readings={},
        fences=fences,
        abandon=lambda: happened.append("operation"),
    )
    ServingHost(
        0,
        executor,
        HostLayout(plan, (0,)),
        Driver(batches, happened),
        {},
    ).serve()
    return happened


@pytest.mark.parametrize("late", [0, 1, 2, EACH])
def test_a_host_says_that_a_batch_is_done_while_it_carries_out_the_next_one(late):
    happened = happens(late, n_batches=4)
    for batch in 1, 2:
        at = happened.index(("done", batch))
        assert happened[:at].count("operation") == batch * EACH + late


def test_a_host_waits_for_no_batch_before_it_must():
    happened = happens(late=2 * EACH + 1)
    # The third batch has been issued: no more may be under way.
    assert [each for each in happened if each != "operation"] == [("done", 1)]
    assert happened.count("operation") == 3 * EACH


def test_a_batch_that_fails_late_is_not_blamed_on_a_launch_of_a_later_one():
    said = []
    for each in happens(late=1, fails=True):
        if each != "operation":
            said.append(each)
    assert said == [("failed", 2)]
