"""The gallery's figures: `python -m experiments.gallery` runs the programs of its pages, and prints their results and rates."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from time import perf_counter
from typing import Any

import tyro

PROGRAM = re.compile(
    r"^```python\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def main(folder: Path = Path("docs/gallery")) -> None:
    """Runs each page, and prints a line of a table for each.

    Args:
      folder: The pages.
    """
    print("| model | training examples a second | seconds in all | prints |")
    print("| --- | --- | --- | --- |")
    pages = sorted(folder.glob("*.md"))
    for path in pages:
        if path.name == "index.md":
            continue
        line = figures(path)
        print(line, flush=True)


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
            code = compile(program, str(path), "exec")
            exec(code, names)
    seconds = perf_counter() - start
    history = names.get("history")
    rate = ""
    if history is not None:
        rate = f"{history[-1].train_per_s:,.0f}"
    title = text.splitlines()[0]
    title = title.removeprefix("# ")
    lines = printed.getvalue().splitlines()
    lines = "; ".join(lines[:2])
    return f"| [{title}]({path.name}) | {rate} | {seconds:.0f} | {lines} |"


if __name__ == "__main__":
    tyro.cli(main)
