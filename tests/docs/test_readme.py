"""The README's programs run as they stand."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def run(*numbers):
    """The names that programs leave, which continue each other."""
    programs = re.findall(
        r"```python\n(.*?)```",
        README.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert len(programs) == 4
    names: dict = {}
    for number in numbers:
        exec(compile(programs[number], str(README), "exec"), names)
    return names


@pytest.mark.nightly
def test_the_model_in_the_readme_trains_and_verifies(capsys):
    names = run(0)
    assert names["history"].best("accuracy") > 0.95, "the README says so"
    names = run(0, 1)
    assert names["history"].best("accuracy") > 0.95, "the README says so"
    assert "agrees with jax.grad" in capsys.readouterr().out
    (shown,) = re.findall(
        r"```text\n(Graph: .*?)\.\.\.\n```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert repr(names["compiled"].graph).startswith(shown)


def test_the_loops_in_the_readme_end_by_themselves(capsys):
    names = run(2)
    error = names["values"] / names["roots"](names["values"]) ** 2 - 1
    assert abs(error).max() < 1e-5
    assert "one after another" in capsys.readouterr().out


def test_the_loss_in_the_readme_is_found_to_have_a_sparse_table(capsys):
    names = run(3)
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
