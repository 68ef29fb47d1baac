"""The setting of figures: commit, versions, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ampjax.errors import SettingsError

ROOT = Path(__file__).parents[2]
"""The checkout."""

MEASURED = "ampjax", "experiments", "pyproject.toml"
"""Whose changes count: pages may be written while figures are measured."""

PEERS = "torch", "blackjax", "diffrax", "optimistix"
"""Other packages whose versions are told."""


@dataclass(frozen=True)
class Setting:
    """Commit, versions and machine of all figures of a run.

    Args:
      commit: Of the checkout, eight digits.
      changed: Whether files of the library or the experiments differ from the commit.
      python: Its version.
      packages: Versions of JAX and of the packages that are compared with; None of one that is not installed.
      processor: Its name.
      cores: As many as this process may use.
      date: When the run began, as year, month and day.
    """

    commit: str
    changed: bool
    python: str
    packages: dict[str, str | None]
    processor: str
    cores: int
    date: str

    def record(self) -> dict[str, object]:
        """As a JSON object."""
        return asdict(self)

    @property
    def at(self) -> str:
        """Commit and version of JAX, in words."""
        changes = " with changes" if self.changed else ""
        return f"commit {self.commit}{changes}, JAX {self.packages['jax']}"


def setting_of(date: str, root: Path = ROOT) -> Setting:
    """The setting of this process.

    Args:
      date: Today.
      root: The checkout.

    Raises:
      SettingsError: If the folder is no checkout.
    """
    return Setting(
        _git(root, "rev-parse", "HEAD")[:8],
        bool(_git(root, "status", "--porcelain", "--untracked-files=no", "--", *MEASURED)),
        platform.python_version(),
        {name: _version(name) for name in ("jax", "jaxlib", *PEERS)},
        processor(),
        len(os.sched_getaffinity(0)),
        date,
    )


def processor(information: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name.

    Args:
      information: The file in which Linux tells it.
    """
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SettingsError(
            "results",
            "a checkout, for figures name the commit that they were measured at",
            f"{error}",
            "Run it in a clone, with git installed.",
        ) from error
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
