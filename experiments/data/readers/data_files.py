"""Where data files are: a folder that was named, else `AMPJAX_DATA`, else a cache filled by download.

This module knows folders, addresses and checksums; what is inside a file is the business of the data set's own module.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ampjax.errors import DataError
from ampjax.utils.cache_folder import cache_folder

ENVIRONMENT = "AMPJAX_DATA"
MOST_BYTES = 1 << 28
"""Of a download; the largest file that is downloaded has 10 MB."""
_TIMEOUT_S = 60
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Remote:
    """A file of a data set, and where to get it.

    Args:
      dataset: The data set's folder name, such as `mnist`.
      name: The file's name.
      url: Its address; `None` if it can't be downloaded.
      sha256: The checksum that a download must have, 64 hexadecimal digits; needed where there is a `url`.
      also: Other names under which the same content may lie in a folder, such as the unpacked file's.
      source: Where a person can get it, for the error message; the `url` if nothing is given.
    """

    dataset: str
    name: str
    url: str | None = None
    sha256: str | None = None
    also: Sequence[str] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if self.url is not None and (self.sha256 is None or len(self.sha256) != 64):
            raise DataError(
                f"Remote `{self.dataset}/{self.name}`",
                "a SHA-256 of 64 hexadecimal digits beside a url",
                f"{self.sha256!r}",
                "What is downloaded must be checked: give its checksum.",
            )


def find(
    remote: Remote,
    data_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """The path of a data file that exists.

    A folder given as `data_dir` is the only one looked into: who names a folder wants the file from there and from nowhere
    else. Without it, the folder in the environment variable `AMPJAX_DATA` comes first, then the cache, then a download into
    the cache. In each folder both `FOLDER/<dataset>/<name>` and `FOLDER/<name>` will do.

    Args:
      remote: The file wanted.
      data_dir: The only folder to look into.

    Returns:
      The file's path. Its content was checked only if it was downloaded by this call.

    Raises:
      DataError: If the file is in none of these places and can't be downloaded, or if a download fails or has another
        checksum than it should.
    """
    folders = _folders(data_dir)
    for folder in folders:
        for path in _candidates(remote, folder):
            if path.is_file():
                return path
    if data_dir is None and remote.url is not None:
        return _download(remote, cache_folder() / remote.dataset / remote.name)
    looked = ", ".join(f"{folder / remote.dataset} and {folder}" for folder in folders)
    raise DataError(
        f"data set `{remote.dataset}`",
        f"the file {_names(remote)}",
        f"no such file in {looked}",
        f"Get it from {remote.source or remote.url or 'where the data set is published'}, and name its folder with "
        f"data_dir (--data-dir) or the environment variable {ENVIRONMENT}. An experiment with --synthetic needs no files.",
    )


def _folders(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    if data_dir is not None:
        return [_expanded(data_dir)]
    named = os.environ.get(ENVIRONMENT)
    return [
        *([_expanded(named)] if named else []),
        cache_folder(),
    ]


def _expanded(folder: str | os.PathLike[str]) -> Path:
    """With `~` as the home folder; of a user who is unknown, it stays as it is, and nothing will be found there."""
    return Path(os.path.expanduser(folder))


def _candidates(remote: Remote, folder: Path) -> list[Path]:
    result = []
    for base in (folder / remote.dataset, folder):
        for name in (remote.name, *remote.also):
            result.append(base / name)
    return result


def _names(remote: Remote) -> str:
    return " or ".join((remote.name, *remote.also))


def _download(remote: Remote, target: Path) -> Path:
    """Fetches a file beside its target, checks it, and only then gives it its name: a half file is never found."""
    assert remote.url is not None
    place = f"download of {remote.url}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise DataError(
            place,
            f"a folder {target.parent} that can be written",
            f"{error}",
            f"Set {ENVIRONMENT}, or XDG_CACHE_HOME.",
        ) from error
    try:
        with os.fdopen(handle, "wb") as out:
            digest = _fetch(remote.url, out)
        if digest != remote.sha256:
            raise DataError(
                place,
                f"a file with SHA-256 {remote.sha256}",
                f"{digest}",
                f"The file was damaged on its way or has changed at its source: try again, or put {_names(remote)} into a "
                f"folder and name that with {ENVIRONMENT}.",
            )
        os.replace(partial, target)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            place,
            "an answer with the file",
            f"{type(error).__name__}: {error}",
            f"Without internet, get {_names(remote)} elsewhere and name its folder with data_dir (--data-dir) or the "
            f"environment variable {ENVIRONMENT}.",
        ) from error
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


def _fetch(url: str, out) -> str:
    """Copies what an address gives into `out`, up to `MOST_BYTES`; returns its SHA-256, which is wrong if there was more."""
    digest = hashlib.sha256()
    n_bytes = 0
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
        while n_bytes <= MOST_BYTES and (chunk := answer.read(_CHUNK_BYTES)):
            digest.update(chunk)
            out.write(chunk)
            n_bytes += len(chunk)
    return digest.hexdigest()
