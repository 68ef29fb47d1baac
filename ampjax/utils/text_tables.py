"""Tables that are readable in a terminal of 80 columns, and in a notebook."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Column, Table

_WORD = re.compile(r"(?!nan\b|inf\b)[`'\[A-Za-z_]")
_CODE = re.compile(r"`([^`]+)`")


def compact(*headers: str, title: str | None = None) -> Table:
    """A table with narrow gaps: the first column for names, the others for numbers.

    Args:
      *headers: Column titles; a long one is written in two lines, with a line break in it.
      title: The title above the table.
    """
    columns = []
    for i, header in enumerate(headers):
        columns.append(Column(header, justify="right" if i else "left", vertical="bottom"))
    return Table(
        *columns,
        title=title,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def fill_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
) -> Table:
    """A `compact` table with its rows.

    Args:
      headers: Column titles.
      rows: As many cells each.
      title: The title above the table.
    """
    table = compact(*headers, title=title)
    for row in rows:
        table.add_row(*row)
    return table


def text_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    notes: Iterable[str] = (),
) -> str:
    """A `filled` table as plain text of at most 140 columns, wherever we are.

    Args:
      headers: Column titles.
      rows: As many cells each.
      title: The title above the table.
      notes: Lines below.

    Returns:
      The table as text.

    >>> text_table(["a", "b"], [["x", "1"]], notes=["so"]).split()
    ['a', 'b', '────', 'x', '1', 'so']
    """
    with io.StringIO() as text:
        console = Console(file=text, width=140, force_jupyter=False, force_terminal=False)
        console.print(fill_table(headers, rows, title))
        return text.getvalue() + "".join(f"{note}\n" for note in notes)


def html_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    notes: Iterable[str] = (),
) -> str:
    """Renders a table for notebooks; columns of numbers are aligned at their right ends, and what stands in backticks is code.

    Args:
      headers: Column titles; line breaks stay.
      rows: As many cells each.
      title: The title above the table.
      notes: Lines below.

    Returns:
      The table as HTML.

    >>> html_table(["a", "b"], [["<x>", "1"]], notes=["so"]).count("&lt;x&gt;")
    1
    """
    rows = [tuple(row) for row in rows]
    sides = ["left"]
    for column in range(1, len(headers)):
        has_words = any(_WORD.match(row[column]) for row in rows)
        sides.append("left" if has_words else "right")
    head = _row("th", sides, headers)
    body = "".join(_row("td", sides, row) for row in rows)
    above = f"<div><b>{html.escape(title)}</b></div>" if title else ""
    below = "".join(f"<div>{html.escape(note)}</div>" for note in notes)
    return f"<div>{above}<table><thead>{head}</thead><tbody>{body}</tbody></table>{below}</div>"


def _row(tag: str, sides: Sequence[str], texts: Sequence[str]) -> str:
    cells = []
    for side, text in zip(sides, texts, strict=True):
        shown = html.escape(text).replace("\n", "<br>")
        shown = _CODE.sub(r"<code>\1</code>", shown)
        cells.append(f'<{tag} style="text-align: {side}; vertical-align: bottom">{shown}</{tag}>')
    return f"<tr>{''.join(cells)}</tr>"
