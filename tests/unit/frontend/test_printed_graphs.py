"""Graphs of models, and of programs that use one combinator, are printed as they were (`support.printed`)."""

import pytest
from support.printed import FOLDER, cases, file

CASES = cases()
IN_EVERY_RUN = ("combinators/", "by hand/")
"""The others repeat what these have, in larger graphs, so they are left to nightly runs."""


@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith(IN_EVERY_RUN) else pytest.param(name, marks=pytest.mark.nightly)
        for name in CASES
    ],
)
def test_a_graph_is_printed_as_it_was(name):
    assert f"{CASES[name]()!r}\n" == file(name).read_text(encoding="utf-8")


def test_no_text_is_left_over():
    assert {file(name) for name in CASES} == set(FOLDER.rglob("*.txt"))
