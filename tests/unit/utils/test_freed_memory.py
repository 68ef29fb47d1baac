"""Whether freed memory stays in the process: page faults of a process that allocates the same buffer again and again."""

import platform
import subprocess
import sys

import pytest

from ampjax.utils import freed_memory

PROGRAM = """
import ctypes, resource
{imports}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
faults = []
for _ in range(7):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffer = libc.malloc(40 << 20)
    ctypes.memset(buffer, 1, 40 << 20)
    libc.free(buffer)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sorted(faults)[3])
"""
ON_GLIBC = platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
CLEAN = {"PATH": "/usr/bin:/bin"}


def usual_faults(imports, **environment):
    """The median of page faults of one buffer of 40 MB, which is too large for what glibc keeps by itself."""
    path = str(freed_memory.__file__).removesuffix("/ampjax/utils/freed_memory.py")
    command = [sys.executable, "-c", PROGRAM.format(imports=imports)]
    return int(
        subprocess.check_output(
            command,
            env=CLEAN | {"PYTHONPATH": path} | environment,
            text=True,
        )
    )


OURS = "import importlib.util as u; s = u.spec_from_file_location('m', {file!r}); m = u.module_from_spec(s); s.loader.exec_module(m)"


@pytest.mark.skipif(not ON_GLIBC, reason="only glibc has these settings")
def test_a_buffer_gets_the_pages_of_the_one_before():
    ours = OURS.format(file=freed_memory.__file__)
    assert usual_faults("") > 10
    assert usual_faults(ours) == 0
    assert usual_faults(ours, AMPJAX_MALLOC="0") > 10


@pytest.mark.skipif(not ON_GLIBC, reason="only glibc has these settings")
@pytest.mark.slow
def test_importing_ampjax_does_it():
    assert usual_faults("import ampjax; assert ampjax.utils.freed_memory.KEPT") == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AMPJAX_MALLOC", "0"),
        ("MALLOC_ARENA_MAX", "4"),
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2"),
    ],
)
def test_the_users_choice_stays(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda _: pytest.fail("glibc was asked"))
    assert not freed_memory.keep_freed_memory()


@pytest.mark.parametrize(
    ("system", "libc"),
    [("Darwin", ""), ("Windows", ""), ("Linux", "")],
)
def test_other_systems_are_left_alone(monkeypatch, system, libc):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(
        freed_memory.ctypes, "CDLL", lambda _: pytest.fail("the C library was asked")
    )
    assert not freed_memory.keep_freed_memory()


RESIDENT = """
import numpy as np

def resident():
    text = open("/proc/self/status").read()
    return int(text.split("VmRSS:")[1].split()[0]) // 1024

small = []
large = np.ones(8_000_000)
small.append(bytearray(1000))
del large
before = resident()
m.give_back_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(not ON_GLIBC, reason="only glibc has these settings")
def test_kept_memory_can_be_given_back():
    ours = OURS.format(file=freed_memory.__file__)
    for value, (least, most) in {
        "": (55, 70),
        "0": (-5, 5),
    }.items():
        found = subprocess.check_output(
            [sys.executable, "-c", ours + RESIDENT],
            env=CLEAN | {"AMPJAX_MALLOC": value},
            text=True,
        )
        assert least < int(found) < most
