"""Old public names: each stands for the same thing as the new one, and warns at each use; nothing of ours uses one."""

import ast
import importlib
import inspect
import re
import warnings
from pathlib import Path

import pytest
from support.public_packages import PUBLIC

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import GraphError

ROOT = Path(__file__).parents[2]
PACKAGES = [*PUBLIC, "ampjax.tuning"]
MOVED = {name: importlib.import_module(name)._MOVED for name in PACKAGES}
SHORT = {"amp": "ampjax", "ag": "ampjax.graphs", "px": "ampjax.parallel"}
PROGRAMS = ["ampjax", "experiments", "notebooks", "tests", "docs", ".ci"]
OTHER_VERSIONS = {"CHANGELOG.md", "docs/moved_names.md", "tests/docs/test_moved_names.py"}
"""Where old names may be."""


def found(place):
    """The object of a name with its module."""
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_old_name_is_the_new_one_and_warns(package):
    module = importlib.import_module(package)
    for old, new in MOVED[package].items():
        with pytest.warns(DeprecationWarning, match=re.escape(f"`{new}`")) as told:
            same = getattr(module, old)
        assert same is found(new), old
        assert len(told) == 1 and told[0].filename == __file__, old


@pytest.mark.parametrize("package", PACKAGES)
def test_old_names_are_not_offered(package):
    module = importlib.import_module(package)
    assert not set(MOVED[package]) & {*module.__all__, *dir(module), *vars(module)}
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing


def test_the_warning_names_the_line_of_an_import():
    with pytest.warns(DeprecationWarning) as told:
        from ampjax import pump
    line = inspect.getsourcelines(test_the_warning_names_the_line_of_an_import)[1] + 2
    assert {(one.filename, one.lineno) for one in told} == {(__file__, line)}
    assert pump is ag.pump


def test_each_use_warns():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            _ = amp.Graph
    assert len(told) == 3


def test_cond_of_a_wire_is_that_of_graphs_and_warns():
    with ag.Graph() as graph:
        x = ag.pump("x", fields=("t",))
        with pytest.warns(DeprecationWarning, match=r"`ampjax\.graphs\.cond`") as told:
            ways = amp.cond(
                x,
                lambda s: s.t,
                n=3,
                name="way",
            )
        for i, way in enumerate(ways):
            ag.sink(f"sink {i}", way)
    assert len(told) == 1 and told[0].filename == __file__
    assert graph.nodes["way"].kind == "Cond" and len(ways) == 3


@pytest.mark.parametrize("functions", [(), (abs,)])
def test_cond_wants_two_functions(functions):
    with pytest.raises(GraphError, match=f"true and one for false, got {len(functions)} of them"):
        amp.cond(True, *functions)


def test_cond_says_what_it_takes():
    assert [*inspect.signature(amp.cond).parameters] == ["pred", "true", "false", "operands"]
    assert amp.cond(1, true=lambda: "yes", false=lambda: "no") == "yes"


def test_a_page_lists_all():
    page = (ROOT / "docs/moved_names.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", page, re.MULTILINE))
    expected = {}
    for package, moved in MOVED.items():
        for old, new in moved.items():
            expected[f"{package}.{old}"] = new
    assert rows == expected


def aliases(tree):
    """The names by which a program calls ampjax and its packages."""
    names = dict(SHORT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({a.asname: a.name for a in node.names if a.asname})
        elif isinstance(node, ast.ImportFrom):
            names.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    return names


OLD = {name for moved in MOVED.values() for name in moved}
MAY_USE = re.compile(
    rf"\.\s*(?:{'|'.join(sorted(OLD))})\b|\bfrom (?:{'|'.join(map(re.escape, PACKAGES))}) import"
)
"""What a program with an old name has: to parse all programs takes four seconds."""


def old_names(program):
    """The old names in a program, with their packages."""
    tree = ast.parse(program)
    names = aliases(tree)
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            used |= {(node.module, a.name) for a in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.add(
                (
                    names.get(node.value.id),
                    node.attr,
                )
            )
    result = set()
    for package, name in used:
        if name in MOVED.get(package, ()):
            result.add(f"{package}.{name}")
    return result


def texts(*folders, suffix):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob(f"*{suffix}")):
            if path.relative_to(ROOT).as_posix() not in OTHER_VERSIONS:
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def test_no_program_uses_an_old_name():
    used = {}
    for path, program in texts(*PROGRAMS, suffix=".py"):
        if MAY_USE.search(program) and (names := old_names(program)):
            used[str(path)] = names
    assert not used


def test_no_page_uses_an_old_name():
    used = {}
    ways = []
    for alias, package in SHORT.items():
        ways.append(rf"{alias}\.(?:{'|'.join(MOVED[package])})")
    old = re.compile(rf"(?<![\w.])(?:{'|'.join(ways)})\b")
    pages = [*texts("docs", suffix=".md"), *texts("ampjax", "notebooks", suffix=".py")]
    for name in ("README.md", "ARCHITECTURE.md"):
        pages.append(
            (
                name,
                (ROOT / name).read_text(encoding="utf-8"),
            )
        )
    for path, text in pages:
        if names := old.findall(text):
            used[str(path)] = names
    assert len(pages) > 100 and not used


def test_old_names_are_found():
    program = (
        "import ampjax as a\nimport ampjax.parallel\nfrom ampjax import pump, optim as o\n"
        "a.Graph, a.Trainer, o.combine, o.delayed, px.Config"
    )
    assert MAY_USE.search(program)
    assert old_names(program) == {
        "ampjax.pump",
        "ampjax.Graph",
        "ampjax.optim.combine",
        "ampjax.parallel.Config",
    }
