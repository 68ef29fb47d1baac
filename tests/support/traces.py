"""What holds for the trace of every recorded run."""

import itertools

from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.trace.journal import CHANGES_ONLY, Issue, PassBegins
from ampjax.trace.recording import Recording


def assert_agree(trace, path, plan):
    """One event for each dispatch of a recording, in its worker's order; none overlaps another of its worker; all within the run.

    Hosts write others' rows when they need them, so there transfers are in an order of their own.
    """
    issues = _traced(path)
    error = max(
        (host.error_ns for host in trace.hosts.values()),
        default=0,
    )
    slices = trace.slices
    for worker in range(plan.workers):
        own = [s for s in slices if s.worker == worker]
        decided = [i for i in issues if i.worker == worker]
        told = []
        for s in own:
            if s.kind != "update":
                told.append((s.node, s.kind, s.messages, s.rows))
        wanted = []
        for i in decided:
            if i.stage != CHANGES_ONLY:
                wanted.append(
                    (
                        plan.stages[i.stage].name,
                        _kind(plan.stages[i.stage], i),
                        i.messages,
                        i.rows,
                    )
                )
        if trace.hosts:
            told = sorted(told, key=_of_transfers)
            wanted = sorted(wanted, key=_of_transfers)
        assert told == wanted
        assert sum(s.kind == "update" for s in own) == sum(i.changes > 0 for i in decided)
        assert all(
            one.start_ns <= one.end_ns <= other.start_ns for one, other in itertools.pairwise(own)
        )
    begin = min(run[0] for run in trace.runs)
    end = max(run[1] for run in trace.runs)
    assert all(begin - error <= s.start_ns and s.end_ns <= end + error for s in slices)
    assert trace.n_dropped == 0


def _of_transfers(slice_):
    """Sorts transfers, and leaves all else in its order."""
    return slice_ if slice_[1] == "transfer" else ()


def _traced(path):
    """The dispatches of a recording, but for those at the end of an epoch, which a trace leaves out: a pass over no instances."""
    is_traced = False
    found = []
    for decision in Recording(path).decisions():
        if isinstance(decision, PassBegins):
            is_traced = decision.instances > 0
        elif isinstance(decision, Issue) and is_traced:
            found.append(decision)
    return found


def _kind(stage, issue):
    return "transfer" if stage.kind.is_transfer else DIRECTIONS[issue.direction]
