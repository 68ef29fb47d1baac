"""Pages of the site that are written elsewhere: the notebooks with their outputs, the changelog, the pages for contributors, the glossary.

Notebooks are executed by their test, which writes them to the folder named by `AMPJAX_NOTEBOOKS` (see CONTRIBUTING.md). Where one is
missing there, or is not what stands in `notebooks/`, its page has no outputs and a strict build fails.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from page_notebooks import below_title, has_programs, links, notebook_of, with_setup

log = logging.getLogger("mkdocs.hooks.ampjax")
ROOT = Path(__file__).resolve().parents[1]
EXECUTED = ROOT / os.environ.get("AMPJAX_NOTEBOOKS", "build/notebooks")
COPIED = {
    "CHANGELOG.md": "changelog",
    "ARCHITECTURE.md": "architecture",
    "CONTRIBUTING.md": "contributing",
}
GLOSSARY = "reference/glossary.md"
SEARCH = {
    "install.md": 4,
    "guides": 4,
    "gallery": 2,
    "measurements": 0.5,
    "project": 0.2,
    "decisions": 0.2,
}
"""How much a page counts in the site's search, by its folder: pages that answer a question come first."""
LINTER = re.compile(r" *# (?:noqa|type: ignore)\S*.*")
"""What a notebook says to a linter, which is nothing for readers."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made here."""
    for source in sorted((ROOT / "notebooks").glob("*.py")):
        for uri, content in _notebook(source, config).items():
            files.append(File.generated(config, uri, content=content))
    for page in list(files.documentation_pages()):
        if has_programs(page.src_uri, page.content_string):
            uri = page.src_uri.removesuffix(".md") + ".ipynb"
            content = notebook_of(page.content_string, config.extra["repository"])
            files.append(File.generated(config, uri, content=content))
    for name, page in COPIED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(
            File.generated(
                config, f"project/{page}.md", content=_mend_links(text, "", f"project/{page}.md")
            )
        )
    files.append(File.generated(config, GLOSSARY, content=_glossary()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, **_: Any) -> str:
    """Mends the links of decisions, and of the engine's details, to files that are no pages; puts in the version, and links to a page's notebook."""
    uri = page.file.src_uri
    page.meta.setdefault("search", {"boost": SEARCH.get(uri.partition("/")[0], 1)})
    if has_programs(uri, markdown):
        markdown = below_title(markdown, _links(uri, config))
    markdown = markdown.replace("{{ version }}", _version())
    mended = uri.startswith("decisions/") or uri == "engine.md"
    return _mend_links(markdown, posixpath.dirname(f"docs/{uri}"), uri) if mended else markdown


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Looks for anything that a page would load from elsewhere."""
    for page in Path(config.site_dir).rglob("*.html"):
        for tag in re.findall(
            r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text(encoding="utf-8")
        ):
            if (
                re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag)
                and 'rel="canonical"' not in tag
            ):
                log.warning("%s loads something from elsewhere: %s", page.name, tag)


def _version() -> str:
    """The version of this checkout."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]["version"]


def _glossary() -> str:
    """The page of the section "Words" in ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    words = text.partition("\n## Words\n")[2].partition("\n## ")[0]
    return _mend_links(f"# Glossary\n{words}", "", GLOSSARY)


def _links(uri: str, config: MkDocsConfig) -> str:
    """The line with the links to a page's notebook, which stands beside the page."""
    uri = uri.removesuffix(".md") + ".ipynb"
    return links(posixpath.basename(uri), config.extra["repository"], config.remote_branch, uri)


def _notebook(source: Path, config: MkDocsConfig) -> dict[str, str | bytes]:
    """A notebook's page, its pictures, and the notebook itself, by their place in the site."""
    notebook, executed = jupytext.read(source), EXECUTED / f"{source.stem}.ipynb"
    written = nbformat.read(executed, as_version=4) if executed.exists() else None
    if written is not None and [c.source for c in written.cells] == [
        c.source for c in notebook.cells
    ]:
        notebook = written
    else:
        log.warning(
            "%s has not been executed as it is: AMPJAX_TESTS=nightly AMPJAX_NOTEBOOKS=build/notebooks pytest tests/docs/test_notebooks.py",
            source.name,
        )
    for cell in notebook.cells:
        cell.source = LINTER.sub("", cell.source)
    for_download = with_setup(notebook, config.extra["repository"])
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                _for_a_page(output)
                for output in cell.get("outputs", ())
                if not _is_progress(output)
            ]
    notebook, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})
    text, resources = MarkdownExporter().from_notebook_node(notebook)
    page, pictures = f"tutorials/{source.stem}.md", resources["outputs"]
    for name in pictures:
        _, cell, output = Path(name).stem.split("_")
        width = (
            notebook.cells[int(cell)]
            .outputs[int(output)]
            .metadata.get("image/png", {})
            .get("width")
        )
        fits = " .fits" if width and width <= 480 else ""  # readable, too, at the width of a phone
        size = f'{{ width="{width}"{fits} }}' if width else ""
        text = text.replace(f"({name})", f"({source.stem}/{name}){size}")
    text = re.sub(r"\]\((\d\d_\w+)\.py\)", r"](\1.md)", text)
    text = below_title(text, _links(page, config))
    text = f"---\nhide: [toc]\n---\n\n{text}"  # the code is wide
    return {
        page: text,
        page.removesuffix(".md") + ".ipynb": for_download,
        **{f"tutorials/{source.stem}/{name}": data for name, data in pictures.items()},
    }


def _is_progress(output: Any) -> bool:
    """Whether an output is what a progress bar leaves where it can't be shown as a widget."""
    plain = output.get("data", {}).get("text/plain")
    return (
        plain is not None
        and output.output_type == "display_data"
        and (not plain or "ipywidgets" in plain)
    )


def _for_a_page(output: Any) -> Any:
    """An output whose HTML, an `<svg>` included, is a block that Markdown leaves alone."""
    data = output.get("data", {})
    if "text/html" in data:
        data["text/html"] = f'<div class="output">{data["text/html"]}</div>'
    return output


def _mend_links(text: str, folder: str, page: str) -> str:
    """Makes links to the site's pages out of a file's relative links; links to other files become their names.

    Args:
      text: Markdown.
      folder: Where it stands in the repository.
      page: Where it stands in the site.
    """

    def mend(match: re.Match[str]) -> str:
        label, target, anchor = match["label"], match["target"], match["anchor"] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in COPIED:
            path = f"project/{COPIED[path]}.md"
        elif path.startswith("docs/"):
            path = path.removeprefix("docs/")
        elif path.startswith("notebooks/"):
            path = (
                "tutorials/index.md"
                if path.endswith("README.md")
                else f"tutorials/{Path(path).stem}.md"
            )
        else:
            return (
                label
                if label.startswith("`")
                else f"{label} (`{path}`)"
                if label != path
                else f"`{path}`"
            )
        return f"[{label}]({posixpath.relpath(path, posixpath.dirname(page))}{anchor})"

    return re.sub(
        r"(?<!!)\[(?P<label>[^\]\[]+)\]\((?!https?:)(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)",
        mend,
        text,
    )
