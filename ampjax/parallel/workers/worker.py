"""A worker: one replica in a process of its own. It pulls rows, computes, pushes their gradients, and keeps a copy of the dense variables.

Dense gradients are averaged inside of its program, which is one with those of the other workers (`jax.distributed`). So all copies get the
same update and stay equal. What happens when is the runner's affair.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ampjax.cluster.wire.channel import Channel
from ampjax.devices.allreduce import issue_collective
from ampjax.devices.per_replica import Device, shard_of, spread_inputs
from ampjax.devices.random_keys import data_of, wrapped_like
from ampjax.errors import TableError
from ampjax.optim.split_update import Proposal
from ampjax.parallel.homes.all_homes import naming_variable
from ampjax.parallel.homes.dense_homes import DenseOnDevices
from ampjax.parallel.homes.row_homes import PulledRows
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.steps.step_programs import GradientResult, mapped_gradients
from ampjax.parallel.workers.row_servers import RowServers
from ampjax.parallel.workers.worker_messages import (
    TREES,
    Adopt,
    Answer,
    Places,
    Propose,
    Question,
    RowWork,
    StepDone,
    StepWork,
    Write,
)
from ampjax.parallel.workers.worker_program import WorkerProgram
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
        self, program: WorkerProgram, replica: int, here: Device, everywhere: Sequence[Device], servers: RowServers
    ):
        self._replica, self._here, self._servers = replica, here, servers
        self._is_checked, self._batch = program.check_finite, program.batch
        self._loss = program.loss()
        self._split = program.split(self._loss)
        self._shapes = program.shapes(self._loss, self._split)
        self._program = mapped_gradients(self._loss, program.has_aux, everywhere, program.reduction)
        self._places: dict[str, SplitPlace] = {}
        self._dense: DenseOnDevices | None = None
        self._grads: Tree = None
        self._proposal: Proposal | None = None

    def serve(self, driver: Channel) -> None:
        """Does what the runner says until that is gone.

        Args:
          driver: The channel to it.
        """
        while (message := driver.receive()) is not None:
            answer = self.do(TREES.unpack(message))
            if answer is not None:
                driver.send(TREES.pack("answer", answer))

    def do(self, what: Any) -> Answer | StepDone | None:
        """Does one thing.

        Args:
          what: What the runner says.

        Returns:
          What it is told; None for nothing.
        """
        match what:
            case StepWork():
                return self._step(what)
            case Adopt():
                self._adopt()
            case Propose(number, totals):
                self._proposal = self._home.propose(self._grads, totals)
                return self._answer(number, self._proposal.shared)
            case Question(number, "shared", turn, totals):
                return self._answer(number, self._home.shared(turn, self._grads, totals))
            case Question(number, "gradients"):
                return self._answer(number, _leaves(self._home.fetch(self._grads)))
            case Question(number, "read"):
                return self._answer(number, [_leaves(tree) for tree in self._home.read()])
            case Places(tables):
                self._places.update(tables)
            case Write(params, state):
                self._write(params, state)
        return None

    def _adopt(self) -> None:
        assert self._proposal is not None
        self._home.adopt(self._proposal)

    @property
    def _home(self) -> DenseOnDevices:
        assert self._dense is not None
        return self._dense

    def _answer(self, number: int, value: Any) -> Answer | None:
        return Answer(number, value) if self._replica == 0 else None

    def _write(self, params: Sequence[np.ndarray], state: Sequence[np.ndarray]) -> None:
        params, state = (tree_of(shape, leaves) for shape, leaves in zip(self._shapes, (params, state), strict=True))
        if self._dense is None:
            self._dense = DenseOnDevices(self._split, params, [self._here])
        self._dense.write(params, state)
        self._grads = self._proposal = None

    # ---- a step ------------------------------------------------------------------------------------------------------

    def _step(self, work: StepWork) -> StepDone:
        if work.adopts:
            self._adopt()
        traffic = {path: {server: ByteCounts() for server in self._places[path].placement} for path in work.tables}
        clients = {path: self._client(path, traffic[path], of.updates) for path, of in work.tables.items()}
        pulled = {path: self._pull(path, clients[path], of_table) for path, of_table in work.tables.items()}
        sizes = _Agreed({path: of_table.size for path, of_table in work.tables.items()})
        (given,) = batch_rows.inputs(1, self._loss, {path: [rows] for path, rows in pulled.items()}, sizes)
        inputs = spread_inputs([(*given._replace(ids={}), tree_of(self._batch, work.batch))], [self._here])
        arguments = self._params(work), *inputs
        result: GradientResult = issue_collective(self._program, *arguments, token=lambda result: result.loss)
        self._grads, self._proposal = result.grads, None
        finite = np.array(shard_of(result.finite, 0))
        done = StepDone(
            work.number,
            np.array(shard_of(result.loss, 0)),
            [np.array(shard_of(leaf, 0)) for leaf in jax.tree.leaves(result.aux)],
            finite,
            traffic,
            grads=()
            if work.params is None
            else [np.array(shard_of(leaf, 0)) for leaf in jax.tree.leaves(result.grads)],
        )
        if self._is_checked and not finite.all():
            return done
        try:
            for path, of_table in work.tables.items():
                grads = shard_of(result.rows[path], 0)
                push = functools.partial(self._push, path, clients[path], of_table, pulled[path], grads)
                naming_variable(path, push)
        except TableError as error:
            return done._replace(error=error)
        if work.params is None and self._split.n_rounds == 0:  # nothing has to be known of the tables' gradients first
            self._proposal = self._home.propose(self._grads, [])
            done = done._replace(shared=self._proposal.shared if self._replica == 0 else None)
        return done

    def _params(self, work: StepWork) -> Tree:
        if work.params is None:
            return self._home.pull()
        return spread_inputs([tree_of(self._shapes[0], work.params)], [self._here])

    def _client(self, path: str, counts: Mapping[int, ByteCounts], updates: int) -> RowClient:
        place = self._places[path]
        return RowClient(place, functools.partial(self._servers.ask, place.key, updates=updates), counts)

    def _pull(self, path: str, client: RowClient, work: RowWork) -> PulledRows:
        dtype, columns = work.reading
        rows = client.pull(work.rows.ids, dtype or self._places[path].wire, columns)
        return PulledRows(work.rows, rows, work.reading)

    def _push(self, path: str, client: RowClient, work: RowWork, pulled: PulledRows, grads: np.ndarray) -> None:
        place = self._places[path]
        ids, sums = ready_to_push(pulled.unique.ids, grads[: len(pulled.unique.ids)], place.types, place.wire)
        client.push(work.update, ids, sums, work.reading.columns, self._replica)


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
