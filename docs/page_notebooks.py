"""Notebooks for download, made of the site's own pages: a cell for each program, and the text between programs.

A program of a page is a block of Python without a title. What a program prints is left out: the notebook shows it when it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FOLDERS = "gallery/", "guides/"
PROGRAM = re.compile(
    r"^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```\n(?:\s*^(?P=indent)```text\n.*?^(?P=indent)```\n)?",
    re.MULTILINE | re.DOTALL,
)
"""A program, with what it prints."""

NEEDS = (
    "This notebook needs ampjax. Programs that import from `experiments` run in a clone of its repository, "
    "after `pip install -e '.[experiments]'`."
)


def has_programs(uri: str, markdown: str) -> bool:
    """Whether a page is offered as a notebook.

    Args:
      uri: Its place in the documentation.
      markdown: Its text.
    """
    return uri.startswith(FOLDERS) and PROGRAM.search(markdown) is not None


def notebook_of(markdown: str, repository: str | None) -> str:
    """Makes a notebook of a page.

    Args:
      markdown: The page.
      repository: The address from which ampjax is cloned where it is missing; None if there is none.

    Returns:
      The notebook's JSON.
    """
    notebook = new_notebook(
        cells=list(_cells(re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.DOTALL)))
    )
    return with_setup(notebook, repository)


def with_setup(notebook: nbformat.NotebookNode, repository: str | None) -> str:
    """Puts behind the title what a machine without ampjax needs.

    Args:
      notebook: The notebook; it is left as it is.
      repository: As in `notebook_of`.

    Returns:
      The notebook's JSON.
    """
    if repository is None:
        setup = new_markdown_cell(NEEDS)
    else:
        setup = new_code_cell(_set_up(repository))
    cells = [*notebook.cells[:1], setup, *notebook.cells[1:]]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(
        new_notebook(
            cells=cells,
            metadata={"kernelspec": python},
        )
    )


def links(name: str, repository: str | None, branch: str, uri: str) -> str:
    """The line with a page's links to its notebook.

    Args:
      name: The notebook's file name.
      repository: As in `notebook_of`. Colab opens notebooks of GitHub only.
      branch: The branch that has the built site.
      uri: Where the notebook is in the site.
    """
    line = f"[:material-download: Notebook]({name}){{ download={name} }}"
    place = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repository or "")
    if place:
        address = f"https://colab.research.google.com/github/{place[1]}/blob/{branch}/{uri}"
        line += f" · [:simple-googlecolab: Open in Colab]({address})"
    return line


def below_title(markdown: str, line: str) -> str:
    """Puts a line below a page's title.

    Args:
      markdown: The page.
      line: What to put there.
    """
    return re.sub(r"^# .*\n", lambda title: f"{title[0]}\n{line}\n", markdown, count=1, flags=re.M)


def _cells(markdown: str) -> Iterator[nbformat.NotebookNode]:
    """A page's text and programs in order."""
    end = 0
    for found in PROGRAM.finditer(markdown):
        yield from _prose(markdown[end : found.start()])
        lines = found["code"].splitlines()
        code = "\n".join(line.removeprefix(found["indent"]) for line in lines)
        yield new_code_cell(code.strip("\n"))
        end = found.end()
    yield from _prose(markdown[end:])


def _prose(text: str) -> Iterator[nbformat.NotebookNode]:
    """A cell of text, without pictures and without links to other pages: these are not beside the notebook."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)\n*", "", text)
    text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)
    if text.strip():
        yield new_markdown_cell(text.strip())


def _set_up(repository: str) -> str:
    """A cell that installs ampjax where it is missing, and goes into its clone."""
    folder = repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return "\n".join(
        [
            "import importlib.util",
            "",
            'if importlib.util.find_spec("ampjax") is None:  # for example in Colab',
            f"    !git clone -q --depth 1 {repository}",
            f'    !pip install -q -e "{folder}[experiments]"',
            f"    %cd {folder}",
        ]
    )
