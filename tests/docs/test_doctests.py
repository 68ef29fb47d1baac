"""Every example in a docstring of the package, and of the experiments' models and data sets, gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ampjax", "experiments/data", "experiments/models")


def modules():
    """Their files, by the modules' names."""
    files = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = file
    return files


MODULES = modules()
WITH_EXAMPLES = [name for name, file in MODULES.items() if ">>>" in file.read_text()]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_doctests(name):
    result = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert result.attempted, f"no example was found in {name}"
    assert result.failed == 0, (
        f"{result.failed} of {result.attempted} examples in {name} failed, see the output above"
    )


def test_every_module_can_be_imported():
    for name in MODULES:
        importlib.import_module(name)
