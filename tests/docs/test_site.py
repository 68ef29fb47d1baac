"""The pages of the documentation site: their programs run, every public name has its place, and every decision is in the index."""

import contextlib
import doctest
import importlib
import io
import re
from pathlib import Path

import pytest
from support.public_packages import PUBLIC

import ampjax
from ampjax.sched.decisions.policy import POLICIES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [
    path for path in sorted(DOCS.rglob("*.md")) if "```python" in path.read_text(encoding="utf-8")
]
PACKAGES = [*PUBLIC, "experiments.data", "experiments.models"]
BLOCK = re.compile(r"^( *)```(python|text)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)

QUOTE = re.compile(r'^( *)```python title="(\S+)"\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)

ANSWERS = {
    "guides/attention.md": ("mask", "transformer"),
    "guides/batches.md": ("batch", "padding"),
    "guides/checkpoints.md": ("checkpoint", "resume", "save", "reproducible"),
    "guides/models_as_functions.md": ("dropout", "flax"),
    "guides/optimizers.md": ("clip_by_global_norm", "freeze", "learning rate schedule"),
    "guides/own_model.md": ("predict", "shuffle", "validation"),
    "guides/recipes.md": ("averaged weights (ema)", "early stopping", "export", "fine-tune"),
    "guides/sequence_to_sequence.md": ("beam", "greedy"),
    "guides/slow.md": ("slow", "compile time", "memory"),
    "guides/trains_badly.md": ("nan",),
    "install.md": ("gpu",),
}
"""Words that beginners search for, by the page that answers. The site's search ranks headings far above text, so they stand in headings."""

IN_EVERY_RUN = "index.md", "guides/by_hand.md", "guides/sparse_tables.md"
"""One for each way to write a model; the programs of the others call what unit tests call, so they are left to nightly runs."""


def page(path):
    """The parameter of a page's test."""
    name = path.relative_to(DOCS).as_posix()
    return pytest.param(
        path,
        id=name,
        marks=[] if name in IN_EVERY_RUN else pytest.mark.nightly,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("path", [page(path) for path in PAGES])
def test_programs_of_a_page(path):
    """The page's programs run from top to bottom in one namespace; a text behind a program is what it prints."""
    names = {"__name__": "page"}
    printed = ""
    text = path.read_text(encoding="utf-8")
    for indent, kind, block in BLOCK.findall(text):
        block = "".join(line.removeprefix(indent) for line in block.splitlines(keepends=True))
        if kind == "text":
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(block, printed, flags), (
                f"printed:\n{printed}\nthe page:\n{block}"
            )
            continue
        line = text[: text.index(block.splitlines()[0])].count("\n")
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("\n" * line + block, str(path), "exec"), names)
        printed = out.getvalue()


@pytest.mark.parametrize(
    "path",
    PAGES,
    ids=lambda path: path.relative_to(DOCS).as_posix(),
)
def test_each_model_of_a_page_is_compiled(path):
    """A model that only runs as a function may hold what `amp.compile` and `amp.vmap` refuse."""
    programs = "".join(
        block
        for _, kind, block in BLOCK.findall(path.read_text(encoding="utf-8"))
        if kind == "python"
    )
    models = re.findall(r"^def (\w+)\(params, example\)", programs, re.MULTILINE)
    assert [
        model for model in models if not re.search(rf"amp\.(compile|vmap)\(\s*{model},", programs)
    ] == []


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.relative_to(DOCS).as_posix())
        for path in PAGES
        if QUOTE.search(path.read_text("utf-8"))
    ],
)
def test_code_that_a_page_quotes_is_there(path):
    """A block with a file as its title has lines of that file; `...` stands for lines that are left out."""
    for indent, file, block in QUOTE.findall(path.read_text(encoding="utf-8")):
        block = "".join(line.removeprefix(indent) for line in block.splitlines(keepends=True))
        code = (DOCS.parent / file).read_text(encoding="utf-8")
        for lines in re.split(r"^\.\.\.\n", block, flags=re.MULTILINE):
            assert lines in code, f"not in {file}:\n{lines}"


def test_words_that_beginners_search_for_stand_in_headings():
    missing = []
    for page, words in ANSWERS.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        headings = "\n".join(re.findall(r"^#+ (.+)$", text, re.MULTILINE)).lower()
        missing += [(page, word) for word in words if word not in headings]
    assert missing == []


def references():
    """What the reference has entries for."""
    pages = (path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    result = []
    for page in pages:
        for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE):
            result.append(name)
    return result


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package):
    exported = importlib.import_module(package).__all__
    entries = set()
    for name in references():
        if name.rpartition(".")[0] == package:
            entries.add(name.removeprefix(f"{package}."))
    assert set(exported) - {"graphs", "nn"} <= entries, (
        "a public name without an entry in docs/reference"
    )
    assert entries <= set(exported), "an entry in docs/reference that is not public"


def test_each_combinator_says_when_it_runs():
    page = (DOCS / "reference/combinators.md").read_text(encoding="utf-8")
    silent = []
    for name in re.findall(r"^::: ampjax\.(\w+)$", page, re.MULTILINE):
        if "When it runs: " not in getattr(ampjax, name).__doc__:
            silent.append(name)
    assert silent == []


def test_two_pages_name_every_policy():
    table = (DOCS / "concepts/asynchrony.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`(?: \(default\))? \|", table, re.MULTILINE)
    place = "ampjax.sched.decisions.policy."
    entries = []
    for name in references():
        if name.startswith(place):
            entries.append(name.removeprefix(place))
    assert sorted(POLICIES) == sorted(entries)
    assert set(POLICIES) <= set(rows)


@pytest.mark.parametrize("module", ["ampjax.errors"])
def test_every_class_of_a_public_module_is_in_the_reference(module):
    own = set()
    for name, thing in vars(importlib.import_module(module)).items():
        if getattr(thing, "__module__", "") == module:
            own.add(name)
    assert {name for name in references() if name.startswith(f"{module}.")} == {
        f"{module}.{name}" for name in own
    }


def test_the_reference_has_each_name_once():
    assert len(references()) == len(set(references()))


def test_every_decision_is_in_the_index():
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    files = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
    assert re.findall(r"^\| \[\d+\. [^]]+\]\((\S+)\)", index, re.MULTILINE) == files


@pytest.mark.parametrize(
    "path",
    sorted((DOCS / "decisions").glob("0*.md")),
    ids=lambda path: path.stem,
)
def test_decisions_are_short(path):
    """A note says why; how things work and what was measured have pages of their own."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if len(line) > 200] == []


def test_the_changelog_has_a_line_for_each_change():
    lines = (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 300] == []


def test_each_decision_that_is_cited_by_its_number_is_there():
    """Code and pages may name a decision without a link."""
    root = DOCS.parent
    places = [root / name for name in ("ampjax", "experiments", "docs")]
    files = []
    for place in places:
        for suffix in ("py", "md"):
            for path in place.rglob(f"*.{suffix}"):
                files.append(path)
    cited = set()
    for path in files:
        for n in re.findall(
            r"\bdecision \[?(\d+)", path.read_text(encoding="utf-8"), re.IGNORECASE
        ):
            cited.add(int(n))
    there = set()
    for path in (DOCS / "decisions").glob("0*.md"):
        there.add(int(path.name[:4]))
    assert len(cited) > 10
    assert cited <= there
