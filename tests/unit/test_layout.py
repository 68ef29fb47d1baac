"""The house: packages import downwards only, files are few to a package, and a file's name says one thing."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ampjax"
LOOSE = {"__init__", "errors", "graphs", "moved_names"}
"""What may stand beside the packages: users import it, or it goes with a coming version."""
ONLY_FOR_ITS_USERS = {("ampjax.ir.bodies", "flax")}
"""Imports of what an extra installs, made when a user gives a thing of that package."""
MOST_IN_CIRCLES_OF_TYPES = 32
"""Files that lead back to themselves where imports for type checkers count; the number may only fall."""
IN_TWO_FOLDERS = {
    "ir.ops",
    "parallel.equivalence",
    "train.batch_training",
    "train.checkpoints",
    "train.optimizers",
    "train.runs",
}
"""Folders that their own parents import, and that import these: a name may leave this list, none comes in."""
MOST_FILES = 15
MOST_METHODS = 16
MOST_ATTRIBUTES = 13
"""A class that has more says why in its docstring ("more than 15 methods")."""


def modules() -> dict[str, Path]:
    """All modules of ampjax, by name."""
    names = {}
    for p in PACKAGE.rglob("*.py"):
        names[".".join(p.relative_to(ROOT).with_suffix("").parts)] = p
    result = {}
    for name, path in names.items():
        result[name.removesuffix(".__init__")] = path
    return result


def imported(
    path: Path,
    known: dict[str, Path],
    types: bool = False,
) -> Iterator[str]:
    """The modules of ampjax that a file imports, wherever in the file; imports for type checkers alone only with `types`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not types
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def absolute_imports(path: Path) -> Iterator[str]:
    """All modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    known = modules()
    result = {}
    for name, path in known.items():
        result[name] = set(imported(path, known)) - {name}
    return result


def rooms() -> list[str]:
    """The packages that ARCHITECTURE.md lists, from the top."""
    text = (
        (ROOT / "ARCHITECTURE.md")
        .read_text(encoding="utf-8")
        .partition("## The rooms")[2]
        .partition("\n## ")[0]
    )
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


def room(module: str) -> str:
    if "." in module:
        return module.split(".")[1]
    return module


def folder(module: str) -> str:
    if (ROOT / module.replace(".", "/")).is_dir():
        return module
    return module.rpartition(".")[0]


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Names from which following arrows leads back to them."""
    found = []
    for start in arrows:
        seen = set()
        left = list(arrows[start])
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left.extend(arrows.get(name, ()))
        if start in seen:
            found.append(start)
    return found


def test_architecture_lists_every_package():
    there = {room(name) for name in modules()}
    assert sorted(rooms()) == sorted(there)


def test_imports_only_go_down_the_list(imports: dict[str, set[str]]):
    floor = {name: n for n, name in enumerate(rooms())}
    back = []
    for name, others in imports.items():
        for other in others:
            if floor[room(name)] > floor[room(other)]:
                back.append(f"{name} imports {other}")
    assert not back


@pytest.mark.nightly
def test_the_library_knows_nothing_of_experiments_and_tests():
    """A user of the wheel has neither, nor what an extra installs."""
    outside = {"experiments", "support", "flax", "orbax", "scipy", "tyro"}
    reached = []
    for name, path in modules().items():
        for other in absolute_imports(path):
            if other.split(".")[0] in outside and (name, other) not in ONLY_FOR_ITS_USERS:
                reached.append((name, other))
    assert reached == []


@pytest.mark.parametrize("folder", ["data", "models"])
def test_models_and_data_know_nothing_of_other_experiments(folder: str):
    below = ("experiments.data", "experiments.models")[: 1 + (folder == "models")]
    reached = []
    for path in (ROOT / "experiments" / folder).rglob("*.py"):
        for other in absolute_imports(path):
            if other.startswith("experiments") and not other.startswith(below):
                reached.append((path.name, other))
    assert reached == []


def test_no_files_import_each_other_in_a_circle(imports: dict[str, set[str]]):
    assert circles(imports) == []


@pytest.mark.nightly
def test_files_in_circles_of_types_do_not_become_more():
    """Imports for type checkers alone make these circles; a protocol, or a file for the class, takes one away."""
    known = modules()
    arrows = {}
    for name, path in known.items():
        arrows[name] = set(imported(path, known, types=True)) - {name}
    assert len(circles(arrows)) <= MOST_IN_CIRCLES_OF_TYPES


@pytest.mark.nightly
def test_folders_that_import_their_own_parents_do_not_become_more(imports: dict[str, set[str]]):
    """A folder and a parent that import each other are parts of one floor, in two folders."""
    arrows: dict[str, set[str]] = {}
    for name, others in imports.items():
        arrows.setdefault(
            folder(name),
            set(),
        ).update(folder(other) for other in others)
    mutual = set()
    for name, others in arrows.items():
        parent = name.rpartition(".")[0]
        if parent != "ampjax" and parent in others and name in arrows.get(parent, ()):
            mutual.add(name.removeprefix("ampjax."))
    assert mutual <= IN_TWO_FOLDERS


def test_no_folders_of_a_package_import_each_other_in_a_circle(imports: dict[str, set[str]]):
    arrows: dict[str, set[str]] = {}
    for name, others in imports.items():
        arrows.setdefault(
            folder(name),
            set(),
        ).update(folder(other) for other in others)
    for name in rooms():
        inner = {}
        for a, bs in arrows.items():
            if a.startswith(f"ampjax.{name}."):
                inner[a] = {b for b in bs if b != a}
        assert circles({a: {b for b in bs if b in inner} for a, bs in inner.items()}) == []


def test_no_package_has_too_many_files():
    counts = Counter(path.parent for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert {str(path): n for path, n in counts.items() if n > MOST_FILES} == {}
    assert {path.stem for path in PACKAGE.glob("*.py")} == LOOSE


def test_no_two_files_have_one_name():
    counts = Counter(path.stem for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__"))
    assert [name for name, n in counts.items() if n > 1] == []


def members(node: ast.ClassDef) -> tuple[int, int]:
    """A class's methods and attributes, counted."""
    methods = []
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            methods.append(each)
    fields = set()
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            fields.add(each.target.id)
    inside = []
    for method in methods:
        for each in ast.walk(method):
            if isinstance(each, ast.Attribute):
                inside.append(each)
    set_here = set()
    for each in inside:
        if isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self":
            set_here.add(each.attr)
    return len(methods), len(fields | set_here)


@pytest.mark.nightly
def test_large_classes_say_why():
    silent = []
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                n_methods, n_attributes = members(node)
                text = (ast.get_docstring(node) or "").replace("\n", " ")
                if n_methods > MOST_METHODS and "more than 15 methods" not in text:
                    silent.append(f"{name}.{node.name}: {n_methods} methods")
                if n_attributes > MOST_ATTRIBUTES and not re.search(
                    "more than (15 methods and )?twelve", text
                ):
                    silent.append(f"{name}.{node.name}: {n_attributes} attributes")
    assert not silent, (
        "split them, or let their docstrings say why they have more than 15 methods or twelve attributes"
    )


def test_members_are_counted():
    (node,) = ast.parse(
        "class A:\n  x: int\n  def f(self):\n    self.y = self.z\n    other.w = 1"
    ).body
    assert isinstance(node, ast.ClassDef) and members(node) == (1, 2)


def test_circles_are_found():
    assert circles(
        {
            "a": {"b"},
            "b": {"c"},
            "c": {"b"},
            "d": set(),
        }
    ) == ["b", "c"]
