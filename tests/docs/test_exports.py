"""The public names: what users may import, from where, and that the notebooks and the README import nothing else."""

import importlib
import re
from pathlib import Path

import pytest
from support.public_packages import MOST

ROOT = Path(__file__).parents[2]

EXPERIMENTS = ["experiments.data", "experiments.models"]


def names(package):
    """A package's public names."""
    return importlib.import_module(package).__all__


MODULES = {
    "ampjax.errors",
    *(f"{package}.{name}" for package in EXPERIMENTS for name in names(package)),
}
"""Modules from which users import, too; in a clone also those of the experiments."""


@pytest.mark.parametrize("package", [*MOST, *EXPERIMENTS])
def test_public_names(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    assert sorted(dir(module)) == sorted(module.__all__), "completion shows these and nothing else"


@pytest.mark.parametrize("package", MOST)
def test_public_names_are_few(package):
    assert len(names(package)) <= MOST[package]


@pytest.mark.parametrize("package", [*MOST, *EXPERIMENTS])
def test_what_is_public_says_what_it_is(package):
    module = importlib.import_module(package)
    silent = []
    for name in module.__all__:
        if not getattr(module, name).__doc__:
            silent.append(name)
    assert not silent


def imports(source):
    """The modules that a program imports from ampjax or the experiments, and the names."""
    pattern = r"^\s*from ((?:ampjax|experiments)[\w.]*) import ([\w, ]+?)(?:  #.*)?$"
    found = re.findall(pattern, source, re.MULTILINE)
    result = []
    for module, names in found:
        for name in names.split(","):
            result.append((module, name.strip()))
    return result


def programs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    yield "README.md", "\n".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL))
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")  # what is not code are comments


def test_notebooks_and_readme_import_public_names_only():
    every = []
    for page, source in programs():
        for found in imports(source):
            every.append((page, *found))
    assert len(every) > 20
    wrong = []
    for page, module, name in every:
        is_experiment = module.startswith("experiments") and not name.startswith("_")
        if is_experiment or module in MODULES:
            continue
        if name not in getattr(importlib.import_module(module), "__all__", ()):
            wrong.append((page, module, name))
    assert not wrong
