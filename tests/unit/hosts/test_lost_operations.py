"""What the driver takes back after an error: all that hosts have not carried out, and nothing else."""

from collections import deque

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.hosted import pipeline

import ampjax as amp
from ampjax.cluster.wire.message import Message
from ampjax.engine.kernels.launch import Launch
from ampjax.errors import HostError
from ampjax.hosts.fleet import Fleet, Ready
from ampjax.hosts.host_link import HostLink, RemoteRows
from ampjax.hosts.hosted_executor import HostedExecutor
from ampjax.hosts.hosts import HostPlace
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import Names
from ampjax.sched.decisions.parameter_changes import Update

N_HOSTS = 2


class Host:
    """Says how far it has come when it is told to give up."""

    bytes_sent = bytes_received = 0

    def __init__(self):
        self.said = deque()
        self.progress = (0, 0)

    def send(self, message):
        if message.kind == "abandon":
            self.said.append(
                Message(
                    "abandoned",
                    (message.numbers[0], *self.progress),
                )
            )

    def receive(self, timeout_s=None):
        return self.said.popleft() if self.said else None


def executor(hosts):
    """A driver's executor of hosts that do nothing."""
    plan = amp.Trainer(pipeline(), optax.sgd(0.1)).plan
    links = [
        HostLink(
            f"host{i}",
            HostPlace("here", i),
            host,
            Names.of(plan),
            lambda: True,
        )
        for i, host in enumerate(hosts)
    ]
    return HostedExecutor(
        plan,
        Fleet(
            plan,
            HostLayout(plan, [0] * len(plan.spaces)),
            lambda: Ready(links, frozenset(), lambda: None),
        ),
        None,
    ), links


HOST = st.integers(0, N_HOSTS - 1)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), HOST),
        st.tuples(
            st.just("change"),
            st.lists(HOST, min_size=1, max_size=N_HOSTS, unique=True),
        ),
        st.tuples(st.just("other"), HOST),
        st.tuples(st.just("send"), HOST),
        st.tuples(st.just("done"), HOST),
    ),
    max_size=60,
)


@settings(max_examples=examples(150))
@given(
    EVENTS,
    st.tuples(*[st.integers(0, 60)] * N_HOSTS),
)
def test_what_is_lost_is_what_was_not_carried_out(events, more_done):
    hosts = [Host() for _ in range(N_HOSTS)]
    there, links = executor(hosts)
    launch = Launch(0, 0, 0, "forward")
    n_changed = 0
    # operations; where batches begin
    made = [[] for _ in hosts]
    batches = [[0] for _ in hosts]
    done = [0] * N_HOSTS
    for what, where in events:
        if what == "launch":
            launch = Launch(launch.number + 1, 0, 0, "forward")
            n_changed = 0
            links[where].batch.launch(launch)
            made[where].append((launch.number, -1))
        elif what == "change":
            for host in where:
                links[host].batch.change(
                    Update("a", 1),
                    launch.number,
                    n_changed,
                )
                made[host].append((launch.number, n_changed))
            n_changed += 1
        elif what == "other":
            links[where].batch.forget()
            made[where].append(None)
        elif what == "send" and links[where].batch.n:
            links[where].send_batch()
            batches[where].append(len(made[where]))
        elif what == "done" and done[where] < links[where].sent:
            done[where] += 1
            hosts[where].said.append(Message("done", (0, done[where])))
            links[where].look()
    carried_out = []
    for host, link in enumerate(links):  # of what was sent, some more operations than it has said
        first = batches[host][done[host]]
        last = batches[host][link.sent]
        carried_out.append(min(first + more_done[host], last))
        begun = max(
            [b for b in range(done[host], link.sent) if batches[host][b] <= carried_out[host]],
            default=done[host] - 1,
        )
        if begun >= 0:
            hosts[host].progress = (
                begun + 1,
                carried_out[host] - batches[host][begun],
            )
        else:
            hosts[host].progress = (0, 0)
    wanted = {}
    for host, operations in enumerate(made):
        for number, change in filter(None, operations[carried_out[host] :]):
            wanted[number] = min(wanted.get(number, change), change)
    unfinished = []
    for host in range(N_HOSTS):
        for number, _ in filter(
            None,
            made[host][batches[host][done[host]] :],
        ):
            unfinished.append(number)
    assert there.oldest_unfinished() == min(unfinished, default=None)
    hosts[0].said.append(
        Message(
            "failed",
            (0, 1, -1, -1, 0, 0),
            "a mistake",
            (np.zeros(0, np.int64),),
        )
    )
    assert there.take_lost() == {
        number: None if change < 0 else change for number, change in wanted.items()
    }
    assert there.oldest_unfinished() is None


def test_who_waits_for_rows_hears_that_they_were_given_up():
    hosts = [Host() for _ in range(N_HOSTS)]
    there, links = executor(hosts)
    rows = RemoteRows(links[0], 3, lambda: None)
    hosts[1].said.append(
        Message(
            "failed",
            (0, 1, -1, -1, 0, 0),
            "a mistake",
            (np.zeros(0, np.int64),),
        )
    )
    there.take_lost()
    with pytest.raises(
        HostError,
        match=r"host `host0`: expected what dispatch 3 reads back, got that it was given up",
    ):
        rows.block_until_ready()
