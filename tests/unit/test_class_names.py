"""A class name says which class is meant: no two classes of ampjax share one, but for names that are still to change."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ampjax"

SHARED = {
    "Body": 2,
    "Hosts": 2,
    "Wire": 2,
}
"""Names that several classes have, and how many. A name leaves this list when its classes have names of their own; none comes in."""


def files_of_classes(package=PACKAGE):
    """The files that define a class of each name, by name."""
    files = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(path.relative_to(package).as_posix())
    return files


def shared_names(files):
    return {name: len(paths) for name, paths in files.items() if len(paths) > 1}


@pytest.mark.nightly
def test_no_two_classes_have_one_name():
    files = files_of_classes()
    shared = shared_names(files)
    new = {name: files[name] for name, n in shared.items() if n > SHARED.get(name, 1)}
    assert not new, "give the newer class a name of two words: its subject and its kind"


@pytest.mark.nightly
def test_the_list_of_shared_names_is_short_enough():
    shared = shared_names(files_of_classes())
    outdated = {name: n for name, n in SHARED.items() if shared.get(name, 1) < n}
    assert not outdated, "lower these entries of SHARED, or take them out: the names are free"


def test_classes_inside_functions_and_classes_count(tmp_path):
    (tmp_path / "one.py").write_text("class A:\n    class B: ...\n\n\nclass C: ...\n")
    (tmp_path / "two.py").write_text("def f():\n    class B: ...\n\n\nclass D: ...\n")
    assert shared_names(files_of_classes(tmp_path)) == {"B": 2}
