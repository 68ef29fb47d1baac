"""The scheduler's inner loops: plain functions over arrays of integers, compiled by Numba.

Who imports this package imports Numba, so a scheduler does when it is made, not before. With `NUMBA_DISABLE_JIT=1` the same functions run uncompiled.
Messages are lines of `Tables.live`; `t` is always the `Tables`. What Python calls takes them one by one,
which Numba unpacks in a third of the time of a tuple with names; that is why some have more than six parameters. Each is called in one place.
"""

from ampjax.sched.loops.admit import admit, close, open_all, report_ended, start_more
from ampjax.sched.loops.build_dispatch import decide
from ampjax.sched.loops.choose import list_ready
from ampjax.sched.loops.find_program import find, insert, remove
from ampjax.sched.loops.ranges import widen
from ampjax.sched.loops.travel import done
from ampjax.sched.loops.virtual_run import advance

__all__ = [
    "admit",
    "advance",
    "close",
    "decide",
    "done",
    "find",
    "insert",
    "list_ready",
    "open_all",
    "remove",
    "report_ended",
    "start_more",
    "widen",
]
