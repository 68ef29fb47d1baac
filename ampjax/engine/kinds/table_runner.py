"""Runs `table` stages: rows of a table in host memory are pulled for a dispatch, and their gradients kept for the table's update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ampjax.engine.kernels import copy_kernels
from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.weight_gradients import ACCUMULATING, GradientConsumer
from ampjax.engine.kinds.stage_arrays import StageArrays
from ampjax.engine.kinds.stage_runner import Params, StageRunner
from ampjax.engine.memory.arenas import Arenas
from ampjax.engine.memory.table_gradients import TableGradients
from ampjax.errors import MessageError
from ampjax.ir.host_tables import HostTable
from ampjax.plan.stages import HOST, Stage
from ampjax.sched.layout.columns import TRASH


class TableRunner(StageRunner):
    """Carries out the launches of one `table` stage.

    Ids that were pumped lie on the host already; computed ones are read back, which waits for their device.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
      tables: The tables that nodes read, in place of the graph's.
    """

    def __init__(
        self,
        stage: Stage,
        arenas: Arenas,
        tables: Mapping[str, HostTable],
    ):
        self.stage = stage
        self._arenas = arenas
        self._arrays = StageArrays(stage, arenas)
        (node,) = stage.nodes
        table = tables.get(node.params_name, node.table)
        assert table is not None
        self._table = table
        self._source = stage.ports[0].arena
        self._target = stage.arenas[0]
        keys = self._source, self._target
        self._get = copy_kernels.get_rows(keys)

    def forward(self, launches: Coalesced, params: Params) -> None:
        """Pulls rows."""
        (launch,) = launches
        if not launch.n_rows:
            return
        slots, to = self._arrays.lines(launch)
        ids = self._ids(slots)
        # Checked before rows are pulled: to NumPy a negative id would count from the table's end.
        self._check(launch, ids)
        rows = self._table.pull(ids.reshape(-1)).reshape(
            *ids.shape,
            *self._table.shape[1:],
        )
        self._arrays.put_rows(to, rows)

    def backward(
        self,
        launches: Coalesced,
        params: Params,
        consumer: GradientConsumer,
        states: Any,
        scalars: np.ndarray | None,
    ) -> Any:
        """Keeps the gradients of rows; ids have none."""
        (launch,) = launches
        if not launch.n_rows or consumer != ACCUMULATING:  # they are dropped, and ids have none
            return states
        gradients: TableGradients = states[0]
        slots, to = self._arrays.lines(launch)
        grads = self._arenas.grads[self._target]
        assert grads is not None
        rows = self._get.once(grads, to)
        if slots[0] != TRASH:  # a launch that only compiles has no rows
            gradients.add(self._ids(slots)[: launch.n_rows], rows)
        return states

    def _ids(self, slots: np.ndarray) -> np.ndarray:
        """The ids at slots of the stage's port, int64 `[k]`, or `[k, ids]` where a message brings several."""
        source = self._source
        if source[0] == HOST:
            return self._arenas.host[source][slots].astype(np.int64)
        return np.asarray(
            self._get.once(
                self._arenas.values[source],
                slots,
            )
        ).astype(np.int64)

    def _check(self, launch: Launch, ids: np.ndarray) -> None:
        """Raises unless all ids are rows of the table.

        Raises:
          MessageError: If one is not; it names the instance.
        """
        n_rows = self._table.shape[0]
        outside = (ids < 0) | (ids >= n_rows)
        if not outside.any():
            return
        place = tuple(np.argwhere(outside)[0])
        instance = "" if launch.instances is None else f" of instance {launch.instances[place[0]]}"
        raise MessageError(
            f"node `{self.stage.name}`, id{instance}",
            f"a row of its table, in [0, {n_rows})",
            f"{ids[place]}",
            "Map ids to rows before they are pumped, or make the table larger: a negative id does not count from its end.",
        )
