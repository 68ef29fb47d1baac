"""A host: carries out the driver's operations for its memory spaces, in order, and reports its progress.

It decides one thing by itself: which launches, of those that wait, one call carries out. At the first error it stops: it carries out nothing
more until all hosts have given up what is in flight, since what follows may need what was not computed.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import jax
import numpy as np

from ampjax.cluster.wire.channel import Channel
from ampjax.cluster.wire.message import Message
from ampjax.engine.executor import Executor
from ampjax.engine.kernels.coalescing import Coalesced, n_coalesced
from ampjax.engine.kernels.launch import CHANGES_ONLY, Launch
from ampjax.engine.timing.launch_timer import LaunchTimer
from ampjax.hosts.layout import HostLayout
from ampjax.hosts.operations import CHANGE, FEED, FORGET, LAUNCH, TAKE, Names, Operation, operations
from ampjax.hosts.questions import Answer, answer, leaves_of, with_leaves
from ampjax.hosts.row_exchange import GivenUp, RowExchange, RowsFailed, Slot
from ampjax.sched.decisions.dispatch import BACKWARD, DIRECTIONS, UPDATE
from ampjax.sched.decisions.packs import PackMemory
from ampjax.sched.decisions.parameter_changes import Average, Change, Merge, nodes_of
from ampjax.sched.layout.columns import TRASH

AHEAD = 2
"""Batches that a host has issued to its devices, at most, before it waits for the first of them."""

now_ns = time.perf_counter_ns
"""The clock by which a host times what it carries out."""


class ServingHost:
    """Carries out batches of operations.

    It has more than 15 methods and twelve attributes: a method for each operation that the driver may send, and what several of them need.

    Args:
      number: The host's number.
      executor: Keeps its memory spaces.
      layout: Which host has what.
      driver: The channel to the driver.
      peers: The channels to the other hosts, by number.
    """

    def __init__(
        self,
        number: int,
        executor: Executor,
        layout: HostLayout,
        driver: Channel,
        peers: Mapping[int, Channel],
    ):
        self._number = number
        self._executor = executor
        self._layout = layout
        self._driver = driver
        self._rows = RowExchange(
            peers,
            self._write,
            self._slots_of,
            self._look_for_the_end,
            now_ns,
        )
        self._names = Names.of(executor.plan)
        self._memory = PackMemory()
        self._inbox: deque[Message] = deque()
        self._under_way: deque[tuple[int, list[Any]]] = (
            deque()
        )  # sequence numbers of batches, and what is ready when they are done
        self._sequence = 0
        self._n_done = 0
        self._is_broken = False
        self._worker_of = {space: worker for worker, space in enumerate(executor.plan.spaces)}
        spaces = layout.spaces_of(number)
        self._workers = [self._worker_of[space] for space in spaces if space in self._worker_of]
        self._timer: LaunchTimer | None = None  # while the driver traces a run
        self._own_answers = {
            "clock": self._tell_clock,
            "time": self._time,
            "times": self._tell_times,
        }

    def serve(self) -> None:
        """Carries out all batches until the driver says that the run is over."""
        while True:
            message = self._next()
            if message is None:
                continue
            if message.kind == "end":
                return
            if message.kind == "batch":
                self._batch(message)
            elif message.kind == "abandon":
                self._abandon(*message.numbers)
            # Questions are answered behind all batches before them, rows from other hosts included.
            elif self._finishes_rows():
                self._driver.send(answer(self._executor, self._names, message, self._own_answers))

    def _finishes_rows(self) -> bool:
        """Writes the rows that are still on their way, before a question is answered; False if everything in flight has been given up."""
        return self._is_broken or self._does(self._rows.finish)

    def _does(self, work: Callable[[], object]) -> bool:
        """Runs some work for batches that are under way, and reports a failure; False if everything in flight has been given up."""
        try:
            work()
        except GivenUp:
            self._is_broken = True
            return False
        except Exception as error:
            self._stop(error)
        return True

    def _next(self) -> Message | None:
        """The next message; meanwhile says which batches are done."""
        if self._inbox:
            return self._inbox.popleft()
        # Messages first; with nothing to do, this host waits for its devices, and only then for the
        # driver.
        message = self._driver.receive(0.0)
        if message is None and self._under_way:
            self._does(self._wait_for_oldest)
            return None
        return message or self._driver.receive(1.0)

    def _say_what_is_done(self) -> None:
        """Says which batches are done, without waiting for any: the driver decides on more meanwhile."""
        while self._under_way and all(fence.is_ready() for fence in self._under_way[0][1]):
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        sequence, fences = self._under_way.popleft()
        # Rows go out first: another host may wait for them while these devices are still at work.
        self._rows.send_all(sequence)
        jax.block_until_ready(fences)
        self._driver.send(Message("done", (self._rows.epoch, sequence)))

    # -- batches

    def _batch(self, message: Message) -> None:
        epoch, sequence = message.numbers
        if epoch != self._rows.epoch or self._is_broken:
            return  # of a time before all was given up, or behind an error
        # Batches come in order, so a gap is an error of the wire.
        if sequence != self._sequence + 1:
            self._fail(
                sequence, None, f"batch {sequence} came after batch {self._sequence}: some are lost"
            )
            return
        self._sequence = sequence
        self._n_done = 0
        launch = None
        try:
            waiting = list(operations(message.arrays, self._names, self._memory))
            # Operation by operation, in the driver's order; those that coalesce in one call.
            while self._n_done < len(waiting):
                launch = None  # a batch that turns out to have failed is an earlier one
                self._say_what_is_done()
                first = waiting[self._n_done]
                launch = first.what if isinstance(first.what, Launch) else None
                self._n_done += self._carry_out(
                    first,
                    islice(waiting, self._n_done + 1, None),
                )
            # Readings are awaited by the driver, so they go out before this host waits for
            # anything.
            self._hand_in_readings()
            if self._timer is not None:
                self._timer.collect()
            self._under_way.append((sequence, self._fences()))
            launch = None
            # Devices may lag by a few batches, no more: memory of batches is bounded.
            while len(self._under_way) > AHEAD:
                self._wait_for_oldest()
        except GivenUp:
            self._is_broken = True
        except RowsFailed as error:
            self._stop(error)
        except Exception as error:  # whatever a body, or XLA, has raised
            self._fail(sequence, launch, "".join(traceback.format_exception(error)))

    def _fail(
        self,
        sequence: int,
        launch: Launch | None,
        text: str,
    ) -> None:
        self._is_broken = True
        of_launch = (-1, -1, 0, 0)
        instances = np.zeros(0, np.int64)
        if launch is not None:
            of_launch = (
                launch.number,
                launch.stage,
                DIRECTIONS.index(launch.direction),
                launch.n_messages,
            )
            instances = np.unique(launch.ids).astype(np.int64)
        self._driver.send(
            Message(
                "failed",
                (self._rows.epoch, sequence, *of_launch),
                text,
                (instances,),
            )
        )

    def _stop(self, error: Exception) -> None:
        """Reports that something could not be done for a batch under way; nothing after the failure will be done."""
        self._under_way.clear()
        if isinstance(error, RowsFailed):
            batch = error.batch
            launch = error.launch
            cause = error.__cause__ or error
        else:  # whatever XLA has raised, or another host that can't be reached
            batch = self._sequence
            launch = None
            cause = error
        self._fail(batch, launch, "".join(traceback.format_exception(cause)))

    def _carry_out(self, operation: Operation, behind: Iterator[Operation]) -> int:
        """Carries out an operation, or several launches in one call. Gives how many."""
        what = operation.what
        executor = self._executor
        rows = self._rows
        # Rows that others may wait for go out as soon as they are there.
        rows.send_computed()
        if operation.code == LAUNCH:
            assert isinstance(what, Launch)
            # The launch may read rows of another host, or overwrite slots that these are to go to.
            rows.write_for(what)
            # A launch that is timed goes alone, so that its time is its own.
            if self._timer is not None and self._timer.wants(what):
                behind = iter(())
            together = [what]
            n = n_coalesced(what, self._next_launches(behind, together), executor.can_coalesce)
            self._issue(together[:n])
            return n
        if operation.code == FEED:
            executor.feed([what])  # type: ignore[list-item] - a feed
        elif operation.code == CHANGE:
            self._change(what, operation.number)  # type: ignore[arg-type] - a change
        elif operation.code == FORGET:
            rows.finish()
            executor.abandon()
        elif operation.code == TAKE:
            self._take(what, operation.peer)  # type: ignore[arg-type] - a launch
        else:
            rows.await_rows(operation.peer, what)  # type: ignore[arg-type]
        return 1

    def _next_launches(
        self, behind: Iterator[Operation], together: list[Launch]
    ) -> Iterator[Launch]:
        """The launches that come next, up to one that needs rows which have not come; each is also added to `together`."""
        for operation in behind:
            launch = operation.what
            if (
                operation.code != LAUNCH
                or not isinstance(launch, Launch)
                or self._rows.needs(launch)
            ):
                return
            together.append(launch)
            yield launch

    def _issue(self, launches: Coalesced) -> None:
        """Issues launches that coalesce, and the parameter changes of the last one."""
        if self._timer is None:
            self._executor.issue(launches)
            return

        def change(n_changed: int) -> None:
            for each in launches[-1].changes[n_changed:]:
                self._executor.change(each)

        self._timer.carry_out(
            launches,
            lambda: self._executor.run(launches),
            change,
        )

    def _take(self, launch: Launch, peer: int) -> None:
        """Reads a transfer's rows, which go to another host."""
        self._rows.write_for(launch)
        # Untimed, rows are sent when they have been computed, and this host goes on.
        if self._timer is None:
            self._rows.send_later(
                self._sequence,
                peer,
                launch,
                self._executor.take(launch),
            )
            return
        own_launch = launch._replace(worker=self._worker_at(launch, launch.direction == BACKWARD))
        # Timed, the read is waited for, and so must be sent at once.
        rows = self._timer.read(
            own_launch,
            lambda: np.asarray(self._executor.take(launch)),
        )
        self._rows.send_later(self._sequence, peer, launch, rows)
        self._rows.send_all()

    def _write(
        self,
        launch: Launch,
        waited_ns: int,
        rows: np.ndarray,
    ) -> None:
        """Writes a transfer's rows, which have come from another host; this host has waited for the rows since `waited_ns`."""
        timer = self._timer
        if timer is None:
            self._executor.put(launch, rows)
            return
        own_launch = launch._replace(worker=self._worker_at(launch, launch.direction != BACKWARD))
        timer.note_wait(own_launch.worker, waited_ns)

        def put() -> int:
            self._executor.put(launch, rows)
            return 0

        timer.wants(own_launch)
        timer.carry_out([own_launch], put, lambda n_changed: None)

    def _slots_of(self, launch: Launch) -> Iterator[Slot]:
        """The slots that a launch writes: slots of its outputs, or slots to which a transfer's gradients are added. Nobody reads the trash slot."""
        if launch.stage < 0:
            return
        stage = self._executor.plan.stages[launch.stage]
        if launch.direction != BACKWARD:
            arenas = stage.arenas
            rows = launch.out_rows
        elif stage.kind.is_transfer:
            arenas = [port.arena for port in stage.ports]
            rows = launch.in_rows
        else:
            return
        for arena, slots in zip(arenas, rows, strict=False):
            yield from ((arena, slot) for slot in slots.tolist() if slot != TRASH)

    def _worker_at(self, launch: Launch, target: bool) -> int:
        """The worker of this host at one end of a transfer: the reader of its rows, or their maker."""
        plan = self._executor.plan
        stage = plan.stages[launch.stage]
        if target:
            return stage.worker
        # Behind a control node, which no worker runs, any worker of that memory space.
        return plan.worker_of.get(
            stage.wires[0].source.name,
            self._worker_of[stage.spaces[0]],
        )

    def _change(self, change: Change, number: int) -> None:
        """Makes a parameter change that belongs to a launch."""
        timer = self._timer
        if isinstance(change, Average | Merge):
            self._rows.finish()
        if timer is None:
            self._change_parameters(change)
            return
        nodes = nodes_of(change)
        own_node = next(node for node in nodes if self._layout.host_of_node[node] == self._number)
        launch = Launch(
            number,
            self._executor.plan.worker_of[own_node],
            CHANGES_ONLY,
            UPDATE,
            changes=(change,),
        )
        timer.wants(launch)
        timer.carry_out(
            [launch],
            lambda: 0,
            lambda n_changed: self._change_parameters(change),
        )

    def _change_parameters(self, change: Change) -> None:
        """Makes a parameter change; where replicas are on several hosts, hosts exchange their parameters."""
        store = self._executor.store
        elsewhere = dict[str, Any]()
        if isinstance(change, Average | Merge):
            hosts = self._layout.of_nodes(change.nodes)
            shares = store.list_shares(change)
            leaves = leaves_of(shares, list(shares))
            others = [host for host in hosts if host != self._number]
            # All send before any receives: so no two wait for each other.
            for host in others:
                self._rows.send(host, 0, leaves)
            like = next(iter(shares.values()))  # replicas are alike
            for host in others:
                elsewhere |= with_leaves(
                    dict.fromkeys(hosts[host], like),
                    hosts[host],
                    self._rows.receive(host, 0),
                )
        store.change(change, elsewhere)

    def _hand_in_readings(self) -> None:
        """Sends the rows that launches have read back."""
        readings = self._executor.readings
        for number in list(readings):
            self._driver.send(
                Message(
                    "reading",
                    (self._rows.epoch, number),
                    arrays=(np.asarray(readings.pop(number)),),
                )
            )

    def _fences(self) -> list[Any]:
        fences = [self._executor.fences.of_worker(worker) for worker in self._workers]
        return [fence for fence in fences if fence is not None]

    # -- times

    def _tell_clock(self) -> Answer:
        return now_ns(), ()

    def _time(self, every: int, most: int) -> Answer:
        """Begins to time launches."""
        self._timer = LaunchTimer(self._executor.fences, now_ns, every, most)
        return self._rows.bytes_sent, ()

    def _tell_times(self) -> Answer:
        """Ends the timing of launches, and gives the measurements."""
        self._executor.fences.wait()
        assert self._timer is not None
        launches, waits, n_dropped = self._timer.take()
        self._timer = None
        return [self._rows.bytes_sent, now_ns(), n_dropped], (launches, waits)

    def _look_for_the_end(self) -> None:
        # Messages are kept for later; only the end, or a giving up, must not wait.
        while (message := self._driver.receive(0.0)) is not None:
            self._inbox.append(message)
        if any(message.kind in ("abandon", "end") for message in self._inbox):
            raise GivenUp

    def _abandon(self, epoch: int) -> None:
        """Gives up everything in flight, and begins anew: batches count from 1 again."""
        progress = self._sequence, self._n_done
        self._executor.abandon()
        self._under_way.clear()
        self._rows.give_up(epoch)
        self._timer = None
        self._sequence = 0
        self._n_done = 0
        self._is_broken = False
        self._driver.send(Message("abandoned", (epoch, *progress)))
