"""The gallery: each page is shown, has a picture and a figure, and is a notebook, too; `test_site.py` runs the programs."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [path for path in sorted((DOCS / "gallery").glob("*.md")) if path.name != "index.md"]
GUIDES = sorted((DOCS / "guides").glob("*.md"))
CODE = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
REPOSITORY = "https://github.com/someone/ampjax"


def page_notebooks():
    """Loads the module, since the site's hooks are no package; nbformat is in the extra `dev` only."""
    path = DOCS / "page_notebooks.py"
    spec = importlib.util.spec_from_file_location("page_notebooks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_index_shows_each_page_with_its_picture():
    index = (DOCS / "gallery" / "index.md").read_text(encoding="utf-8")
    shown = re.findall(r"^-   \[!\[[^]]+\]\(\.\./pictures/(\S+)\)\]\((\S+)\)$", index, re.MULTILINE)
    assert len(shown) == 16
    by_page = {page: picture for picture, page in shown}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        (picture,) = re.findall(r"^!\[[^]]+\]\(\.\./pictures/(\S+)\)$", text, re.MULTILINE)
        assert by_page[path.name] == picture


def test_pictures_of_the_gallery_are_small():
    pictures = sorted((DOCS / "pictures").glob("gallery_*"))
    assert len(pictures) == 16
    assert [path.name for path in pictures if path.stat().st_size > 60_000] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_of_the_gallery_says_what_it_reaches(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert re.search(r"```text\n.*(accuracy|loss|CRF) ", text, re.DOTALL)
    assert "**Next.**" in text


@pytest.mark.nightly
@pytest.mark.parametrize(
    "path",
    [*PAGES, *GUIDES],
    ids=lambda path: path.stem,
)
def test_a_notebook_has_the_programs_of_its_page(path):
    import nbformat  # from the extra `dev`

    module = page_notebooks()
    text = path.read_text(encoding="utf-8")
    programs = []
    for indent, code in CODE.findall(text):
        lines = []
        for line in code.strip("\n").splitlines():
            lines.append(line.removeprefix(indent))
        programs.append("\n".join(lines))
    uri = path.relative_to(DOCS).as_posix()
    assert module.has_programs(uri, text) == bool(programs)
    if not programs:
        return
    notebook = nbformat.reads(module.notebook_of(text, None), as_version=4)
    nbformat.validate(notebook)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert cells == programs
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    assert prose[0].startswith("# ")
    assert not re.search(r"\]\((?!https?:)", "".join(prose)), "a link to a page that is not there"
    with_repository = nbformat.reads(module.notebook_of(text, REPOSITORY), as_version=4)
    assert f"git clone -q --depth 1 {REPOSITORY}" in with_repository.cells[1].source


@pytest.mark.nightly
@pytest.mark.parametrize(
    "repository, in_colab",
    [
        (None, False),
        ("https://example.org/someone/ampjax", False),
        (REPOSITORY, True),
        (f"{REPOSITORY}.git", True),
    ],
)
def test_a_page_links_to_its_notebook(repository, in_colab):
    module = page_notebooks()
    line = module.links("crf.ipynb", repository, "gh-pages", "gallery/crf.ipynb")
    address = "colab.research.google.com/github/someone/ampjax/blob/gh-pages/gallery/crf.ipynb)"
    assert "(crf.ipynb)" in line
    assert (address in line) == in_colab
    page = module.below_title("# A\n\ntext\n# B\n", line)
    assert page == f"# A\n\n{line}\n\ntext\n# B\n"
