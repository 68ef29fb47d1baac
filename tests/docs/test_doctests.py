"""Every example in a docstring of the package gives what it says."""

import doctest
import importlib
import pkgutil

import pytest

import ampjax

MODULES = sorted(m.name for m in pkgutil.walk_packages(ampjax.__path__, "ampjax.") if not m.name.endswith("__main__"))


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples in {name} failed, see the output above"
