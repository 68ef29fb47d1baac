"""The conda recipe says what `pyproject.toml` says, in conda's names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OTHER_NAMES = {"matplotlib": "matplotlib-base"}
"""Packages that conda-forge splits: this part is what a library needs."""


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recipe() -> dict:
    """The recipe, with the values of its `context` put in."""
    text = (ROOT / "conda/recipe.yaml").read_text(encoding="utf-8")
    for name, value in yaml.safe_load(text)["context"].items():
        text = text.replace(f"${{{{ {name} }}}}", value)
    return yaml.safe_load(text)


def in_conda(requirement: str) -> str:
    """A requirement of pip's, as conda writes it: `jax>=0.10` as `jax >=0.10`."""
    match = re.fullmatch(r"([\w-]+)([<>=!].*)?", requirement)
    assert match, requirement
    name, versions = match[1], match[2] or ""
    return f"{OTHER_NAMES.get(name, name)} {versions}".strip()


def test_version_and_words(project: dict, recipe: dict):
    said = project["project"]
    assert recipe["package"] == {"name": said["name"], "version": said["version"]}
    assert recipe["about"]["summary"] == said["description"]
    assert recipe["about"]["license"] == said["license"]
    assert [recipe["about"]["license_file"]] == said["license-files"]


def test_requirements(project: dict, recipe: dict):
    said = project["project"]
    python = f"python {said['requires-python']}"
    needed = [in_conda(each) for each in said["dependencies"]]
    assert recipe["requirements"]["run"] == [python, *needed]


def test_build_requirements(project: dict, recipe: dict):
    oldest = project["project"]["requires-python"].removeprefix(">=")
    needed = [in_conda(each) for each in project["build-system"]["requires"]]
    assert recipe["requirements"]["host"] == [f"python {oldest}.*", "pip", *needed]


def test_files_of_its_tests_are_there(recipe: dict):
    named = []
    for test in recipe["tests"]:
        named += test.get("files", {}).get("source", [])
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_imports_of_its_tests_are_modules_of_the_package(recipe: dict):
    imports = recipe["tests"][0]["python"]["imports"]
    missing = []
    for module in imports:
        path = ROOT / module.replace(".", "/")
        if not (path.is_dir() or path.with_suffix(".py").is_file()):
            missing.append(module)
    assert imports and missing == []


@pytest.mark.parametrize(
    ("pip", "conda"),
    [
        ("jax>=0.10.2", "jax >=0.10.2"),
        ("jaxlib>=0.10.2,!=0.11.1", "jaxlib >=0.10.2,!=0.11.1"),
        ("matplotlib>=3.9", "matplotlib-base >=3.9"),
        ("ml_dtypes", "ml_dtypes"),
    ],
)
def test_requirements_in_condas_form(pip: str, conda: str):
    assert in_conda(pip) == conda
