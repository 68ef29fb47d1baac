"""Sets the XLA flag that keeps reductions away from wrong fused kernels, before JAX's backend starts.

It must run before ampjax makes an array, so it is the first thing that `import ampjax` does. Child processes inherit the flag with the
environment. It knows nothing of the rest of the package but the cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import mmap
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from ampjax.utils.cache_folder import cache_folder

FLAG = "xla_cpu_experimental_ynn_fusion_type"
VALUE = "-reduce"
"""No fused reductions; matrix products may still be fused. Decision 20 has the rates of the values that are right."""

_SECONDS = 30
"""How long the check in a separate process may take."""
_NEEDED = "needs the flag"
_RIGHT = "right without the flag"
"""What the cache folder's file says."""

Source = Literal["guard", "environment", "unneeded", "unknown"]


@dataclass(frozen=True)
class FlagGuard:
    """The effect of importing ampjax on the flag.

    Args:
      source: What decided: the `guard` set the flag; the `environment` held a value, which was left alone; the flag is `unneeded` where the
        patterns come out right without it; or it is `unknown` to this jaxlib, which would end the process over it.
      value: The flag's value in `XLA_FLAGS`; None without the flag.
      in_time: Whether JAX's backend had not started yet. XLA reads its flags once, when it starts.
    """

    source: Source
    value: str | None
    in_time: bool

    @property
    def certain(self) -> bool:
        """Tells whether numbers are known to be right without a check in this process."""
        return (
            self.in_time
            and not self.overwritten
            and (self.source == "unneeded" or self.value == VALUE)
        )

    @property
    def overwritten(self) -> bool:
        """Tells whether the flag's value in `XLA_FLAGS` has changed since ampjax was imported."""
        return flag_value(_flags()) != self.value


def set_flag() -> FlagGuard:
    """Adds the flag to `XLA_FLAGS` where needed. Present flags stay.

    Returns:
      What was done.
    """
    in_time = not _backend_has_started()
    flags = _flags()
    value = flag_value(flags)
    if value is not None:
        return FlagGuard("environment", value, in_time)
    if not _known_to_xla():
        return FlagGuard("unknown", None, in_time)
    if right_without_flag():
        return FlagGuard("unneeded", None, in_time)
    os.environ["XLA_FLAGS"] = with_flag(
        flags, VALUE
    )  # child processes inherit it, also where it is too late for this one
    return FlagGuard("guard", VALUE, in_time)


def flag_value(flags: str) -> str | None:
    """Finds the flag's value among XLA's flags, of which the last one counts; None without the flag.

    Args:
      flags: XLA's flags, as `XLA_FLAGS` holds them.
    """
    values = re.findall(rf"(?:^|\s)--{FLAG}=(\S*)", flags)
    return values[-1] if values else None


def with_flag(flags: str, value: str) -> str:
    """XLA's flags with this value of the flag, in place of another one that may stand there.

    Args:
      flags: XLA's flags, as `XLA_FLAGS` holds them.
      value: The flag's value.

    Returns:
      The flags, with this value in the place of another one.
    """
    others = [flag for flag in flags.split() if not flag.startswith(f"--{FLAG}=")]
    return " ".join([*others, f"--{FLAG}={value}"])


def _flags() -> str:
    """Reads the flags in `XLA_FLAGS`; where a file is named there, as XLA allows, the file's flags."""
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-"):
        with suppress(OSError, ValueError):
            return Path(flags).read_text()
    return flags


def right_without_flag() -> bool:
    """Tells whether this jaxlib computes all known patterns rightly without the flag.

    For a new jaxlib, a separate process finds out (about a second), and a file in the cache folder keeps the answer. Until the answer is
    known, the file says that the flag is needed. So the flag stays if no process can be started, or if it takes too long: a slower kernel
    is better than a wrong one. If the file is deleted, the question is asked again.
    """
    with suppress(
        OSError, RuntimeError
    ):  # no home, or no place to keep an answer: then every import would ask
        file = cache_folder() / "numerics" / f"{_installation()}.txt"
        if file.exists():
            return file.read_text() == _RIGHT
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_NEEDED)
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            if not _wrong_without_flag():
                file.write_text(_RIGHT)
                return True
    return False


def _wrong_without_flag() -> list[str]:
    """The patterns that come out wrong in a process without the flag."""
    patterns = Path(__file__).with_name("patterns.py")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {
        "JAX_PLATFORMS": "cpu"
    }
    command = [sys.executable or "python3", "-P", str(patterns)]
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    return json.loads(done.stdout)


def _installation() -> str:
    """Computes a digest of the installation on which the answer depends: the libraries, and the processor, which chooses kernels."""
    files = []
    for path in _xla_libraries():
        files.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
    facts = repr(
        (
            _version("jax"),
            _version("jaxlib"),
            files,
            platform.machine(),
            _instruction_sets(),
        )
    )
    return hashlib.sha256(facts.encode()).hexdigest()


def _instruction_sets() -> str:
    """Reads the processor's instruction sets where the system names them, else the processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _known_to_xla() -> bool:
    """Tells whether every XLA of this installation knows the flag: XLA ends the process over an unknown flag."""
    are_known = [_contains(path, FLAG.encode()) for path in _xla_libraries()]
    return bool(are_known) and all(are_known)


def _xla_libraries() -> Iterator[Path]:
    """Yields the files that hold an XLA compiler: jaxlib's, and those of plugins for other devices."""
    for package, pattern in (("jaxlib", "*"), ("jax_plugins", "*/*")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in sorted(Path(folder).glob(pattern)):
                if (
                    path.suffix in (".so", ".dylib", ".dll", ".pyd")
                    and path.stat().st_size > 1 << 24
                ):
                    yield path


def _contains(path: Path, text: bytes) -> bool:
    with (
        path.open("rb") as file,
        mmap.mmap(
            file.fileno(),
            0,
            access=mmap.ACCESS_READ,
        ) as content,
    ):
        return content.find(text) >= 0


def _backend_has_started() -> bool:
    """Tells whether JAX has started a backend in this process; in doubt True, so that the check runs."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None:
        return "jax" in sys.modules
    started = getattr(bridge, "backends_are_initialized", None)
    return True if started is None else bool(started())


GUARD = set_flag()
"""What was done when this module was imported."""
