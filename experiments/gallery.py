"""The gallery's figures: `python -m experiments.gallery` runs the programs of its pages, and prints what they print and how fast they train."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from time import perf_counter
from typing import Any

import tyro

PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main(folder: Path = Path("docs/gallery")) -> None:
    """Runs each page, and prints a line of a table for it.

    Args:
      folder: The pages.
    """
    print("| model | training examples a second | seconds in all | prints |")
    print("| --- | --- | --- | --- |")
    for path in sorted(folder.glob("*.md")):
        if path.name != "index.md":
            print(figures(path), flush=True)


def figures(path: Path) -> str:
    """Runs a page's programs.

    Args:
      path: The page.

    Returns:
      Its line of the table. The rate is that of the last epoch of the trainer's history, if there is one.
    """
    text = path.read_text(encoding="utf-8")
    start = perf_counter()
    names: dict[str, Any] = {"__name__": "page"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for program in PROGRAM.findall(text):
            exec(compile(program, str(path), "exec"), names)
    seconds = perf_counter() - start
    history = names.get("history")
    rate = "" if history is None else f"{history[-1].train_per_s:,.0f}"
    title = text.partition("\n")[0].removeprefix("# ")
    lines = "; ".join(printed.getvalue().strip().splitlines()[:2])
    return f"| [{title}]({path.name}) | {rate} | {seconds:.0f} | {lines} |"


if __name__ == "__main__":
    tyro.cli(main)
