"""A step's bytes on the paper's cluster, for each model and way to train it.

Rows are counted, not calculated: 48 workers' ids of the papers' batch sizes go through the tables' real homes, whose counters are those
of `parallax-table3`. Rows there are one number wide; bytes grow with the width. Dense variables are as many as the models have
(`jax.eval_shape`), by the formulas that `parallax-table3` holds against measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np
import optax

from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.optim.split_by_rows import split_rows
from ampjax.parallel.homes.placement import place_variables
from ampjax.parallel.homes.row_copies import RowsOnEveryMachine
from ampjax.parallel.homes.row_homes import RowsAtServers
from ampjax.parallel.homes.server_totals import ServerTotals
from ampjax.parallel.homes.wire import MachineWire
from ampjax.parallel.planning.cluster_model import Load
from ampjax.parallel.planning.transfer_costs import all_reduce_bytes, server_bytes
from ampjax.sparse.rewrite.unique_ids import UniqueRows, unique_rows
from ampjax.sparse.table.sharded_table import Table
from experiments.data import zipf
from experiments.models import lm, nmt
from experiments.models.layers import functional
from experiments.models.layers.sampled_softmax import draw
from experiments.parallax import paper

FLOAT = 4


@dataclass(frozen=True)
class Way:
    """How variables are kept together.

    Args:
      dense: `AR` or `PS`.
      sparse: `AR` (AllGatherv) or `PS`.
      together: Whether a machine's workers pull and push together (+LA).
      among: Whether servers fold their own gradients (+OPAU).
    """

    dense: str
    sparse: str
    together: bool = True
    among: bool = True


WAYS: Mapping[str, Way] = {
    "AR": Way("AR", "AR"),
    "naive PS": Way("PS", "PS", together=False, among=False),
    "optimised PS": Way("PS", "PS"),
    "hybrid": Way("AR", "PS"),
    "BASE": Way("PS", "PS", together=False, among=False),
    "+HYB": Way("AR", "PS", together=False, among=False),
    "+LA": Way("AR", "PS", among=False),
    "+OPAU": Way("AR", "PS"),
    "+OPSW": Way("AR", "PS"),  # no model casts its rows, so nothing moves
}


@dataclass(frozen=True)
class Rows:
    """A sparse variable in a step.

    Args:
      n_rows: Rows of the table.
      width: Numbers in a row.
      workers: What each worker reads.
    """

    n_rows: int
    width: int
    workers: Sequence[UniqueRows] = field(repr=False)


@dataclass(frozen=True)
class Step:
    """One step of a model on a number of workers.

    Args:
      dense: Elements of dense variables.
      tables: Sparse variables.
      units: Words or images that one worker trains on.
      clips: Whether the optimizer clips by a norm over sparse variables too.
    """

    dense: int
    tables: Mapping[str, Rows]
    units: float
    clips: bool = False

    def alpha(self, distinct: bool) -> float:
        """The share of all elements that a worker touches, the mean over workers.

        Args:
          distinct: Whether a row that is read several times counts once; the papers count every reading.
        """
        total = self.dense + sum(own.n_rows * own.width for own in self.tables.values())
        touched = (
            own.width * np.mean([len(w.ids if distinct else w.inverse) for w in own.workers])
            for own in self.tables.values()
        )
        return float((self.dense + sum(touched)) / total)


IMAGE_MODELS = {"resnet": 25_557_032, "inception": 27_161_264}
"""Elements of the image models, the auxiliary head included, as the models' tests count them."""


@lru_cache(maxsize=16)
def paper_step(model: str, workers: int) -> Step:
    """A step of a full-size model: the papers' batch of 128 sequences or 64 images for each worker."""
    if model in IMAGE_MODELS:
        return Step(IMAGE_MODELS[model], {}, 64)
    return _lm(workers) if model == "lm" else _nmt(workers)


def _lm(workers: int) -> Step:
    config = lm.Config.full()
    n_samples = config.samples
    assert n_samples is not None  # the paper's softmax is sampled
    shapes = functional.shapes(lm.LanguageModel, config)
    size = config.batch * config.steps
    text = zipf.tokens(workers * size + 1, config.vocabulary)
    inputs = text[:-1].reshape(workers, size)
    targets = text[1:].reshape(workers, size)
    drawn = jax.jit(lambda seed: draw(jax.random.key(seed), n_samples, config.n_classes)[0])
    classes = []
    for w in range(workers):
        classes.append(np.concatenate([targets[w], np.asarray(drawn(w))]))
    read = {
        "embedding": (config.embedding, inputs),
        "softmax": (config.n_features + 1, classes),
    }  # a row and its bias
    tables = {}
    for name, (width, each) in read.items():
        tables[name] = Rows(
            config.vocabulary, width, [unique_rows(ids, config.vocabulary) for ids in each]
        )
    return Step(functional.count(shapes["lstm"]), tables, size)


def _nmt(workers: int) -> Step:
    config = nmt.Config.full()
    shapes = functional.shapes(nmt.Translator, config)
    pairs = zipf.pairs(
        workers * config.batch, config.source_vocabulary, max_length=config.max_length
    )
    tables = {}
    for name, side, n_rows in (
        ("source", pairs.source, config.source_vocabulary),
        ("target", pairs.target, config.target_vocabulary),
    ):
        tables[name] = Rows(
            n_rows,
            config.units,
            _sentences(side, workers, config.batch, n_rows),
        )
    dense = functional.count(
        {name: leaf for name, leaf in shapes.items() if not name.endswith("embedding")}
    )
    words = (len(pairs.source.words) + len(pairs.target.words)) / workers
    return Step(dense, tables, words, clips=True)


def _sentences(
    side: Any,
    workers: int,
    batch: int,
    n_rows: int,
) -> list[UniqueRows]:
    edges = side.ptr[::batch][: workers + 1]
    result = []
    for w in range(workers):
        result.append(unique_rows(side.words[edges[w] : edges[w + 1]], n_rows))
    return result


@dataclass(frozen=True, eq=False)
class Counted:
    """The bytes of a step on machines of so many workers each.

    Args:
      step: The step.
      machines: Machines, each with a server.
      each: Workers of a machine.
    """

    step: Step
    machines: int = paper.MACHINES
    each: int = paper.GPUS_A_MACHINE
    _served_by: dict[tuple[str, bool, bool], tuple[float, float, float]] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def _resources(self) -> Resources:
        # Workers need no devices here: numbers stand for them.
        own = []
        for m in range(self.machines):
            own.append(tuple(range(m * self.each, (m + 1) * self.each)))
        return Resources(tuple(Machine(f"machine-{m}", workers) for m, workers in enumerate(own)))

    def load(self, way: Way) -> Load:
        """The step's bytes if variables are kept together in one way."""
        w = FLOAT * self.step.dense
        n = self.machines
        reduced = all_reduce_bytes(w, n) if way.dense == "AR" else 0.0
        one = (
            server_bytes(w, 1.0, n) if way.dense == "PS" else 0.0
        )  # half is its own, half its server's for others
        dense = reduced + one * (1 if way.together else self.each)
        if way.sparse == "AR":
            gathered = sum(self._gathered(name) for name in self.step.tables)
            return Load(reduced, gathered, one / 2, network=dense + gathered)
        served = [self._served(name, way) for name in self.step.tables]
        network, merged, folded = (sum(own[i] for own in served) for i in range(3))
        return Load(reduced, 0.0, one / 2, folded, merged, dense + network)

    def _gathered(self, name: str) -> float:
        """Bytes of a machine in an AllGatherv, as the home of a gathered variable counts them.

        As in the papers, a row travels as often as a worker reads it: duplicates are not summed before.
        """
        rows = self.step.tables[name]
        wire = MachineWire(self.machines)
        tables = [self._table(rows) for _ in range(self.machines)]
        servers = [(0,)] * self.machines
        home = RowsOnEveryMachine(name, tables, self._resources, wire, servers)
        ids = np.zeros(
            (
                len(rows.workers),
                max(len(own.inverse) for own in rows.workers),
            ),
            np.int32,
        )
        for number, own in enumerate(rows.workers):
            ids[number, : len(own.ids)] = own.ids
        home.push(
            home.pull(rows.workers),
            lambda _: (
                ids,
                np.ones((*ids.shape, 1), np.float32),
            ),
        )
        return rows.width * wire.traffic().per_machine(name)

    def _served(
        self,
        name: str,
        way: Way,
    ) -> tuple[float, float, float]:
        """At servers: a machine's bytes, what a server writes while it merges, and what goes to the chief and back."""
        key = (name, way.together, way.among)
        if key not in self._served_by:
            self._served_by[key] = self._count_served(*key)
        return self._served_by[key]

    def _count_served(
        self,
        name: str,
        together: bool,
        among: bool,
    ) -> tuple[float, float, float]:
        rows = self.step.tables[name]
        wire = MachineWire(self.machines)
        home = RowsAtServers(
            name,
            self._table(rows),
            self._resources,
            wire,
            together,
        )
        pulled = home.pull(rows.workers)
        waiting = home.push(
            pulled,
            lambda replica: np.ones(
                (len(pulled[replica].unique.ids), 1),
                np.float32,
            ),
        )
        network = wire.traffic().per_machine(name)
        clients = []
        for _, replicas in self._resources.clients(together):
            clients.append(pulled[replicas[0]].unique.ids)
        merged = FLOAT * rows_written(clients, rows.n_rows) / self.machines
        before = wire.traffic()
        if self.step.clips:
            ServerTotals(self._resources, wire, among).totals(
                0,
                name,
                home,
                waiting[0],
                [],
            )
        folded = (wire.traffic() - before).of_machine(0, name)
        return rows.width * network, rows.width * merged, rows.width * folded

    def _table(self, rows: Rows) -> Table:
        """A table whose rows are one number wide, in a partition for each machine."""
        values = np.broadcast_to(
            np.float32(0),
            (rows.n_rows, 1),
        )
        if self.step.clips:
            tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
        else:
            tx = optax.sgd(0.1)
        shapes = {"table": jax.ShapeDtypeStruct(values.shape, values.dtype)}
        (rule,) = split_rows(tx, shapes, ["['table']"]).rules.values()
        servers = place_variables(
            {"table": (rows.n_rows, FLOAT)},
            {"table": self.machines},
            self.machines,
        )["table"]
        return Table(values, rule, partitions=self.machines, servers=servers)


def rows_written(clients: Sequence[np.ndarray], n_rows: int) -> int:
    """Rows that are written while clients' gradients are merged: after each client, all rows of the sum so far.

    Args:
      clients: The rows of each client, each once.
      n_rows: Of the table.

    >>> rows_written([np.array([0, 1]), np.array([1, 2])], 4)
    5
    """
    seen = np.zeros(n_rows, bool)
    written = 0
    for ids in clients:
        seen[ids] = True
        written += int(np.count_nonzero(seen))
    return written
