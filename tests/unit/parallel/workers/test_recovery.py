"""What becomes of losses while the losses before them are made good; without processes."""

import pytest

from ampjax.errors import HostDiedError
from ampjax.parallel.workers.recovery import Recoverer


def lost(name):
    return HostDiedError(name, "a process that goes on", "its end", "Restore.")


def a_recoverer(n_losses):
    """One whose steps are lost again so many times; what it has done."""
    done = []
    losses = [lost(f"worker-{i}") for i in range(1, n_losses + 1)]

    def again(parts):
        if len(done) % 2 and losses:
            raise losses.pop(0)
        done.append(parts)

    recoverer = Recoverer(
        lambda path: 0,
        lambda params: done.clear(),
        again,
        done.append,
    )
    recoverer.begin_at({})
    for parts in ([1], [2]):
        recoverer.note_step(parts)
    return recoverer, done


@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
def test_a_process_lost_in_a_recovery_makes_it_begin_anew():
    recoverer, done = a_recoverer(n_losses=2)
    recoverer.recover(lost("server-0"), 3)
    assert done == [[1], [2]]
    (recovery,) = recoverer.recoveries
    assert [
        name in recovery.error for name in ("server-0", "worker-1", "worker-2", "worker-3")
    ] == [True] * 3 + [False]


@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
def test_states_that_were_assigned_come_between_the_steps():
    done = []
    recoverer = Recoverer(
        lambda path: 0,
        lambda params: done.clear(),
        done.append,
        done.append,
    )
    recoverer.begin_at({})
    recoverer.note_step([1])
    recoverer.note_state({"rate": 2})
    recoverer.note_step([3])
    recoverer.recover(lost("server-0"), 3)
    assert done == [[1], {"rate": 2}, [3]]


@pytest.mark.filterwarnings("ignore:ampjax. :RuntimeWarning")
def test_losses_again_and_again_are_an_error():
    recoverer, _ = a_recoverer(n_losses=4)
    with pytest.raises(HostDiedError, match="worker-3") as caught:
        recoverer.recover(lost("server-0"), 3)
    assert caught.value.__notes__ == [
        "That was time 4 without a new step, so it was not tried again."
    ]
    assert not recoverer.recoveries
