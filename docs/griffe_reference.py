"""For mkdocstrings, whose Griffe reads files and imports nothing: what packages export, and examples in docstrings.

`ampjax.viz.gantt` is a function that the package takes from its module `gantt`; Griffe would find the module there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).+)*", re.MULTILINE)
"""A doctest: from its first prompt to the next empty line."""
RESULT = re.compile(r"^(?:Returns|Yields):\n +", re.MULTILINE)
"""The place where a result is described. Griffe takes what stands before a colon for its type; before a first colon nothing stands, so the annotation counts."""
SIZE = re.compile(r"\s*\b(?:The class|It) has more than 15 methods[,:].*?\.(?=\s|$)", re.DOTALL)
"""What a class says to the test of its size, which is nothing for readers."""


class Reference(griffe.Extension):
    """Puts exported objects in their place once a package has been read, and makes code of doctests."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Mends a package and all that is in it."""
        for thing in list(_within(pkg)):
            if thing.docstring is not None:
                text = SIZE.sub("", thing.docstring.value)
                text = RESULT.sub(r"\g<0>: ", text)
                thing.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)
        for module in [pkg, *_submodules(pkg)]:
            exported = {
                name: _exported(module, name)
                for name in module.imports
                if name in (module.exports or ())
            }
            for name, target in exported.items():
                if target is not None and target is not module.members.get(name):
                    module.set_member(name, griffe.Alias(name, target, parent=module))


def _submodules(package: griffe.Module) -> Iterator[Any]:
    """The modules of a package; names that it imports, such as `typing.TYPE_CHECKING`, may be of packages that are not read."""
    for member in package.members.values():
        if not member.is_alias and member.is_module:
            yield member


def _within(thing: Any) -> Iterator[Any]:
    """An object and its members, those left out that are imported."""
    yield thing
    for member in thing.members.values():
        if not member.is_alias:
            yield from _within(member)


def _exported(module: griffe.Module, name: str) -> griffe.Object | None:
    """What a module exports under a name that it imports; None for what comes from elsewhere."""
    found: Any = module.package
    for part in module.imports[name].removeprefix(f"{module.package.path}.").split("."):
        if part not in found.members:
            return None
        found = found.members[part]
        if found.is_alias:
            found = found.final_target
    return found
