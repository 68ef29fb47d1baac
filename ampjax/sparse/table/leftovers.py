"""Finds files left by killed saves, and tells them from files of a running save.

The names of a save's files and folders contain a token. While it runs, the save holds an `flock` on a file `...<token>.lock` beside them,
which it makes first. The operating system releases the lock when the process ends, however it ends. So if the lock of a token can be taken,
the files with this token are left over. (A child that was forked meanwhile, and has not started another program, holds the lock too. On
Linux's NFS the lock holds across machines.) Where a file system knows no such locks, files of killed saves stay: nothing is removed on
suspicion.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".lock"


@contextmanager
def saving(folder: Path, stem: str) -> Iterator[str]:
    """Opens a token for the names of one save: stem, token, rest; the token is in use until the `with` ends.

    Args:
      folder: Where the names will be.
      stem: How they begin.

    Yields:
      8 hexadecimal digits.

    Raises:
      OSError: If the folder can't be written.
    """
    token, lock = _new_lock(folder, stem)
    try:
        yield token
    finally:
        (folder / f"{stem}{token}{_LOCK}").unlink(missing_ok=True)
        os.close(lock)


def sweep(
    folder: Path,
    stem: str,
    remove: Callable[[str], None],
) -> None:
    """Lets `remove` delete the leftovers of killed saves. Files that can't be listed or deleted stay.

    Args:
      folder: Where to look.
      stem: How names begin.
      remove: Takes a token, whose lock is held meanwhile.
    """
    pattern = re.compile(re.escape(stem) + r"([0-9a-f]{8})[-.]")
    with suppress(OSError):
        tokens = {match[1] for name in os.listdir(folder) if (match := pattern.match(name))}
        for token in sorted(tokens):
            with _hold_ended_lock(folder / f"{stem}{token}{_LOCK}") as has_ended, suppress(OSError):
                if has_ended:
                    remove(token)


def _new_lock(folder: Path, stem: str) -> tuple[str, int]:
    """A token, and the descriptor of its lock."""
    while True:
        token = secrets.token_hex(4)
        path = folder / f"{stem}{token}{_LOCK}"
        lock = os.open(
            path,
            os.O_RDWR | os.O_CREAT | os.O_EXCL,
            0o666,
        )
        with suppress(OSError):  # the file system may know no such locks
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # if a sweep was faster, this waits until it has deleted the file
        if _is_at(lock, path):
            return token, lock
        os.close(lock)


@contextmanager
def _hold_ended_lock(path: Path) -> Iterator[bool]:
    """Tells whether a lock's save has ended. If so, the lock is held until the `with` ends, and then deleted."""
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        yield True  # it came to its end, or an older version made it
        return
    except OSError:
        yield False
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        has_ended = False
    else:
        has_ended = _is_at(lock, path)
    try:
        yield has_ended
        if has_ended:
            path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _is_at(descriptor: int, path: Path) -> bool:
    """Tells whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
