"""Refusals of training by batches: options of messages, of several workers, or of tables in host memory."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.train.batch_training.batch_function import BatchFunction
from ampjax.train.settings import Settings

ALLOWED = (
    "mode",
    "max_active_keys",
    "group_by_size",
    "gradient",
    "frozen",
    "compile_ahead",
    "seed",
)
"""The settings that mean something where there are no messages."""

_FIX = "Leave it out, or train with `mode='pipeline'`, through messages."


def batch_function(
    graph: Graph,
    settings: Settings,
    **parts: Any,
) -> BatchFunction:
    """The model of a graph as one function of a batch.

    Args:
      graph: The graph.
      settings: How it is trained.
      **parts: What else a trainer was given, by name; None if it was not.

    Raises:
      SettingsError: If the graph was not compiled from a model, or anything is set that needs messages.
    """
    if graph.batched is None:
        expected = "the graph of a model, made by `amp.compile`"
        fix = "Write the model as a function of one example, or train with `mode='pipeline'`."
        raise SettingsError("mode='batch'", expected, "one that was built by hand", fix)
    for name, part in parts.items():
        if part is not None:
            raise SettingsError(f"mode='batch', `{name}`", "none", f"{part!r:.60}", _FIX)
    usual = Settings()
    for field in fields(Settings):
        value = getattr(settings, field.name)
        if field.name not in ALLOWED and value != getattr(usual, field.name):
            where = f"mode='batch', setting `{field.name}`"
            raise SettingsError(where, "its default: there are no messages", f"{value!r:.60}", _FIX)
    copies = set()
    for name, node in graph.parameterised.items():
        if node.table is not None:
            where = f"mode='batch', node `{name}`"
            fix = "Compile with its rows, `table.dense()`, or train with `mode='pipeline'`."
            raise SettingsError(where, "parameters in arrays", "a table in host memory", fix)
        if node.role in copies:
            where = f"mode='batch', node `{node.role}`"
            fix = "Compile without `copies` and `replicas`: a batch is one program."
            raise SettingsError(where, "one copy", "several", fix)
        copies.add(node.role)
    return graph.batched()


def no_messages(name: str) -> SettingsError:
    """The error where something is asked for that tells of messages.

    Args:
      name: What.
    """
    fix = "Leave it out, or train with `mode='pipeline'`, through messages."
    return SettingsError(
        f"mode='batch', `{name}`",
        "nothing that tells of messages",
        "it",
        fix,
    )


def refuse_messages(settings: Settings, **options: Any) -> None:
    """Refuses options about messages, since training by batches sends none.

    Args:
      settings: The trainer's settings.
      **options: By name; None if it was not given.

    Raises:
      SettingsError: If anything was.
    """
    for name, value in options.items():
        if settings.mode == "batch" and value is not None:
            raise no_messages(name)
