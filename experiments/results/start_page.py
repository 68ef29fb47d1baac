"""The start page's table of speeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.results.batch_tables import by_work, every
from experiments.results.kept_records import Kept
from experiments.results.markdown import in_words, table


@dataclass(frozen=True)
class Line:
    """A line of the table.

    Args:
      what: An update, or a call.
      beside: What it is compared with.
      works: Works of `bench batch` or `bench lanes`.
      ratio: The field of their records that says how many times as fast.
      tells_memory: Whether to say how much of the other's memory it needs.
    """

    what: str
    beside: str
    works: tuple[str, ...]
    ratio: str = "ratio"
    tells_memory: bool = False


LINES = (
    Line(
        "Tree-LSTM, 64 trees of the Stanford treebank",
        "JAX by hand, level by level",
        ("trees",),
        tells_memory=True,
    ),
    Line(
        "tagger with a model of characters, 64 sentences of WikiNER",
        "JAX by hand, padded",
        ("tagger",),
        tells_memory=True,
    ),
    Line("encoder and decoder with attention", "JAX by hand, padded", ("translation",)),
    Line(
        "list reduction, 16 and 100 sequences",
        "JAX by hand, padded",
        ("list-reduction-16", "list-reduction-100"),
    ),
    Line(
        "gated graph network, 20 and 64 molecules of QM9",
        "JAX by hand, as in jraph",
        ("molecules-20", "molecules-64"),
    ),
    Line(
        "distances in 64 graphs, by up to eight rounds",
        "JAX by hand, segment sums",
        ("distances",),
    ),
    Line(
        "attention over 200 words, and in a graph of 400 nodes",
        "JAX by hand",
        ("attention-200", "graph-attention"),
    ),
    Line(
        "NUTS of BlackJAX, 128 chains in a funnel",
        "`jax.vmap`",
        ("nuts-funnel",),
        "to_vmap",
    ),
    Line(
        "Van der Pol's equation by diffrax, 512 of different stiffness",
        "`jax.vmap`",
        ("van-der-pol",),
        "to_vmap",
    ),
    Line("L-BFGS of optax, 256 problems", "`jax.vmap`", ("lbfgs",), "to_vmap"),
    Line("loops of equally many trips", "`jax.vmap`", ("loops-equal",), "to_vmap"),
)

FRACTIONS = (
    (0.15, "a tenth"),
    (0.225, "a fifth"),
    (0.29, "a quarter"),
    (0.4, "a third"),
    (0.6, "half"),
    (0.85, "three quarters"),
)
"""Shares up to these numbers, in words."""


def how_fast(kept: Kept) -> str:
    """The table, in Markdown.

    Args:
      kept: The records.
    """
    records = by_work(every(kept.records()))
    rows = []
    for line in LINES:
        rows.append([line.what, line.beside, _cell(line, records)])
    headers = ("an update, or a call", "compared with", "times as fast")
    later = f", some lines again at commit {kept.later_commits}" if kept.later_commits else ""
    measured = f"*{kept.setting.at}, {in_words(kept.setting.date)}{later}.*"
    return f"{table(headers, rows)}\n\n{measured}"


def _cell(line: Line, records: Mapping[str, Mapping[str, Any]]) -> str:
    """The ratios of a line's works."""
    own = [records[work] for work in line.works if work in records]
    if len(own) < len(line.works):
        return "not measured"
    cell = ", ".join(two_digits(record[line.ratio]) for record in own)
    return f"{cell}{_memory(own)}" if line.tells_memory else cell


def two_digits(ratio: float) -> str:
    """A ratio with two digits that count; with one behind the point from 1 on.

    Args:
      ratio: How many times as fast.

    >>> two_digits(0.948), two_digits(0.996), two_digits(3.54), two_digits(82.1)
    ('0.95', '1.0', '3.5', '82')
    """
    if ratio >= 20:
        return f"{ratio:.0f}"
    if ratio >= 0.995:
        return f"{ratio:.1f}"
    return f"{ratio:.2f}"


def _memory(records: Iterable[Mapping[str, Any]]) -> str:
    """A work's share of the other's memory, in words; empty if there is no difference."""
    for record in records:
        own, plain = record["temporary_bytes"]
        for most, words in FRACTIONS:
            if own < most * plain:
                return f", in {words} of the memory".replace("half of", "half")
    return ""
