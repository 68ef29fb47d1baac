"""Lines are as easy to read as they were: no package's figures rise (`support.line_measures`)."""

import ast
import json

import pytest
from support.line_measures import (
    FILE,
    HELD,
    WHOLE,
    LineMeasures,
    complexity,
    is_parallel,
    leans,
    lowered,
    measured,
)

HELD_TO = json.loads(FILE.read_text())
COMPLEX_FOR_A_REASON = {
    "cluster/wire/trees.py:_down": "one case for each type that travels",
    "cluster/wire/zmq_channel.py:_error": "reasons from the surest to the least: their order is the rule",
    "drivers/issue_queue.py:add": "the order of notes, launches and hooks is the rule",
    "engine/kernels/residuals.py:follow": "three passes over one set of variables",
    "ir/builders/replicate_builder.py:copies": "what a builder of copies does, in the order in which nodes are built",
    "ir/ways_to_sinks.py:_before": "one case for each kind of node",
    "sched/loops/build_dispatch.py:try_build": "compiled: once per dispatch, and steps in a fixed order",
    "sched/loops/virtual_run.py:advance": "compiled: the loop of virtual time, whose state is its local variables",
    "testing/interpreter.py:_consume": "one case for each kind of node",
    "trace/trace_file.py:_take": "one case for each kind of record",
}
"""The functions of ampjax that are complex, and the reasons why a split would not read better."""


@pytest.fixture(scope="module")
def measures():
    return measured()


@pytest.mark.nightly
@pytest.mark.slow
def test_every_package_is_held_to_figures(measures):
    assert set(measures) == set(HELD_TO), "run `python -m support.line_measures --write` in tests/"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("package", HELD_TO)
def test_no_figure_rises(measures, package):
    now = measures[package].figures
    risen = {}
    for name in HELD:
        if now[name] > HELD_TO[package][name]:
            risen[name] = (HELD_TO[package][name], now[name])
    assert not risen, (
        "one statement a line, an argument a line in long calls, a function for each thought"
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_complex_functions_have_a_reason(measures):
    found = set()
    for name in measures[WHOLE].complex_functions:
        function, _, _ = name.rpartition(":")
        found.add(function.removeprefix("ampjax/"))
    assert found == set(COMPLEX_FOR_A_REASON), "split what is new here, or say why not"


def counts(text):
    measures = LineMeasures()
    measures.add(text, "file")
    return measures


def test_tokens_of_code_are_counted():
    text = '"""Prose."""\n\n\ndef f(x):  # a comment\n    """Prose\n    of two lines."""\n    return (\n        x\n    )\n'
    measures = counts(text)
    assert measures.lines == 4
    assert measures.tokens == 6 + 2 + 1 + 1
    assert measures.comments == 1


def test_dense_lines_are_counted():
    full = "x = [" + "1, " * 8 + "1]"
    assert counts(full).tokens == 21
    assert counts(full).dense == 1
    assert counts(full.replace("1, 1]", "1]")).dense == 0


@pytest.mark.parametrize(
    ("text", "parallel"),
    [
        ("a, b = 1, 2", True),
        ("a, b = b, a + b", True),
        ("a, b = b, a", False),
        ("a[i], a[j] = a[j], a[i]", False),
        ("a, b = f()", False),
        ("a = b = 1", False),
        ("a = 1, 2", False),
    ],
)
def test_parallel_assignments_are_told_from_swaps(text, parallel):
    (node,) = ast.parse(text).body
    assert is_parallel(node) is parallel


@pytest.mark.parametrize(
    ("body", "decisions"),
    [
        ("pass", 0),
        ("if a:\n  pass\n elif b:\n  pass\n else:\n  pass", 2),
        ("while a and b or c:\n  pass", 3),
        ("return [x for y in z for x in y]", 2),
        ("return a if b else c", 1),
        ("try:\n  pass\n except A:\n  pass\n except B:\n  pass", 2),
        ("def g():\n  if a:\n   pass", 0),
    ],
)
def test_complexity_counts_decisions(body, decisions):
    (node,) = ast.parse(f"def f():\n {body}").body
    assert complexity(node) == 1 + decisions


@pytest.mark.parametrize(
    ("docstring", "leaning"),
    [
        ("What differs whenever rows may.", True),
        ("Those that wait.", True),
        ("Tells what waits for it.", True),
        ("Kernels, and how many of them wait.", True),
        ("Nodes of a stage: who waits.", True),
        ("The rows and the slots of these.", True),
        ("A version token: changes whenever a row may have changed.", False),
        ("Lists the messages that wait for these nodes.", False),
        ("Compiles kernels.\n\nIt may take long.", False),
        ("", False),
    ],
)
def test_first_lines_that_lean_on_pronouns_are_found(docstring, leaning):
    assert leans(docstring) is leaning
    function = f"def f():\n    {docstring!r}\n" if docstring else "def f(): ...\n"
    assert counts(function).leaning == leaning


def test_figures_are_only_lowered():
    high = dict.fromkeys(HELD, 10.0)
    low = dict.fromkeys(HELD, 5.0)
    assert lowered(high, low) == low == lowered(low, high)
    assert lowered(high, {}) == high


def test_figures_are_held_in_steps():
    now = {
        "tokens_per_line": 8.11,
        "dense_percent": 4.1,
        "parallel_percent": 0.11,
        "complex_functions": 3,
        "leaning_docstrings": 12,
    }
    steps = {
        "tokens_per_line": 8.2,
        "dense_percent": 4.5,
        "parallel_percent": 0.2,
        "complex_functions": 3,
        "leaning_docstrings": 15,
    }
    assert lowered(now, {}) == steps == lowered(steps, {})
