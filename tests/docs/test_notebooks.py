"""Every notebook runs from top to bottom; both `.ipynb` and jupytext's `.py` are notebooks."""

from pathlib import Path

import jupytext
import nbclient
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted([*FOLDER.glob("*.ipynb"), *FOLDER.glob("*.py"), *FOLDER.glob("*.md")])
NOTEBOOKS = [path for path in NOTEBOOKS if path.name != "README.md"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs(path, tmp_path):
    notebook = jupytext.read(path)
    # The kernel of this environment, whatever kernel the author's notebook names; results stay out of the checkout.
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
