"""An optimizer's functions on rows as plain data, for a server process, which knows neither the optimizer nor the user's program.

What travels is the lowered program (StableHLO) for arguments of given shapes, the one that the client itself would have compiled, with
JAX's settings. So both ends compute the same bits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import export

from ampjax.optim.row_rule import RowRule
from ampjax.sparse.rows.row_kernels import Function, jitted_functions

Shapes = tuple[Any, ...]
"""Arguments with a `ShapeDtypeStruct` for each array, in tuples."""


_SETTINGS = ("jax_enable_x64", "jax_disable_most_optimizations", "jax_optimization_level")
"""Settings of JAX that change what becomes of a program, and may have been changed since this process began."""


class ExportedFunction(NamedTuple):
    """A function as plain data.

    Args:
      settings: JAX's settings, by name.
      program: The fields of JAX's exported program. Structures of arguments and results are nested numbers in place of JAX's objects.
    """

    settings: dict[str, Any]
    program: dict[str, Any]


_TREES = "in_tree", "out_tree"


def export_function(rule: RowRule, name: str, shapes: Shapes) -> ExportedFunction:
    """One of a rule's functions for arguments of some shapes, as plain data.

    Args:
      rule: The optimizer's rule for a table.
      name: The function's name, see `row_kernels.jitted_functions`.
      shapes: The shapes of its arguments.

    Returns:
      What `ImportedFunctions` reads: the program and JAX's settings.
    """
    return _export_function(rule, name, shapes, tuple(jax_settings().items()))


def jax_settings() -> dict[str, Any]:
    """Settings of JAX that another process must have to compile the same, by name."""
    return {setting: _value(setting) for setting in _SETTINGS}


@functools.lru_cache(maxsize=256)
def _export_function(
    rule: RowRule,
    name: str,
    shapes: Shapes,
    settings: tuple[tuple[str, Any], ...],
) -> ExportedFunction:
    program = export.export(
        jitted_functions(rule)[name],
        platforms=("cpu",),
    )(*shapes)
    # Not `serialize`, which needs one more package for what both ends, of one version, can do without. Nobody differentiates it.
    fields = {field.name: getattr(program, field.name) for field in dataclasses.fields(program)} | {
        "_get_vjp": None
    }
    for tree in _TREES:
        structure: Any = fields[tree]
        fields[tree] = jax.tree.unflatten(structure, range(structure.num_leaves))
    return ExportedFunction(dict(settings), fields)


def _value(setting: str) -> Any:
    """Reads a setting's value. JAX has another way for settings that a `with` block may change."""
    if hasattr(jax.config, setting):
        return getattr(jax.config, setting)
    return jax.config.read(setting)


class ImportedFunctions:
    """A rule's functions at a server process, each requested at its first call with arguments of some shapes.

    Args:
      fetch: Gives what `export_function` made of a function's name and its arguments' shapes.
    """

    def __init__(self, fetch: Callable[[str, Shapes], ExportedFunction]):
        self._fetch = fetch
        self._known: dict[Any, Function] = {}

    def __call__(
        self,
        name: str,
        args: tuple[Any, ...],
    ) -> Function:
        """The function of that name for such arguments."""
        key = name, *((array.shape, array.dtype) for array in jax.tree.leaves(args))
        if key not in self._known:
            shapes = jax.tree.map(
                lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), args
            )
            settings, fields = self._fetch(name, shapes)
            for setting, value in settings.items():
                jax.config.update(setting, value)
            trees = {tree: jax.tree.structure(fields[tree]) for tree in _TREES}
            self._known[key] = jax.jit(export.Exported(**(fields | trees)).call)
        return self._known[key]
