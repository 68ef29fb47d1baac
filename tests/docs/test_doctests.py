"""Every example in a docstring of the package gives what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

import ampjax

PACKAGE = Path(ampjax.__file__).parent
MODULES = {
    ".".join(["ampjax", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): file
    for file in sorted(PACKAGE.rglob("*.py"))
    if file.name != "__main__.py"
}
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
