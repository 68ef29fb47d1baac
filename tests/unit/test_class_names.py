"""A class name says which class is meant: no two classes of ampjax share one."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ampjax"


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
    lengths = {}
    for name, paths in files.items():
        if len(paths) > 1:
            lengths[name] = len(paths)
    return lengths


@pytest.mark.nightly
def test_no_two_classes_have_one_name():
    files = files_of_classes()
    shared = {name: files[name] for name in shared_names(files)}
    assert not shared, "give the newer class a name of two words: its subject and its kind"


def test_classes_inside_functions_and_classes_count(tmp_path):
    (tmp_path / "one.py").write_text("class A:\n    class B: ...\n\n\nclass C: ...\n")
    (tmp_path / "two.py").write_text("def f():\n    class B: ...\n\n\nclass D: ...\n")
    assert shared_names(files_of_classes(tmp_path)) == {"B": 2}
