"""Rows: how many each invocation takes in and makes, checked where inputs or topologies must fit each other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.instances import Topology
from ampjax.ir.state import HANDLE, Layout, State
from ampjax.plan.stages import Stage
from ampjax.unfold.rules.edges import EdgeIndex
from ampjax.unfold.rules.message_columns import MessageTable
from ampjax.unfold.rules.routes import find_topology

Topologies = Mapping[str, Mapping[int, Topology]]


class OutputSizes:
    """Finds the output rows of a ragged stage's invocations.

    Args:
      stage: The stage.
      layout: The column of each state field.
      table: The messages.
      topologies: Maps of the instances: pump name to instance handle to `Topology`.
    """

    def __init__(
        self,
        stage: Stage,
        layout: Layout,
        table: MessageTable,
        topologies: Topologies,
    ):
        self._stage = stage
        self._layout = layout
        self._table = table
        self._topologies = topologies
        self._edges = EdgeIndex(stage, topologies) if stage.chain is not None else None

    def of(
        self,
        states: np.ndarray,
        inputs: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Counts the rows of invocations.

        Args:
          states: `[n, width]`: the states of port 0's messages.
          inputs: `[n, ports]`: the input messages, by their numbers in the table.

        Returns:
          `[n]` input rows of port 0; `[n]` rows of each output.

        Raises:
          MessageError: If inputs have different numbers of rows, or a topology does not fit.
        """
        stage = self._stage
        sizes = self._table.size[inputs]
        rows = sizes[:, 0]
        if stage.kind.collects:
            return rows, self._count_collected(states, sizes)
        for port in range(1, len(stage.ports)):
            self._require_equal(states, port, sizes)
        if self._edges is not None:
            return rows, self._edges.of(states[:, HANDLE], rows).n_rows
        return rows, rows if stage.outputs and stage.outputs[0].ragged else np.ones(
            len(rows), np.int64
        )

    def _require_equal(
        self,
        states: np.ndarray,
        port: int,
        sizes: np.ndarray,
    ) -> None:
        bad = np.flatnonzero(sizes[:, port] != sizes[:, 0])
        if not len(bad):
            return
        stage = self._stage
        i = int(bad[0])
        state = State(
            states[i : i + 1],
            self._layout,
            stage.ports[0].type.fields,
        )
        raise MessageError(
            f"node `{stage.name}`, port {stage.ports[port].name}",
            f"{int(sizes[i, 0])} rows, as on port {stage.ports[0].name}",
            f"{int(sizes[i, port])} rows with {state!r}",
            "Give both messages the same rows.",
        )

    def _count_collected(
        self,
        states: np.ndarray,
        sizes: np.ndarray,
    ) -> np.ndarray:
        """Rows that a collect makes, by each instance's topology."""
        stage = self._stage
        pump = str(self._stage.topology)
        maps = []
        for handle in states[:, HANDLE].tolist():
            maps.append(find_topology(stage.nodes[0], pump, self._topologies, handle))
        for port in range(len(stage.ports)):
            for topology, size in zip(maps, sizes[:, port].tolist(), strict=True):
                if port >= len(topology.scatter) or len(topology.scatter[port]) != size:
                    self._refuse(topology, port, size)
        return np.array([topology.n_rows for topology in maps], np.int64)

    def _refuse(self, topology: Topology, port: int, size: int) -> None:
        maps = topology.scatter
        raise MessageError(
            f"node `{self._stage.name}`, topology `{self._stage.topology}`",
            f"a scatter map of {size} places for port {self._stage.ports[port].name}",
            f"{len(maps)} maps" if port >= len(maps) else f"{len(maps[port])} places",
            "Make the Topology with one place per row.",
        )


def edge_counts(stage: Stage, topologies: Topologies, n: int) -> np.ndarray:
    """Counts the edges of a chain.

    Args:
      stage: The chain's stage.
      topologies: Maps of the instances: pump name to instance handle to `Topology`.
      n: How many instances; they have the handles from 0 to `n - 1`.

    Returns:
      `[n, edge types]` int32; zeros where no topology was pumped.
    """
    assert stage.chain is not None
    outputs = [edge_type.output for edge_type in stage.chain.edge_types]
    counts = np.zeros((n, len(outputs)), np.int32)
    for handle, topology in topologies.get(str(stage.topology), {}).items():
        if max(outputs) < len(topology.gather):
            counts[handle] = [len(topology.gather[output]) for output in outputs]
    return counts
