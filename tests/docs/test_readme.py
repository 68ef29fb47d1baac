"""The README's program runs as it stands."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_model_in_the_readme_trains_and_verifies(capsys):
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(compile(program, str(README), "exec"), names)
    assert len(names["history"]) == 2
    assert names["history"][1].valid["loss"] < names["history"][0].valid["loss"]
    assert "agrees with jax.grad" in capsys.readouterr().out


def test_there_are_exactly_two_set_up_commands():
    commands = re.findall(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(commands) == 2
    assert all(len(command.strip().splitlines()) == 1 for command in commands)
