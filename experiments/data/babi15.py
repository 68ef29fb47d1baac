"""bAbI task 15, basic deduction, as graphs (Weston et al. 2015; Li et al. 2015): what is X afraid of?

Names and kinds of animals are nodes; `is` leads from a name to its kind, `has_fear` from a kind to the one that it fears. The answer to a
question about a name is `has_fear[is[name]]`. The asked node has annotation 1, all others 0; every edge has a reverse edge with a
kind of its own, so there are 4 kinds.

Two sources. `generate` draws graphs: the paper's 54 nodes are not described, so half are names, half are kinds, each name has
one `is` and each kind one `has_fear` (to another kind), nodes are numbered at random, and each graph has one question. `load` reads
graphs of 8 nodes with 4 questions each, in the format of Li et al.: `<a> <type> <b>` is an edge, `? <type> <a> <b>` a question about node a
with the answer b, a blank line ends a graph. Numbers of nodes and types come from the fold's own files, `name=number` in each line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Int

from ampjax.errors import DataError, SettingsError
from ampjax.ir.instances import Instances, Messages
from experiments.data.graphs import GraphInstances, Graphs
from experiments.data.readers.data_checks import at_least_one
from experiments.data.readers.data_files import Remote, find
from experiments.data.readers.lines import read_lines

SOURCE = "https://github.com/JamesChuanggg/ggnn.pytorch (babi_data)"
_FIX = f"The file is damaged, or another format: get it from {SOURCE}."
EDGE_TYPES = ("is", "has_fear")
N_KINDS = 2 * len(EDGE_TYPES)
N_NODES = 54
MOST_NODES = 256
"""Names that a file of numbers may hold: each question gets as many nodes. bAbI's graphs have 8."""
MOST_COPIES = 32
"""Edges that a graph's questions, each of which gets a copy of it, may have for each of its lines. bAbI's have 3 for a line."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions, each with a graph of its own.

    Args:
      graphs: The graphs; kinds 0 and 1 are `is` and `has_fear`, 2 and 3 their reverses.
      asked: `[n]`: the node asked about, by its number within the graph.
      answers: `[n]`: the node that is the answer.
    """

    graphs: Graphs
    asked: Int[np.ndarray, " n"]
    answers: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.asked)

    def __repr__(self) -> str:
        return f"Questions({len(self)} questions, {self.graphs.node_ptr[-1]} nodes)"

    def followed_by(self, other: Questions) -> Questions:
        """Joins two collections: these questions come before the other ones.

        Args:
          other: The other questions.

        Returns:
          All questions, with their graphs and answers.
        """
        asked, answers = (
            np.concatenate(pair)
            for pair in ((self.asked, other.asked), (self.answers, other.answers))
        )
        return Questions(Graphs.joined(self.graphs, other.graphs), asked, answers)

    def instances(
        self,
        start: int = 0,
        stop: int | None = None,
        encoding: str = "collect",
    ) -> GraphInstances:
        """The questions from `start` to before `stop` as instances.

        Pumps: `x`, rows `[1]`: 1 at the asked node; `answer`, rows `[1]`: 1 at the answer.

        Args:
          start: The first question.
          stop: The one after the last; by default all are taken.
          encoding: `collect` or `flatmap`: see `GraphInstances`.

        Returns:
          An instance for each question.
        """
        rows = {}
        for name, node in (("x", self.asked), ("answer", self.answers)):
            rows[name] = np.zeros(
                (self.graphs.node_ptr[-1], 1),
                np.float32,
            )
            rows[name][self.graphs.node_ptr[:-1] + node] = 1
        return GraphInstances(
            self.graphs,
            np.arange(len(self))[start:stop],
            rows,
            {},
            encoding,
        )


@dataclass(frozen=True, eq=False)
class Fresh:
    """A window of `n` instances that moves on with each epoch: each epoch has new samples, until the supply ends and starts again.

    Args:
      supply: All instances.
      n: Instances in the window, so in an epoch.
      start: The position of the window's first instance.

    Raises:
      SettingsError: If `n` is below 1 or above the supply.
    """

    supply: Instances
    n: int
    start: int = 0

    def __post_init__(self) -> None:
        at_least_one("Fresh", n=self.n)
        if self.n > len(self.supply):
            raise SettingsError(
                "Fresh, `n`", f"at most {len(self.supply)}", f"{self.n}", "Supply more instances."
            )

    def __len__(self) -> int:
        return self.n

    def reshuffle(self, rng: np.random.Generator) -> Fresh:
        """Gives the next window; this object, which may still be in use, does not change.

        Args:
          rng: Not used: the order of the supply is fixed.

        Returns:
          A data set of as many instances.
        """
        return replace(
            self,
            start=(self.start + self.n) % len(self.supply),
        )

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """The messages of the instances `ids`, by pump.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          By pump, the messages as columns; `Messages.instance` counts positions in `ids`.
        """
        return self.supply.gather(self.locate(ids)[1])

    def locate(self, ids: np.ndarray) -> tuple[Instances, np.ndarray]:
        """Finds some instances in the supply.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          The supply, and `[n]` their positions in it.
        """
        return self.supply, (self.start + np.asarray(ids, np.int64)) % len(self.supply)


def generate(
    n: int,
    n_nodes: int = N_NODES,
    seed: int | np.random.SeedSequence = 0,
) -> Questions:
    """Draws graphs with a question each.

    Args:
      n: How many.
      n_nodes: Nodes of a graph: half of them names, half kinds.
      seed: Same seed, same questions.

    Returns:
      `n` questions, each with its graph.

    Raises:
      SettingsError: If `n` is below 1, or `n_nodes` is odd or below 4.

    >>> generate(10)
    Questions(10 questions, 540 nodes)
    """
    at_least_one("generate", n=n)
    if n_nodes < 4 or n_nodes % 2:
        raise SettingsError(
            "generate, `n_nodes`", "an even number of at least 4", f"{n_nodes}", "Half are names."
        )
    rng = np.random.default_rng(seed)
    half = n_nodes // 2
    node = rng.permuted(
        np.tile(np.arange(n_nodes), (n, 1)),
        axis=1,
    )
    names = node[:, :half]
    kinds = node[:, half:]
    is_ = rng.integers(0, half, (n, half))
    each = np.arange(half)
    fears = (each + rng.integers(1, half, (n, half))) % half  # of another kind
    asked = rng.integers(0, half, n)
    graph = np.repeat(np.arange(n), half)
    rows = np.arange(n)
    hops = ((names, is_, 0), (kinds, fears, 1))
    edges = []
    for a, to, kind in hops:
        edges.append(
            np.stack(
                [
                    graph,
                    a.ravel(),
                    np.take_along_axis(kinds, to, axis=1).ravel(),
                    np.full(n * half, kind),
                ],
                axis=1,
            )
        )
    answers = kinds[rows, fears[rows, is_[rows, asked]]]
    return _questions(
        np.full(n, n_nodes),
        np.concatenate(edges),
        names[rows, asked],
        answers,
    )


def load(
    data_dir: str | os.PathLike[str] | None = None, fold: int = 1
) -> tuple[Questions, Questions]:
    """Loads the training and the test questions of one fold.

    Args:
      data_dir: The folder that holds `babi15`, or the content of that folder; by default the one that `AMPJAX_DATA` names.
      fold: 1 to 10.

    Returns:
      `(train, valid)`, both with the fold's numbers.

    Raises:
      DataError: If a file is missing or holds something else; names file and line.
    """
    train, valid = (_load(fold, part, data_dir) for part in ("train", "test"))
    return train, valid


def read(
    graphs: str | os.PathLike[str],
    node_ids: str | os.PathLike[str],
    edge_types: str | os.PathLike[str],
    question_types: str | os.PathLike[str],
) -> Questions:
    """Reads the questions of one file, with the numbers that the id files give.

    Args:
      graphs: The graphs with their questions.
      node_ids: The nodes' names; all graphs have these nodes.
      edge_types: Must name `is` and `has_fear`.
      question_types: Must name `has_fear`.

    Returns:
      The questions in the order of the file.

    Raises:
      DataError: As `load`.
    """
    return _Reader(Path(graphs), Path(node_ids), Path(edge_types), Path(question_types)).questions()


def _load(
    fold: int,
    part: str,
    data_dir: str | os.PathLike[str] | None,
) -> Questions:
    def path(name: str) -> Path:
        return find(
            Remote("babi15", f"ggnn/processed_{fold}/{part}/15_{name}.txt", source=SOURCE), data_dir
        )

    return read(
        path("graphs"),
        path("node_ids"),
        path("edge_types"),
        path("question_types"),
    )


def _questions(
    sizes: np.ndarray,
    edges: np.ndarray,
    asked: np.ndarray,
    answers: np.ndarray,
) -> Questions:
    """Adds the reverse of each edge `[edges, 4]` (graph, sender, receiver, type), with a kind of its own."""
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    back = edges[:, [0, 2, 1, 3]] + [0, 0, 0, len(EDGE_TYPES)]
    return Questions(
        Graphs.from_edges(ptr, np.concatenate([edges, back]), N_KINDS),
        asked,
        answers,
    )


class _Reader:
    """One file of graphs; each question gets a copy of its graph."""

    def __init__(
        self,
        graphs: Path,
        node_ids: Path,
        edge_types: Path,
        question_types: Path,
    ):
        self.path = graphs
        self.line = 0
        nodes = {}
        for i, number in enumerate(sorted(_numbers(node_ids).values())):
            nodes[number] = i
        self.nodes = nodes
        types = _numbers(edge_types, EDGE_TYPES)
        asked = _numbers(question_types, EDGE_TYPES[1:])
        self.types = {types[name]: i for i, name in enumerate(EDGE_TYPES)}
        self.question = asked[EDGE_TYPES[1]]
        self.edges: list[tuple[int, int, int, int]] = []
        self.asked: list[int] = []
        self.answers: list[int] = []

    def questions(self) -> Questions:
        edges: list[tuple[int, int, int]] = []
        asked: list[tuple[int, int]] = []
        for line, text in enumerate(chain(read_lines(self.path, _FIX), [""]), 1):
            self.line = line
            words = text.split()
            if not words:
                self._close(edges, asked)
                edges = []
                asked = []
            elif words[0] == "?":
                self._expect(len(words) == 4, "`? type node answer`", text)
                self._expect(
                    words[1] == self.question, f"the question type {self.question}", words[1]
                )
                asked.append((self._node(words[2]), self._node(words[3])))
            else:
                self._expect(len(words) == 3, "`node type node`", text)
                self._expect(
                    words[1] in self.types, f"an edge type of {sorted(self.types)}", words[1]
                )
                edges.append((self._node(words[0]), self._node(words[2]), self.types[words[1]]))
        if not self.asked:
            raise DataError(
                f"file {self.path}", "at least one question", "none", f"Get it from {SOURCE}."
            )
        sizes = np.full(len(self.asked), len(self.nodes))
        rows = np.array(self.edges, np.int64).reshape(
            -1,
            4,
        )
        return _questions(
            sizes,
            rows,
            np.array(self.asked),
            np.array(self.answers),
        )

    def _close(
        self,
        edges: list[tuple[int, int, int]],
        asked: list[tuple[int, int]],
    ) -> None:
        self._expect(
            bool(asked) or not edges, "a question after a graph's edges", "the end of the graph"
        )
        expected = (
            "a blank line after each graph: edges and questions that are not all in one graph"
        )
        copies = len(edges) * len(asked)
        self._expect(
            copies <= MOST_COPIES * (len(edges) + len(asked)),
            expected,
            f"{len(edges)} and {len(asked)}",
        )
        for node, answer in asked:
            self.edges += [(len(self.asked), *edge) for edge in edges]
            self.asked.append(node)
            self.answers.append(answer)

    def _node(self, word: str) -> int:
        self._expect(word in self.nodes, f"a node of {sorted(self.nodes)}", word)
        return self.nodes[word]

    def _expect(self, holds: bool, expected: str, got: str) -> None:
        if not holds:
            raise _foreign(self.path, self.line, expected, repr(got))


def _numbers(
    path: Path,
    required: tuple[str, ...] = (),
) -> Mapping[str, str]:
    """The numbers by name of an id file, as they are written."""
    numbers: dict[str, str] = {}
    for line, text in enumerate(read_lines(path, _FIX), 1):
        name, equals, number = text.strip().partition("=")
        if not text.strip():
            continue
        if not (name and equals and number.isdigit()):
            raise _foreign(path, line, "`name=number`", repr(text))
        if name in numbers or number in numbers.values():
            raise _foreign(path, line, "each name and each number once", repr(text))
        numbers[name] = number
        if len(numbers) > MOST_NODES:
            raise _foreign(path, line, f"at most {MOST_NODES} names", "more")
    missing = [name for name in required if name not in numbers]
    if missing or not numbers:
        raise DataError(
            f"file {path}",
            f"a number for `{missing[0] if missing else 'a node'}`",
            f"{dict(numbers)}",
            f"Get it from {SOURCE}.",
        )
    return numbers


def _foreign(
    path: Path,
    line: int,
    expected: str,
    got: str,
) -> DataError:
    return DataError(f"file {path}, line {line}", expected, got, _FIX)
