"""What a scheduler says of itself: that of integers says what the one that routes messages says."""

import re

from ampjax.schedule.diagnose.deadlock import waiting
from ampjax.schedule.diagnose.story import describe, story


def numbers(stats):
    """Statistics as plain numbers."""
    nodes = {
        name: (n.updates, n.gradients, n.staleness_sum, n.staleness_max, n.histogram.tolist())
        for name, n in stats.nodes.items()
    }
    return stats.instances, stats.most_in_flight, stats.stages, nodes


def assert_same_statistics(routing, integers):
    """The same record, once both have been asked for who has ended."""
    assert routing.finished == integers.finished
    assert numbers(routing.stats) == numbers(integers.stats)
    assert repr(routing.stats) == repr(integers.stats)


def assert_same_stories(routing, integers, instances):
    """The same stories of some instances."""
    s = integers.snapshot()
    for instance in instances:
        assert story(s, instance, {}) == routing.story(instance)


def assert_same_in_a_trace(routing, integers, grows):
    """What a tracer asks of a worker: which queues hold how much, and, unless programs grow, why it has nothing to do."""
    for worker in range(routing.plan.workers):
        queues = [[(q.stage.name, q.direction, q.items) for q in s.waiting_for(worker)] for s in (routing, integers)]
        assert sorted(queues[0]) == sorted(queues[1])  # those that one event has filled may have come in another order
        assert grows or routing.held_up(worker) == integers.held_up(worker)


def assert_same_description(routing, integers):
    """The same words about where an error happened, had the latest dispatch failed."""
    *_, old = routing.history
    *_, new = integers.snapshot().log
    assert describe(integers.snapshot(), new) == routing.describe(old)


def assert_same_waiting(routing, integers):
    """The same messages wait for the same ports.

    Of a message at another port than the first, and of a group, no more is told than what programs keep: the key, the group's own state.

    Returns:
      Whether states are the same, too.
    """
    old, new = sorted(routing.waiting()), sorted(waiting(integers.snapshot()))
    assert [_without_state(line) for line in old] == [_without_state(line) for line in new]
    return old == new


def _without_state(line):
    return re.sub(r"State\(instance=(\d+)[^)]*\)", r"State(\1)", line)
