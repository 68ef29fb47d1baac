"""Does ampjax install everywhere? Builds the sdist and, from it, the wheel; installs them into new environments, and tries them away from the checkout (`smoke.py`).

An environment is an interpreter with a version of JAX: the newest that this interpreter gets, or the oldest that `pyproject.toml` allows.
It holds nothing else, and no extras. The wheel brings what it needs; then the sdist takes its place. Each gives a row of the table that is printed.

    python3 .ci/install_matrix.py                                           # all interpreters of this machine, both ends of JAX
    python3 .ci/install_matrix.py --python python3.12 --jax newest

It needs nothing but the standard library of Python 3.11, and an index of packages.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENDS = ("newest", "oldest")
"""Which JAX an environment gets. The newest comes first: where it is the oldest, too, no second environment is made."""
FILES = {"wheel": "*.whl", "sdist": "*.tar.gz"}


@dataclass(frozen=True)
class Interpreter:
    """A Python of this machine: the program, and its version, such as `3.12.1`."""

    program: str
    version: str


@dataclass(frozen=True)
class Row:
    """How one file fared in an environment: the version of JAX there, and the error, empty if all went well."""

    jax: str
    error: str
    seconds: float


def supported_pythons() -> list[str]:
    """Minor versions of Python in the project's classifiers, such as `3.11`, in order."""
    found = []
    for classifier in PROJECT["classifiers"]:
        match = re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier)
        if match:
            found.append(match[1])
    return found


def oldest_jax() -> str:
    """The lower end of the project's dependency on JAX, such as `0.10.2`."""
    for dependency in PROJECT["dependencies"]:
        match = re.match(r"jax>=([\d.]+)", dependency)
        if match:
            return match[1]
    raise SystemExit("pyproject.toml: expected a dependency that begins with jax>=")


def look_at(program: str) -> Interpreter | None:
    """The interpreter that a program is; None if it is none that can make environments."""
    question = "import sys, venv, ensurepip; print(sys.version.split()[0])"
    try:
        answer = subprocess.run(
            [program, "-c", question],
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    if answer.returncode != 0:
        return None
    return Interpreter(program, answer.stdout.strip())


def interpreters() -> Iterator[Interpreter]:
    """The first interpreter of each supported version: on the path, else among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in supported_pythons():
        programs = [f"python{version}"]
        for program in sorted(pyenv.glob(f"versions/{version}.*/bin/python3")):
            programs.append(str(program))
        found = filter(None, map(look_at, programs))
        first = next(found, None)
        if first is None:
            print(f"No Python {version} on this machine: left out.", file=sys.stderr)
        else:
            yield first


def run(*command: object, folder: Path) -> None:
    """Runs a command away from the checkout; its whole output becomes the error if it fails."""
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)  # would bring the checkout along
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stdout)


def build(python: str, work: Path) -> dict[str, Path]:
    """Builds both files into `work/dist`; gives them by kind."""
    run(python, "-m", "venv", work / "tools", folder=work)
    run(work / "tools/bin/pip", "install", "--quiet", "build>=1.2", folder=work)
    dist = work / "dist"
    run(work / "tools/bin/python", "-m", "build", "--outdir", dist, ROOT, folder=work)
    built = {}
    for kind, pattern in FILES.items():
        (built[kind],) = dist.glob(pattern)
    return built


def try_file(pip_options: list[object], place: Path) -> Row:
    """Installs a file into an environment, and trains the README's first model there."""
    start = time.monotonic()
    error = ""
    # What is not imported need not be compiled to bytecode.
    install = [place / "bin/pip", "install", "--quiet", "--no-compile"]
    try:
        run(*install, *pip_options, folder=place.parent)
        run(place / "bin/pip", "check", folder=place.parent)
        run(place / "bin/python", "smoke.py", folder=place.parent)
    except RuntimeError as failure:
        error = str(failure)
    return Row(installed_jax(place), error, time.monotonic() - start)


def installed_jax(place: Path) -> str:
    """The version of JAX in an environment; nothing where there is none."""
    for folder in place.glob("lib/python3.*/site-packages/jax-*.dist-info"):
        return folder.name.removeprefix("jax-").removesuffix(".dist-info")
    return ""


def rows(
    interpreter: Interpreter,
    ends: list[str],
    built: dict[str, Path],
    work: Path,
) -> Iterator[tuple[str, str, Row]]:
    """Tries both files with one interpreter: the end of JAX, the kind of file, and how it fared."""
    oldest = oldest_jax()
    seen = set()
    for end in ends:
        pins = []
        if end == "oldest":
            if oldest in seen:
                continue
            pins = [f"jax=={oldest}", f"jaxlib=={oldest}"]
        place = work / "environment"
        run(interpreter.program, "-m", "venv", "--clear", place, folder=work)
        row = try_file([built["wheel"], *pins], place)
        seen.add(row.jax)
        yield end, "wheel", row
        yield end, "sdist", try_file(["--force-reinstall", "--no-deps", built["sdist"]], place)


def print_row(cells: tuple[object, ...]) -> None:
    """A row of a table in Markdown, shown at once."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def count_failures(
    chosen: list[Interpreter],
    ends: list[str],
    work: Path,
) -> int:
    """Prints the table; gives the number of environments that do not work."""
    shutil.copy(ROOT / ".ci/smoke.py", work)
    shutil.copy(ROOT / "README.md", work)
    built = build(chosen[0].program, work)
    header = ("Python", "JAX", "file", "result", "seconds")
    print_row(header)
    print_row(("---",) * len(header))
    failures = 0
    for interpreter in chosen:
        for end, kind, row in rows(interpreter, ends, built, work):
            print_row(
                (
                    interpreter.version,
                    f"{row.jax} ({end})",
                    kind,
                    "failed" if row.error else "works",
                    round(row.seconds),
                )
            )
            if row.error:
                failures += 1
                print(row.error, file=sys.stderr, flush=True)
    return failures


def main() -> None:
    """Reads the options; the exit status is 1 if an environment does not work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help="an interpreter; all of this machine")
    parser.add_argument("--jax", action="append", choices=ENDS, help="the end of JAX; both")
    options = parser.parse_args()
    chosen = []
    for program in options.python or ():
        interpreter = look_at(program)
        if interpreter is None:
            raise SystemExit(f"{program}: expected a Python that makes environments")
        chosen.append(interpreter)
    if not options.python:
        chosen.extend(interpreters())
    if not chosen:
        raise SystemExit("expected a supported Python on this machine, found none")
    with tempfile.TemporaryDirectory() as folder:
        if count_failures(chosen, options.jax or list(ENDS), Path(folder)):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
