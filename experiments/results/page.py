"""Writes the results page, and marked tables of other pages, from a run's records."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ampjax.errors import DataError
from ampjax.utils.counted import count_of
from experiments.results.kept_records import NAME, Kept, load
from experiments.results.markdown import in_words, joined
from experiments.results.prose import ELSEWHERE, START
from experiments.results.section import Section
from experiments.results.setting import PEERS
from experiments.results.slower import slower
from experiments.results.start_page import how_fast

MARKED = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
"""A table that is written from records, between two comments of a page."""

PAGE = "results.md"
RECORDS = f"measurements/{NAME}"
"""Files of the documentation."""

TABLES = {"how-fast": how_fast}
"""By the name in the comment, what makes a marked table from records."""


def publish(
    records: Path,
    docs: Path,
    sections: Sequence[Section],
) -> list[Path]:
    """Writes the results page and the marked tables, and keeps the records beside both.

    Args:
      records: The run's file.
      docs: Folder of the documentation.
      sections: Of the page.

    Returns:
      The files that were written.

    Raises:
      DataError: If the records can't be read, or a page has a mark that is not known.
    """
    kept = load(records)
    place = docs / RECORDS
    place.parent.mkdir(parents=True, exist_ok=True)
    if records.absolute() != place.absolute():
        shutil.copyfile(records, place)
    written = [place, docs / PAGE]
    (docs / PAGE).write_text(page(kept, sections), encoding="utf-8")
    start = docs / "index.md"
    if start.is_file():
        text = start.read_text(encoding="utf-8")
        start.write_text(with_tables(text, kept), encoding="utf-8")
        written.append(start)
    return written


def page(kept: Kept, sections: Sequence[Section]) -> str:
    """The results page, in Markdown.

    Args:
      kept: The records.
      sections: In the page's order.
    """
    blocks = [START, setting_in_words(kept)]
    part = ""
    for section in sections:
        if section.part != part:
            part = section.part
            blocks.append(f"## {part}")
        blocks += _section(section, kept)
    blocks.append(slower(kept.records()))
    blocks.append(ELSEWHERE)
    return joined(blocks)


def setting_in_words(kept: Kept) -> str:
    """A paragraph about commit, versions and machine.

    Args:
      kept: The records.
    """
    setting = kept.setting
    beside = []
    absent = []
    for name in PEERS:
        number = setting.packages.get(name)
        if number is None:
            absent.append(name)
        else:
            beside.append(f"{name} {number}")
    words = [
        f"Measured at {setting.at}, jaxlib {setting.packages['jaxlib']}, Python {setting.python},",
        f"on {count_of(setting.cores, 'core')} of a machine with `{setting.processor}`, from {in_words(setting.date)} on.",
    ]
    if kept.later_commits:
        words.append(
            f"Some commands were measured again at commit {kept.later_commits}, as the lines below their tables say."
        )
    if beside:
        words.append(f"Compared with {', '.join(beside)}.")
    if absent:
        words.append(f"Not installed, so not compared with: {', '.join(absent)}.")
    return " ".join(words)


def with_tables(text: str, kept: Kept) -> str:
    """A page whose marked tables are written from records.

    Args:
      text: The page.
      kept: The records.

    Raises:
      DataError: If a mark is not known.
    """

    def table(found: re.Match[str]) -> str:
        opening, name, _, closing = found.groups()
        if name not in TABLES:
            raise DataError(
                f"<!-- table: {name} -->",
                f"a table of {', '.join(TABLES)}",
                f"`{name}`",
                "Correct the comment.",
            )
        return f"{opening}{TABLES[name](kept)}\n{closing}"

    return MARKED.sub(table, text)


def _section(section: Section, kept: Kept) -> list[str]:
    """A heading, an introduction, the table, its commands."""
    blocks = [f"### {section.title}"]
    if section.introduction:
        blocks.append(section.introduction)
    own = {}
    found = kept.records()
    for command in section.commands:
        if command.name in found:
            own[command.name] = found[command.name]
    if own:
        blocks.append(section.table(own))
    blocks += _not_measured(section, kept)
    if section.notes and own:
        blocks.append(section.notes)
    blocks.append(_commands(section, kept))
    return [block for block in blocks if block]


def _not_measured(section: Section, kept: Kept) -> list[str]:
    """A line for each command that failed, or that did not run."""
    if not any(command.name in kept.ended for command in section.commands):
        return ["Not measured in this run."]
    lines = []
    for command in section.commands:
        ended = kept.ended.get(command.name)
        reason = "it was not run" if ended is None else ended.failure
        if reason:
            some = "Not all was measured" if ended and ended.records else "Not measured"
            lines.append(f"{some}: `{command.text}` ({reason}).")
    return lines


def _commands(section: Section, kept: Kept) -> str:
    """A line with a section's commands, their seconds and days."""
    lines = []
    days: Mapping[str, None] = {}
    places: Mapping[str, None] = {}
    for command in section.commands:
        ended = kept.ended.get(command.name)
        if ended is not None:
            lines.append(f"`{ended.text}` ({ended.seconds:,.0f} s)")
            days = {**days, in_words(ended.date): None}
            places = {**places, kept.at(ended): None}
    if not lines:
        return ""
    return f"*{', '.join(lines)}; {' and '.join(places)}, {' and '.join(days)}.*"
