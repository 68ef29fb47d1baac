"""A worker: one replica in a process of its own, which pulls rows, computes, pushes gradients, and keeps a copy of the dense variables.

Dense gradients are averaged inside of its program, which is one with those of the other workers (`jax.distributed`). So all copies get the
same update and stay equal. Where replicas don't step together, its program is its own. What happens when is the runner's affair.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ampjax.cluster.wire.channel import Channel
from ampjax.devices.per_replica import Device
from ampjax.devices.random_keys import data_of, wrapped_like
from ampjax.errors import TableError
from ampjax.optim.split_update import Proposal
from ampjax.parallel.homes.all_homes import naming_variable
from ampjax.parallel.homes.dense_homes import DenseOnDevices
from ampjax.parallel.homes.row_homes import PulledRows
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.workers.replica_program import compile_alone, compile_together
from ampjax.parallel.workers.row_servers import Asked, RowServers
from ampjax.parallel.workers.worker_messages import (
    TREES,
    Adopt,
    Ahead,
    Go,
    Places,
    Propose,
    Question,
    StepDone,
    StepWork,
    WorkerAnswer,
    WriteVariables,
)
from ampjax.parallel.workers.worker_program import WorkerProgram
from ampjax.sparse.rewrite.pulled_step import SparseProgram
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.row_gradients import ready_to_push
from ampjax.sparse.table.row_client import RowClient, SplitPlace

Tree = Any


class _Agreed(batch_rows.PaddedSizes):
    """Padded sizes that the runner has chosen for all workers.

    Args:
      sizes: By table.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self._sizes = dict(sizes)

    def at_least(self, path: str, n: int) -> int:
        """The padded size for the rows of a table."""
        return self._sizes[path]


class _Pull(NamedTuple):
    """Rows of one table that have been asked for.

    Args:
      places: Which of the rows of a step they are, `[k]`, or all.
      asked: The requests.
      rows_of: Makes the rows of the answers.
    """

    places: np.ndarray | slice
    asked: list[Asked]
    rows_of: Callable[[Mapping[int, Any]], np.ndarray]


class _Share(NamedTuple):
    """A share of a step.

    Args:
      work: The share.
      traffic: By table and server, what has gone there and come back.
      clients: By table, what pulls and pushes its rows.
      nbytes: By table and server, the bytes of the rows that it reads.
      pulls: By table, the rows that were asked for.
    """

    work: StepWork
    traffic: dict[str, dict[int, ByteCounts]]
    clients: dict[str, RowClient]
    nbytes: dict[str, dict[int, int]]
    pulls: dict[str, list[_Pull]]


class Worker:
    """One replica.

    Args:
      program: What it is made from.
      replica: Its number.
      here: Its device.
      everywhere: The devices of all replicas, in order.
      servers: The servers.
    """

    def __init__(
        self,
        program: WorkerProgram,
        replica: int,
        here: Device,
        everywhere: Sequence[Device],
        servers: RowServers,
    ):
        self._replica = replica
        self._here = here
        self._servers = servers
        self._made = program
        self._loss = program.loss()
        self._split = program.split(self._loss)
        self._shapes = program.shapes(self._loss, self._split)
        if program.is_sync:
            self._program = compile_together(
                self._loss, program.has_aux, here, everywhere, program.reduction
            )
        else:
            self._program = compile_alone(self._loss, program.has_aux, here)
        self._places: dict[str, SplitPlace] = {}
        self._dense: DenseOnDevices | None = None
        self._grads: Tree = None
        self._proposal: Proposal | None = None
        self._ahead: _Share | None = None

    def serve(self, driver: Channel) -> None:
        """Carries out the runner's messages until the runner is gone."""

        def heard() -> Any:
            message = driver.receive()
            assert message is not None  # it waits as long as the runner is there
            return TREES.unpack(message)

        while True:
            answer = self._do(heard(), heard)
            if answer is not None:
                driver.send(TREES.pack("answer", answer))

    def _do(
        self,
        what: Any,
        heard: Callable[[], Any],
    ) -> WorkerAnswer | StepDone | None:
        """Carries out one message of the runner, and returns the answer. `heard` waits for the next message."""
        match what:
            case Go():
                return self._step(what, heard)
            case Adopt():
                self._adopt()
            case Propose(number, totals):
                self._proposal = self._home.propose(self._grads, totals)
                return self._answer(number, self._proposal.shared)
            case Question(number, "shared", turn, totals):
                return self._answer(
                    number,
                    self._home.shared(turn, self._grads, totals),
                )
            case Question(number, "gradients"):
                return self._answer(
                    number,
                    _leaves(self._home.fetch(self._grads)),
                )
            case Question(number, "read"):
                return self._answer(
                    number,
                    [_leaves(tree) for tree in self._home.read()],
                )
            case Places(tables):
                self._places.update(tables)
            case WriteVariables(params, state):
                self._write(params, state)
        return None

    def _adopt(self) -> None:
        assert self._proposal is not None
        self._home.adopt(self._proposal)

    @property
    def _home(self) -> DenseOnDevices:
        assert self._dense is not None
        return self._dense

    def _answer(self, number: int, value: Any) -> WorkerAnswer | None:
        return WorkerAnswer(number, value) if self._replica == 0 else None

    def _write(
        self,
        params: Sequence[np.ndarray],
        state: Sequence[np.ndarray],
    ) -> None:
        params, state = (
            tree_of(shape, leaves)
            for shape, leaves in zip(self._shapes, (params, state), strict=True)
        )
        if self._dense is None:
            self._dense = DenseOnDevices(self._split, params, [self._here])
        self._dense.write(params, state)
        self._grads = self._proposal = None

    # ---- a step ------------------------------------------------------------------------------------------------------

    def _step(
        self,
        go: Go,
        heard: Callable[[], Any],
    ) -> StepDone:
        if go.adopts:
            self._adopt()
        share = self._share_of(go)
        work = share.work
        traffic = share.traffic
        pushes = {path: {} for path in share.work.tables}
        pulled = {path: self._collect_rows(path, share) for path in work.tables}
        result = self._program.run(
            self._params(go),
            _inputs(self._loss, work, pulled),
            tree_of(self._made.batch, work.batch),
        )
        self._grads = result.grads
        self._proposal = None
        if go.is_followed:  # while it is computed
            self._ask_ahead(heard())
        entry = self._program.entry
        finite = entry(result.finite)
        aux = list(map(entry, jax.tree.leaves(result.aux)))
        done = StepDone(
            work.number,
            entry(result.loss),
            aux,
            finite,
            traffic,
            pushes,
        )
        if go.params is not None:
            done = done._replace(
                grads=list(
                    map(
                        entry,
                        jax.tree.leaves(result.grads),
                    )
                )
            )
        if self._made.check_finite and not finite.all():
            return done
        try:
            for path, of_table in work.tables.items():
                if of_table.update is not None:
                    grads = jax.tree.map(entry, result.rows[path])
                    push = functools.partial(
                        self._push, path, share, pulled[path], grads, pushes[path]
                    )
                    naming_variable(path, push)
        except TableError as error:
            return done._replace(error=error)
        # Without rounds nothing has to be known of the tables' gradients first.
        if go.params is None and self._split.n_rounds == 0:
            self._proposal = self._home.propose(self._grads, [])
            done = done._replace(shared=self._proposal.shared if self._replica == 0 else None)
        return done

    def _params(self, go: Go) -> Tree:
        if go.params is None:
            return self._home.pull()
        return self._program.placed(tree_of(self._shapes[0], go.params))

    # ---- rows --------------------------------------------------------------------------------------------------------

    def _share_of(self, go: Go) -> _Share:
        """The share of a step; some of its rows may have been asked for."""
        ahead = self._ahead
        self._ahead = None
        if go.work is None:
            assert ahead is not None
            return ahead
        for pulls in (
            () if ahead is None else ahead.pulls.values()
        ):  # the runner has thought better of it
            for pull in pulls:
                self._servers.forget(pull.asked)
        return self._new_share(go.work)

    def _ask_ahead(self, ahead: Ahead) -> None:
        if ahead.work is not None:
            self._ahead = self._new_share(ahead.work)
            self._ask(self._ahead)

    def _new_share(self, work: StepWork) -> _Share:
        """A share, nothing of which has been asked for."""
        share = _Share(work, {}, {}, {}, {})
        for path, of_table in work.tables.items():
            place = self._places[path]
            share.traffic[path] = {server: ByteCounts() for server in place.placement}
            push = functools.partial(self._servers.push, place.key)
            share.clients[path] = RowClient(place, push, share.traffic[path])
            share.nbytes[path] = place.bytes_at_servers(
                of_table.rows.ids,
                *of_table.reading,
            )
        return share

    def _ask(self, share: _Share, wanted: str | None = None) -> None:
        """Asks for the rows of tables that were not requested yet, within the room for waiting answers.

        Args:
          share: The share.
          wanted: A table whose answers are taken next, however large they are; None while a step is computed, when none are taken.
        """
        for path, work in share.work.tables.items():
            if path in share.pulls:
                continue
            if path == wanted or self._servers.has_room(
                share.nbytes[path], 1 if work.early is None else 2
            ):
                share.pulls[path] = list(self._pulls(share, path))

    def _pulls(self, share: _Share, path: str) -> Iterator[_Pull]:
        """Asks for rows of a table: at once for rows that the last update leaves unchanged, after the update for the others."""
        work = share.work.tables[path]
        client = share.clients[path]
        ids = work.rows.ids
        dtype, columns = work.reading
        place = client.place
        parts: list[tuple[np.ndarray | slice, int]] = [(slice(None), work.updates)]
        if work.early is not None:
            parts = [
                (work.early, work.updates - 1),
                (~work.early, work.updates),
            ]
        for places, updates in parts:
            announced = () if self._made.is_sync else (True,)
            calls, rows_of = client.pull_calls(
                ids[places], dtype or place.wire, columns, *announced
            )
            if len(parts) == 1:
                nbytes = share.nbytes[path]
            else:
                nbytes = place.bytes_at_servers(ids[places], dtype, columns)
            yield _Pull(places, self._servers.begin(place.key, calls, updates, nbytes), rows_of)

    def _collect_rows(self, path: str, share: _Share) -> PulledRows:
        self._ask(share, path)
        work = share.work.tables[path]
        pulls = share.pulls[path]
        pieces = []
        for pull in pulls:
            pieces.append(pull.rows_of(self._servers.finish(pull.asked)))
        rows = pieces[0]
        if len(pieces) > 1:
            rows = np.empty(
                (len(work.rows.ids), *rows.shape[1:]),
                rows.dtype,
            )
            for pull, piece in zip(pulls, pieces, strict=True):
                rows[pull.places] = piece
        return PulledRows(work.rows, rows, work.reading)

    def _push(
        self,
        path: str,
        share: _Share,
        pulled: PulledRows,
        grads: Any,
        pushes: dict[int, int],
    ) -> None:
        """Pushes row gradients: this worker's, or, where gradients were gathered, all replicas'."""
        work = share.work.tables[path]
        place = self._places[path]
        assert work.update is not None
        pushed = {self._replica: (pulled.unique.ids, grads)}
        if self._made.reduction.gather:
            pushed = {}
            for i, (ids, of_one) in enumerate(zip(*grads, strict=True)):
                pushed[i] = (ids[ids < place.layout.n_rows], of_one)
        for replica, (ids, of_one) in pushed.items():
            ids, sums = ready_to_push(
                ids,
                of_one[: len(ids)],
                self._split.rules[path],
                place.wire,
            )
            columns = work.reading.columns
            for server in share.clients[path].push(
                work.update, ids, sums, columns, replica, copy=False
            ):
                pushes[server] = pushes.get(server, 0) + 1


def _inputs(
    loss: SparseProgram,
    work: StepWork,
    pulled: Mapping[str, PulledRows],
) -> Any:
    """The rows of a step as one replica's inputs of the program."""
    sizes = _Agreed({path: of_table.size for path, of_table in work.tables.items()})
    (inputs,) = batch_rows.inputs(
        1,
        loss,
        {path: [rows] for path, rows in pulled.items()},
        sizes,
    )
    return inputs


def tree_of(shapes: Tree, leaves: Sequence[np.ndarray]) -> Tree:
    """A tree from leaves that have travelled.

    Args:
      shapes: A tree of that structure; its keys become keys.
      leaves: The leaves, of keys their integers.
    """
    old, structure = jax.tree.flatten(shapes)
    return jax.tree.unflatten(structure, map(wrapped_like, old, leaves))


def _leaves(tree: Tree) -> list[np.ndarray]:
    return [data_of(leaf) for leaf in jax.tree.leaves(tree)]
