"""The programs that a scheduler knows, one after the other in its tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.sched.plan import Plan
from ampjax.schedule import columns as c
from ampjax.schedule.columns import Tables
from ampjax.schedule.tables import Arenas, longer, n_ways
from ampjax.unfold.programs import Programs


class Store:
    """Where each program stands in the tables.

    Args:
      plan: The plan.
      arenas: Its arenas.

    Attributes:
      programs: What has been added, wave by wave; `waves[i]` is the place of the first instance of the `i`-th.
      first, pick_first, n_rows, ids: `[places]` (`first` and `pick_first` one more): as in `Programs`, counted over all.
      pumped: `[places, arenas]`: rows that are pumped for each instance.
      order: The pumps, as stages, in the order in which they pump.
    """

    def __init__(self, plan: Plan, arenas: Arenas):
        self._plan, self._arenas = plan, arenas
        self.programs: list[Programs] = []
        self.waves = [0]
        self.first = self.pick_first = np.zeros(1, np.int64)
        self.n_rows, self.ids = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.pumped = np.zeros((0, len(arenas.keys)), np.int64)
        self._n_inputs = self._n_outputs = 0
        self._order: dict[int, None] = {}

    @property
    def order(self) -> np.ndarray:
        """See above."""
        every = (-1 - pump for pump in range(len(self._arenas.of_pump)))
        return np.array([*dict.fromkeys((*self._order, *every))], np.int64)

    def add(self, t: Tables, programs: Programs) -> tuple[Tables, range]:
        """Adds programs; returns the tables and the places of their instances."""
        n, e = programs.n_invocations, len(programs.in_from)
        line, entry, consumption, pick = self.first[-1], self._n_inputs, self._n_outputs, self.pick_first[-1]
        t = self._with_room(t, n, e, len(programs.out_to), len(programs.picks), programs.n_instances)
        own = t.lines[line : line + n]
        for column, values in (
            (c.STAGE, programs.stage),
            (c.ROW, programs.row),
            (c.SIZE, programs.size),
            (c.ROWS, programs.rows),
            (c.IN, programs.in_start[:-1] + entry),
            (c.N_IN, np.diff(programs.in_start)),
            (c.OUT, programs.out_start[:-1] + consumption),
            (c.N_OUT, np.diff(programs.out_start)),
            (c.OWED, programs.owed),
        ):
            own[:, column] = values
        inputs = t.inputs[entry : entry + e]
        inputs[:, c.FROM], inputs[:, c.FIRST], inputs[:, c.LENGTH] = programs.in_from, programs.in_row, programs.in_size
        outputs = t.outputs[consumption : consumption + len(programs.out_to)]
        outputs[:, c.TO], outputs[:, c.RANK] = programs.out_to, programs.out_rank
        t.picks[pick : pick + len(programs.picks)] = programs.picks
        chains = [programs.edges[stage.number] for stage in self._plan.stages if n_ways(stage)]
        places = range(len(self.ids), len(self.ids) + programs.n_instances)
        if chains:
            t.edges[places.start : places.stop] = np.concatenate(chains, axis=1)
        self._note(programs)
        return t, places

    def find(self, lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each program line's instance, and the line's number within it."""
        places = np.searchsorted(self.first, lines, side="right") - 1
        return places, lines - self.first[places]

    def states(self, lines: np.ndarray) -> np.ndarray:
        """The state fields `[n, fields]` of invocations, given their program lines."""
        begin = self.first[np.array(self.waves[:-1], np.int64)]
        wave = np.searchsorted(begin, lines, side="right") - 1
        states = [self.programs[w].states[line - begin[w]] for w, line in zip(wave, lines, strict=True)]
        return np.array(states, np.int64).reshape(len(lines), len(self._plan.layout.fields))

    def _with_room(self, t: Tables, n: int, e: int, k: int, picks: int, instances: int) -> Tables:
        return t._replace(
            lines=longer(t.lines, int(self.first[-1]) + n),
            inputs=longer(t.inputs, self._n_inputs + e),
            outputs=longer(t.outputs, self._n_outputs + k),
            picks=longer(t.picks, int(self.pick_first[-1]) + picks),
            edges=longer(t.edges, len(self.ids) + instances),
        )

    def _note(self, programs: Programs) -> None:
        self.programs.append(programs)
        self.waves.append(self.waves[-1] + programs.n_instances)
        self.first = np.append(self.first, self.first[-1] + programs.first[1:])
        self.pick_first = np.append(self.pick_first, self.pick_first[-1] + programs.pick_first[1:])
        self.n_rows = np.append(self.n_rows, programs.n_rows)
        self.ids = np.append(self.ids, programs.ids)
        self.pumped = np.concatenate([self.pumped, pumped_rows(programs, self._arenas)])
        self._n_inputs += len(programs.in_from)
        self._n_outputs += len(programs.out_to)
        self._order |= dict.fromkeys(_pumps_of(programs))


def pumped_rows(programs: Programs, arenas: Arenas) -> np.ndarray:
    """Rows that are pumped for each instance into each arena, `[k, arenas]`."""
    rows = np.zeros((programs.n_instances, len(arenas.keys)), np.int64)
    pumps = np.flatnonzero(programs.stage < 0)
    arena = np.array(arenas.of_pump, np.int64)[-1 - programs.stage[pumps]]
    np.add.at(rows, (programs.instance_of[pumps], arena), programs.size[pumps])
    return rows


def _pumps_of(programs: Programs) -> Sequence[int]:
    """The pumps of the first instance, in order, then others."""
    pumps = programs.stage[programs.stage < 0]
    _, at = np.unique(pumps, return_index=True)
    return pumps[np.sort(at)].tolist()
