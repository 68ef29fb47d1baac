"""The conda recipe and `pyproject.toml` agree, up to conda's names."""

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
    """A requirement of pip's in conda's form: `jax >=0.10` for `jax>=0.10`."""
    match = re.fullmatch(r"([\w-]+)([<>=!].*)?", requirement)
    assert match, requirement
    name = OTHER_NAMES.get(match[1], match[1])
    versions = match[2] or ""
    return f"{name} {versions}".strip()


def test_version_and_words(project: dict, recipe: dict):
    said = project["project"]
    package = recipe["package"]
    about = recipe["about"]
    assert package["name"] == said["name"]
    assert package["version"] == said["version"]
    assert about["summary"] == said["description"]
    assert about["license"] == said["license"]
    assert [about["license_file"]] == said["license-files"]


def test_requirements(project: dict, recipe: dict):
    said = project["project"]
    python = said["requires-python"]
    needed = [f"python {python}"]
    for each in said["dependencies"]:
        needed.append(in_conda(each))
    assert recipe["requirements"]["run"] == needed


def test_build_requirements(project: dict, recipe: dict):
    python = project["project"]["requires-python"]
    oldest = python.removeprefix(">=")
    needed = [f"python {oldest}.*", "pip"]
    for each in project["build-system"]["requires"]:
        needed.append(in_conda(each))
    assert recipe["requirements"]["host"] == needed


def test_files_of_its_tests_are_there(recipe: dict):
    named = []
    for test in recipe["tests"]:
        named += test.get("files", {}).get("source", [])
    assert named
    missing = []
    for name in named:
        if not (ROOT / name).is_file():
            missing.append(name)
    assert missing == []


def test_imports_of_its_tests_are_modules_of_the_package(recipe: dict):
    imports = recipe["tests"][0]["python"]["imports"]
    missing = []
    for module in imports:
        path = ROOT / module.replace(".", "/")
        file = path.with_suffix(".py")
        if not (path.is_dir() or file.is_file()):
            missing.append(module)
    assert imports
    assert missing == []


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
