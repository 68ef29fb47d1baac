"""Pieces of Markdown: tables, numbers in cells, dates, blocks of a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import date


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""A table.

    Args:
      headers: Of the columns.
      rows: As many cells each.

    >>> print(table(["work", "ms"], [["a|b", "1"]]))
    | work | ms |
    | --- | --- |
    | a\|b | 1 |
    """
    lines = [_line(headers), _line(["---"] * len(headers))]
    for row in rows:
        lines.append(_line([cell.replace("|", "\\|") for cell in row]))
    return "\n".join(lines)


def joined(blocks: Iterable[str]) -> str:
    """A page of blocks, with an empty line between two.

    Args:
      blocks: Headings, paragraphs, tables.
    """
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def number(value: float | None) -> str:
    """A number with three digits that count, or all of a larger one.

    Args:
      value: The number; None is a dash.

    >>> number(0.01234), number(1.5), number(12.34), number(12345.6), number(None)
    ('0.0123', '1.5', '12.3', '12,346', '—')
    """
    if value is None:
        return "—"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def times(value: float) -> str:
    """A ratio: of two digits behind the point, of one from 10 on.

    Args:
      value: The ratio.

    >>> times(0.987), times(11.46)
    ('0.99', '11.5')
    """
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def each(values: Iterable[float | None]) -> str:
    """Some numbers in one cell; of one that was not reached a dash.

    Args:
      values: The numbers.

    >>> each([1.0, 2.5, None])
    '1, 2.5, —'
    """
    return ", ".join(number(value) for value in values)


def middle(values: Iterable[float | None]) -> float | None:
    """The median; None if most were not reached.

    Args:
      values: The numbers; None counts as infinite.

    >>> middle([1, None, 3]), middle([None, None, 1])
    (3, None)
    """
    reached = [float("inf") if value is None else value for value in values]
    found = statistics.median_high(reached)
    return None if found == float("inf") else found


def in_words(day: str) -> str:
    """A date in words.

    Args:
      day: Year, month and day.

    >>> in_words("2026-11-03")
    '3 November 2026'
    """
    d = date.fromisoformat(day)
    return f"{d.day} {d:%B %Y}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
