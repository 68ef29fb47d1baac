"""Every notebook runs from top to bottom, quietly, and shows its pictures; both `.ipynb` and jupytext's `.py` are notebooks.

The documentation shows them with their outputs: with `AMPJAX_NOTEBOOKS` set, what has been executed goes to that folder.
"""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(
    [
        *FOLDER.glob("*.ipynb"),
        *FOLDER.glob("*.py"),
        *FOLDER.glob("*.md"),
    ]
)
NOTEBOOKS = [path for path in NOTEBOOKS if path.name != "README.md"]


def shows_picture(output):
    """Whether it holds a picture of some size: a PNG file, or an element of a page."""
    data = output.get("data", {})
    page = data.get("text/html", "")
    return len(data.get("image/png", "")) > 5_000 or (
        ("<svg" in page or "<img" in page) and len(page) > 5_000
    )


def text(output):
    """What it says in words."""
    return output.get("text", "") + output.get("data", {}).get("text/plain", "")


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path, tmp_path):
    import jupytext  # from the extra `dev`, which the ordinary run does without
    import nbclient
    import nbformat

    notebook = jupytext.read(path)
    # The kernel of this environment, whatever kernel the author's notebook names; results stay out of the checkout.
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path}},
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        outputs = cell.outputs
        tagged = "picture" in cell.metadata.get("tags", ())
        assert tagged == any(shows_picture(o) for o in outputs), (
            f"the tag `picture` is wrong:\n{cell.source}"
        )
        assert not any("Warning" in o.text for o in outputs if o.get("name") == "stderr"), (
            f"warns: {outputs}"
        )
        # A picture's text is not shown.
        bare = []
        for o in outputs:
            if not shows_picture(o) and re.search(r" at 0x[0-9a-f]+>", text(o)):
                bare.append(o)
        assert not bare, f"shows an object that does not say what it is: {bare}"
    assert sum("picture" in cell.metadata.get("tags", ()) for cell in cells) >= 3
    assert not list(tmp_path.iterdir()), "leaves files behind"
    if folder := os.environ.get("AMPJAX_NOTEBOOKS"):
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, ROOT / folder / f"{path.stem}.ipynb")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/hooks.py"])
def test_the_command_that_pages_give_runs_the_notebooks(page):
    """Notebooks are marked `nightly`, so the command has to ask for such a run, and for the folder."""
    (line,) = re.findall(
        r".*pytest tests/docs/test_notebooks\.py", (ROOT / page).read_text(encoding="utf-8")
    )
    given = dict(re.findall(r"(AMPJAX_\w+)=(\S+)", line))
    assert given["AMPJAX_TESTS"] == "nightly"
    assert given["AMPJAX_NOTEBOOKS"] == "build/notebooks"


def test_the_list_of_notebooks_has_them_all():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\d\d_\w+\.py)\)", page) == [path.name for path in NOTEBOOKS]
