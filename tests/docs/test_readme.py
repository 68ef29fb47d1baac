"""The README's programs run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def run(number):
    """The names that a program leaves."""
    programs = re.findall(
        r"```python\n(.*?)```",
        README.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert len(programs) == 2
    names: dict = {}
    exec(compile(programs[number], str(README), "exec"), names)
    return names


@pytest.mark.nightly
def test_the_model_in_the_readme_trains_and_verifies(capsys):
    names = run(0)
    assert names["history"].best("accuracy") > 0.95, "the README says so"
    assert "agrees with jax.grad" in capsys.readouterr().out
    (shown,) = re.findall(
        r"```text\n(Graph: .*?)\.\.\.\n```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert repr(names["compiled"].graph).startswith(shown)


def test_the_loss_in_the_readme_is_found_to_have_a_sparse_table(capsys):
    names = run(1)
    out = capsys.readouterr().out
    assert re.search(r"table \[10000, 16\] +sparse", out) and re.search(r"w \[16\] +dense", out)
    assert names["runner"].run(names["batch"]).loss < 256


def test_there_are_exactly_two_set_up_commands():
    commands = re.findall(
        r"```sh\n(.*?)```",
        README.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert len(commands) == 2
    assert all(len(command.strip().splitlines()) == 1 for command in commands)


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "notebooks/README.md"])
def test_links_and_pictures_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(
        r"(?:src|href)=\"([^\"]+)\"", text
    )
    local = [target for target in targets if not target.startswith("http")]
    assert local
    for target in local:
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_pictures_are_small_and_all_are_shown():
    pages = [README, *(ROOT / "docs").rglob("*.md")]
    shown = set()
    for page in pages:
        for name in re.findall(r"pictures/([\w.]+)", page.read_text(encoding="utf-8")):
            shown.add(name)
    files = sorted((ROOT / "docs" / "pictures").iterdir())
    assert shown == {file.name for file in files}
    assert all(file.stat().st_size < 150_000 for file in files)
