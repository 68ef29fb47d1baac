"""Compiled kernels that equal graphs share, and the time for which unused kernels are kept.

A kernel is kept as long as an engine uses it. After that it is kept for the next equal graph: a notebook makes one when a cell is run again.
Of these unused kernels the latest are kept, with at most `MOST_IDLE` executables. The bound is needed: an executable takes 1 to 4 MB and up
to 40 memory maps, of which Linux allows a process 65,530; XLA's compiler crashes when there are no more.

This module does not know what kernels compute.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from ampjax.engine.kernels.kernel import Kernel

MOST_IDLE = 256
"""The most executables of unused kernels: as many as a large graph has, with about 10,000 memory maps."""

Functions = tuple[Any, Any]
"""The jitted functions of a kernel."""


class SharedKernels:
    """Kernels, by the keys from which kernels are made.

    A kernel that is no longer referenced is gone, but its compiled functions are kept, and the next kernel with the same key takes them over.

    Args:
      most_idle: The most executables of unused kernels that are kept; a kernel that has compiled nothing counts as one.
    """

    def __init__(self, most_idle: int = MOST_IDLE):
        self.most_idle = most_idle
        self._held: weakref.WeakValueDictionary[Hashable, Kernel] = weakref.WeakValueDictionary()
        self._idle: OrderedDict[Hashable, tuple[Functions, int]] = (
            OrderedDict()
        )  # the latest come last
        self._n_idle = 0
        self._lock = (
            threading.RLock()
        )  # kernels die wherever the garbage collector runs, in here too

    def find(
        self,
        key: Hashable,
        make: Callable[[], Kernel],
    ) -> Kernel:
        """The kernel of a key.

        Args:
          key: What it is made from.
          make: Makes it, if there is none.
        """
        with self._lock:
            held = self._held.get(key)
            # Not in use, but perhaps kept: then its compiled functions are taken over.
            functions = self._take(key) if held is None else None
        if held is not None:
            return held
        # Made outside the lock, so another thread may make the same one meanwhile.
        kernel = make() if functions is None else Kernel(*functions)
        weakref.finalize(
            kernel,
            self._let_go,
            key,
            (kernel.once, kernel.looped),
        ).atexit = False
        with self._lock:
            return self._held.setdefault(key, kernel)  # another thread may have been faster

    @property
    def n_held(self) -> int:
        """The number of kernels in use."""
        return len(self._held)

    @property
    def n_idle(self) -> int:
        """The number of executables of unused kernels."""
        return self._n_idle

    def __repr__(self) -> str:
        return (
            f"SharedKernels: {self.n_held} held; {self.n_idle} of {self.most_idle} executables idle"
        )

    def _let_go(self, key: Hashable, functions: Functions) -> None:
        """Keeps the compiled functions of a kernel that is no longer used, and drops the functions that have been kept longest."""
        n = max(
            1,
            sum(function._cache_size() for function in functions if function is not None),
        )
        dropped: list[
            Any
        ] = []  # destroyed after the lock is free: that takes long, and may run anything
        with self._lock:
            # The latest stands last; those that were kept longest go first.
            dropped.append(self._take(key))
            self._idle[key] = functions, n
            self._n_idle += n
            while self._n_idle > self.most_idle:
                dropped.append(self._take(next(iter(self._idle))))

    def _take(self, key: Hashable) -> Functions | None:
        functions, n = self._idle.pop(key, (None, 0))
        self._n_idle -= n
        return functions


KERNELS = SharedKernels()
"""The shared kernels of this process."""


def shared(make: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """Makes a function return the same kernel for equal arguments, as long as someone keeps the kernel, and a while longer.

    Args:
      make: Makes a kernel from hashable arguments. All that the kernel depends on must be among them.
    """

    @functools.wraps(make)
    def find(*args: Hashable) -> Kernel:
        return KERNELS.find(
            (make, *args),
            functools.partial(make, *args),
        )

    return find
