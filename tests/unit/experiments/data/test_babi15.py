"""bAbI 15: answers follow from the graphs, wherever they come from, and every way in which a file can be wrong."""

import os
from pathlib import Path

import numpy as np
import pytest

from ampjax.errors import DataError, SettingsError
from experiments.data import babi15

FILES = {
    "graphs": "3 1 2\n4 1 1\n2 2 1\n1 2 2\n? 1 3 1\n? 1 4 2\n\n",
    "node_ids": "A=1\nB=2\nC=3\nD=4\n",
}
FILES |= {"edge_types": "is=1\nhas_fear=2\n", "question_types": "has_fear=1\n"}


def read(folder: Path, **changes: str) -> babi15.Questions:
    paths = [folder / f"{name}.txt" for name in FILES]
    for path, text in zip(
        paths,
        {**FILES, **changes}.values(),
        strict=True,
    ):
        path.write_text(text, encoding="utf-8")
    return babi15.read(*paths)


def deduced(questions: babi15.Questions, i: int) -> int:
    """`has_fear[is[asked]]`, from the edges; also checks that each has its reverse."""
    graphs = questions.graphs
    first, end = graphs.node_ptr[i : i + 2]
    edges = range(graphs.out_ptr[first], graphs.out_ptr[end])
    triples = []
    for e in edges:
        triples.append(
            (
                graphs.senders[e],
                graphs.kinds[e],
                graphs.receivers[e],
            )
        )
    assert sorted((b, k + 2, a) for a, k, b in triples if k < 2) == sorted(
        t for t in triples if t[1] >= 2
    )
    follow = {(a, k): b for a, k, b in triples}
    return follow[follow[questions.asked[i], 0], 1]


def test_questions_of_a_file_share_a_graph(tmp_path: Path) -> None:
    questions = read(tmp_path)
    assert repr(questions) == "Questions(2 questions, 8 nodes)"
    assert questions.asked.tolist() == [2, 3]
    assert questions.answers.tolist() == [0, 1]
    assert [deduced(questions, i) for i in range(2)] == [0, 1]


def test_numbers_come_from_the_id_files(tmp_path: Path) -> None:
    graphs = "7 5 2\n9 5 0\n2 4 0\n0 4 2\n? 6 7 0\n"
    ids = {
        "node_ids": "A=7\nB=2\nC=0\nD=9",
        "edge_types": "has_fear=4\nis=5",
        "question_types": "has_fear=6",
    }
    questions = read(tmp_path, graphs=graphs, **ids)
    assert deduced(questions, 0) == questions.answers[0] == 0


@pytest.mark.parametrize(
    ("changes", "line", "expected"),
    [
        ({"graphs": "1 1\n"}, "graphs.txt, line 1", "expected `node type node`, got '1 1'"),
        (
            {"graphs": "3 1 2\n? 1 3\n"},
            "graphs.txt, line 2",
            "expected `? type node answer`, got '? 1 3'",
        ),
        (
            {"graphs": "3 3 2\n"},
            "graphs.txt, line 1",
            "expected an edge type of ['1', '2'], got '3'",
        ),
        (
            {"graphs": "3 1 5\n"},
            "graphs.txt, line 1",
            "expected a node of ['1', '2', '3', '4'], got '5'",
        ),
        ({"graphs": "\n? 2 3 1\n"}, "graphs.txt, line 2", "expected the question type 1, got '2'"),
        ({"graphs": "? 1 3 x\n"}, "graphs.txt, line 1", "expected a node of"),
        (
            {"graphs": "3 1 2\n\n? 1 3 1\n"},
            "graphs.txt, line 2",
            "expected a question after a graph's edges",
        ),
        ({"graphs": "\n"}, "graphs.txt", "expected at least one question, got none"),
        ({"node_ids": "A=1\nB\n"}, "node_ids.txt, line 2", "expected `name=number`, got 'B'"),
        (
            {"node_ids": "A=1\nB=1\n"},
            "node_ids.txt, line 2",
            "expected each name and each number once",
        ),
        ({"node_ids": "\n"}, "node_ids.txt", "expected a number for `a node`"),
        (
            {"edge_types": "is=1\n"},
            "edge_types.txt",
            "expected a number for `has_fear`, got {'is': '1'}",
        ),
        ({"question_types": "is=1\n"}, "question_types.txt", "expected a number for `has_fear`"),
    ],
)
def test_a_damaged_file_is_told_by_line(
    tmp_path: Path, changes: dict[str, str], line: str, expected: str
) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, **changes)
    assert str(error.value).startswith(f"file {tmp_path / line}: {expected}"), error.value


def test_files_that_are_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the file ggnn/processed_2/train/15_graphs\.txt"):
        babi15.load(tmp_path, fold=2)
    read(tmp_path)
    (tmp_path / "graphs.txt").write_bytes(b"1 1 2\n\xff")
    with pytest.raises(DataError, match="line 2, column 1: expected UTF-8, got the byte 0xff"):
        babi15.read(*(tmp_path / f"{name}.txt" for name in FILES))


@pytest.mark.parametrize("n_nodes", [4, 8, 54])
def test_generated_answers_take_two_hops(n_nodes: int) -> None:
    questions = babi15.generate(30, n_nodes, seed=3)
    assert len(questions.graphs) == 30
    assert set(np.diff(questions.graphs.node_ptr)) == {n_nodes}
    assert len(questions.graphs.kinds) == 30 * 2 * n_nodes
    assert [deduced(questions, i) for i in range(30)] == questions.answers.tolist()
    assert not np.array_equal(
        questions.asked,
        babi15.generate(30, n_nodes, seed=4).asked,
    )
    for wrong in (
        {"n": 0},
        {
            "n": 1,
            "n_nodes": 7,
        },
        {"n": 1, "n_nodes": 2},
    ):
        with pytest.raises(SettingsError):
            babi15.generate(**wrong)


def test_instances_mark_the_asked_node_and_the_answer(tmp_path: Path) -> None:
    questions = read(tmp_path)
    batch = questions.followed_by(questions).instances(1, 3).gather(np.arange(2))
    assert batch["x"].payload[:, 0].tolist() == [0, 0, 0, 1, 0, 0, 1, 0]
    assert batch["answer"].payload[:, 0].tolist() == [0, 1, 0, 0, 1, 0, 0, 0]


def test_each_epoch_has_fresh_samples() -> None:
    supply = babi15.generate(10, 4).instances()
    window = babi15.Fresh(supply, 4)
    seen = []
    for _ in range(3):
        seen.append(window.gather(np.arange(4))["x"].payload)
        window = window.reshuffle(np.random.default_rng(0))
    wanted = supply.gather(np.arange(12) % 10)["x"].payload
    assert len(window) == 4
    assert np.array_equal(np.concatenate(seen), wanted)
    with pytest.raises(SettingsError, match="at most 10"):
        babi15.Fresh(supply, 11)


@pytest.mark.first_case
@pytest.mark.skipif(
    "AMPJAX_DATA" not in os.environ,
    reason="the real files are only read where AMPJAX_DATA names their folder",
)
@pytest.mark.parametrize("fold", [1, 3, 10])
def test_the_real_folds(fold: int) -> None:
    for questions in babi15.load(fold=fold):
        assert len(questions) == 4000
        assert set(np.diff(questions.graphs.node_ptr)) == {8}
        assert [deduced(questions, i) for i in range(0, 4000, 37)] == questions.answers[
            ::37
        ].tolist()
