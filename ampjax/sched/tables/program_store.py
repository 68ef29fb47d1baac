"""Stores programs in the tables, one wave (batch of instances) at a time, and frees a wave's lines when no instance uses the wave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.layout.extents import Extents
from ampjax.sched.tables.plan_tables import PlanArenas, lengthen_table, n_edge_types
from ampjax.unfold.programs import Programs

Parts = list[tuple[str, int, int]]
"""Lines of tables: the table, where they begin, how many."""


@dataclass(eq=False, slots=True)
class Wave:
    """Programs that came together.

    Args:
      parts: Its lines.
      nbytes: Bytes of these lines, and what is charged beside.
      places: The places of its programs.
    """

    parts: Parts
    nbytes: int
    places: range


class ProgramStore:
    """The place of each program in the tables.

    Args:
      plan: The plan.
      arenas: Its arenas.

    Attributes:
      waves: The waves, by number.
      uses: `[waves, 2]`: a line for each number; see `columns`.
      nbytes: Bytes of their lines.
      programs: `[places, PUMPED + arenas]`: a line for each program; see `columns`.
    """

    def __init__(self, plan: Plan, arenas: PlanArenas):
        self._plan = plan
        self._arenas = arenas
        self.waves: dict[int, Wave] = {}
        self.uses = np.zeros(
            (0, c.USED + 1),
            np.int64,
        )
        self._numbers = Extents()  # of waves
        self.nbytes = 0
        self.programs = np.zeros(
            (0, c.PUMPED + len(arenas.keys)),
            np.int64,
        )
        self._states = np.zeros(
            (0, len(plan.layout.fields)),
            np.int32,
        )
        self._places = np.zeros(0, np.int32)
        extents = {}
        for name in ("lines", "inputs", "outputs", "picks", "places"):
            extents[name] = Extents()
        self._extents = extents

    def add(
        self,
        t: Tables,
        programs: Programs,
        keys: np.ndarray,
    ) -> tuple[Tables, int]:
        """Adds a wave of programs.

        Args:
          t: The tables.
          programs: The programs.
          keys: `[k, 2]` int64: their keys.

        Returns:
          The tables, some of which may be longer; the wave's number.
        """
        counts = {
            "lines": programs.n_invocations,
            "inputs": len(programs.in_from),
            "outputs": len(programs.out_to),
            "picks": len(programs.picks),
            "places": programs.n_instances,
        }
        parts: Parts = []
        begin = {}
        for name, count in counts.items():
            begin[name] = self.take(name, count, parts)
        t = self.with_room(t, programs.states.dtype)
        spans = {name: slice(start, start + counts[name]) for name, start in begin.items()}
        _write(t, self._plan, programs, begin, spans)
        places = range(spans["places"].start, spans["places"].stop)
        self.note(
            spans["lines"],
            programs.states,
            np.repeat(
                np.arange(places.start, places.stop),
                np.diff(programs.first),
            ),
        )
        number = self._numbers.take(1)
        self._note(
            places,
            programs,
            begin,
            number,
            int(t.clock[c.NOW]),
        )
        self.programs[spans["places"], c.KEY : c.KEY + 2] = keys
        wave = Wave(parts, self._n_bytes(t, counts), places)
        self.waves[number] = wave
        self.uses = lengthen_table(self.uses, number + 1)
        t.clock[c.ASKED] += 1
        self.uses[number] = 0, t.clock[c.ASKED]
        self.nbytes += wave.nbytes
        return t, number

    def _n_bytes(self, t: Tables, counts: Mapping[str, int]) -> int:
        """Counts the bytes of some lines of each kind."""
        per_line = 4 * (t.lines.shape[1] + 1) + self._states.itemsize * self._states.shape[1]
        per_place = 4 * t.edges.shape[1] + 8 * self.programs.shape[1]
        sizes = per_line, 4 * t.inputs.shape[1], 4 * t.outputs.shape[1], 4, per_place
        return sum(size * count for size, count in zip(sizes, counts.values(), strict=True))

    def drop(self, number: int) -> Wave:
        """Gives a wave's lines back; no instance may use the wave.

        Returns:
          The wave.
        """
        wave = self.waves.pop(number)
        self._numbers.give(number, 1)
        self.give(wave.parts)
        self.nbytes -= wave.nbytes
        return wave

    def charge(self, wave: Wave, nbytes: int) -> None:
        """Counts the bytes that others keep for a wave.

        Args:
          wave: The wave.
          nbytes: How many bytes.
        """
        wave.nbytes += nbytes
        self.nbytes += nbytes

    def take(self, table: str, n: int, parts: Parts) -> int:
        """Takes lines of a table. `with_room` must follow.

        Args:
          table: The table's name: `lines`, `inputs`, `outputs`, `picks`, or `places` for that of programs.
          n: How many lines.
          parts: A list to which they are added.

        Returns:
          Where they begin.
        """
        start = self._extents[table].take(n)
        parts.append((table, start, n))
        return start

    def give(self, parts: Parts) -> None:
        """Gives lines back."""
        for table, start, n in parts:
            self._extents[table].give(start, n)
            if table == "lines":
                self._places[start : start + n] = c.NO_PLACE

    def take_places(
        self,
        t: Tables,
        ids: np.ndarray,
        parts: Parts,
    ) -> tuple[Tables, np.ndarray]:
        """Takes places for programs that are still empty.

        Args:
          t: The tables.
          ids: `[n]`: the numbers of their instances.
          parts: A list to which the places are added.

        Returns:
          The tables, some of which may be longer; the places `[n]`.
        """
        start = self.take("places", len(ids), parts)
        t = self.with_room(t, self._states.dtype)
        new = self.programs[start : start + len(ids)]
        new[:] = 0
        new[:, c.P_ID] = ids
        new[:, c.WAVE] = c.NO_WAVE
        new[:, c.P_SINCE] = t.clock[c.NOW]
        t.edges[start : start + len(ids)] = 0
        return t, np.arange(start, start + len(ids))

    def move(
        self,
        t: Tables,
        place: int,
        n: int,
        room: int,
        parts: Parts,
    ) -> Tables:
        """Gives a program other lines.

        Args:
          t: The tables.
          place: The program's place.
          n: How many lines it has; they move with it.
          room: How many lines it gets.
          parts: A list to which these are added.

        Returns:
          The tables, some of which may be longer.
        """
        start = self.take("lines", room, parts)
        t = self.with_room(t, self._states.dtype)
        old = int(self.programs[place, c.P_LINE])
        if n > 0:
            for table in (t.lines, self._states, self._places):
                table[start : start + n] = table[old : old + n]
        self.programs[place, c.P_LINE] = start
        return t

    def note(
        self,
        lines: np.ndarray | slice,
        states: np.ndarray,
        places: np.ndarray,
    ) -> None:
        """Notes to which programs lines belong, and their states.

        Args:
          lines: `[n]`: the lines.
          states: `[n, fields]`: their state fields.
          places: `[n]`: the places of their programs.
        """
        self._states[lines] = states
        self._places[lines] = places

    @property
    def unused(self) -> list[int]:
        """The waves without programs in flight, the least recently used first."""
        numbers = np.fromiter(
            self.waves,
            np.int64,
            len(self.waves),
        )
        numbers = numbers[self.uses[numbers, c.USERS] == 0]
        return numbers[np.argsort(self.uses[numbers, c.USED])].tolist()

    def use(self, places: np.ndarray, n: int) -> None:
        """Counts users of the waves of programs.

        Args:
          places: The programs' places; each counts.
          n: How many users more; fewer if it is negative.
        """
        np.add.at(
            self.uses[:, c.USERS],
            self.programs[places, c.WAVE],
            n,
        )

    def find(
        self,
        lines: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the programs of lines.

        Args:
          lines: `[n]`: the lines.

        Returns:
          `[n]` int64: the places of their programs, or `NO_PLACE`; `[n]`: their numbers within these.
        """
        places = self._places[lines].astype(np.int64)
        return places, lines - self.programs[places, c.P_LINE]

    def states(self, lines: np.ndarray) -> np.ndarray:
        """Gives the state fields of invocations.

        Args:
          lines: `[n]`: their program lines.

        Returns:
          `[n, fields]` int64.
        """
        return self._states[lines].astype(np.int64)

    def with_room(self, t: Tables, states: np.dtype) -> Tables:
        """Makes tables long enough for all lines that have been taken.

        Args:
          t: The tables.
          states: The dtype of states that are to be noted.

        Returns:
          The tables, some of which may be longer.
        """
        top = {name: extents.top for name, extents in self._extents.items()}
        if states.itemsize > self._states.itemsize:
            self._states = self._states.astype(states)
        self._states = lengthen_table(self._states, top["lines"])
        self._places = lengthen_table(self._places, top["lines"])
        self.programs = lengthen_table(self.programs, top["places"])
        return t._replace(
            lines=lengthen_table(t.lines, top["lines"]),
            inputs=lengthen_table(t.inputs, top["inputs"]),
            outputs=lengthen_table(t.outputs, top["outputs"]),
            picks=lengthen_table(t.picks, top["picks"]),
            edges=lengthen_table(t.edges, top["places"]),
        )

    def _note(
        self,
        places: range,
        programs: Programs,
        begin: dict[str, int],
        wave: int,
        now: int,
    ) -> None:
        new = self.programs[places.start : places.stop]
        new[:, c.P_LINE] = begin["lines"] + programs.first[:-1]
        new[:, c.P_LENGTH] = np.diff(programs.first)
        new[:, c.P_PICK] = begin["picks"] + programs.pick_first[:-1]
        new[:, c.P_ROWS] = programs.n_rows
        new[:, c.P_ID] = programs.ids
        new[:, c.WAVE] = wave
        new[:, c.P_SINCE] = now
        new[:, c.PUMPED :] = pumped_rows(programs, self._arenas)


def pumped_rows(programs: Programs, arenas: PlanArenas) -> np.ndarray:
    """Counts the rows that are pumped for each instance into each arena.

    Returns:
      `[k, arenas]` int64.
    """
    rows = np.zeros(
        (programs.n_instances, len(arenas.keys)),
        np.int64,
    )
    pumps = np.flatnonzero(programs.stage < 0)
    arena = np.array(arenas.of_pump, np.int64)[-1 - programs.stage[pumps]]
    np.add.at(
        rows,
        (programs.instance_of[pumps], arena),
        programs.size[pumps],
    )
    return rows


def _write(
    t: Tables,
    plan: Plan,
    programs: Programs,
    begin: Mapping[str, int],
    spans: Mapping[str, slice],
) -> None:
    """Writes a wave into new lines of the tables.

    Args:
      t: The tables.
      plan: The plan of the graph.
      programs: The programs.
      begin: By kind of line, the number of the first.
      spans: By kind, all of them.
    """
    new_lines = t.lines[spans["lines"]]
    for column, values in (
        (c.STAGE, programs.stage),
        (c.ROW, programs.row),
        (c.OUT_ROWS, programs.size),
        (c.IN_ROWS, programs.rows),
        (c.FIRST_INPUT, programs.in_start[:-1] + begin["inputs"]),
        (c.N_IN, np.diff(programs.in_start)),
        (c.FIRST_OUTPUT, programs.out_start[:-1] + begin["outputs"]),
        (c.N_OUT, np.diff(programs.out_start)),
        (c.OWED, programs.owed),
    ):
        new_lines[:, column] = values
    inputs = t.inputs[spans["inputs"]]
    inputs[:, c.PRODUCER] = programs.in_from
    inputs[:, c.FIRST_ROW] = programs.in_row
    inputs[:, c.LENGTH] = programs.in_size
    outputs = t.outputs[spans["outputs"]]
    outputs[:, c.CONSUMER] = programs.out_to
    outputs[:, c.RANK] = programs.out_rank
    t.picks[spans["picks"]] = programs.picks
    chains = []
    for stage in plan.stages:
        if n_edge_types(stage):
            chains.append(programs.edges[stage.number])
    if chains:
        t.edges[spans["places"]] = np.concatenate(
            chains,
            axis=1,
        )
