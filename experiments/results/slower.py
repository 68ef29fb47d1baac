"""The list of all comparisons of the page in which ampjax is slower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from experiments.results.batch_tables import LOOPS, WORKS
from experiments.results.machine_tables import WHAT
from experiments.results.markdown import times
from experiments.results.section import Records
from experiments.results.training_tables import PROGRAMS, WORKLOADS, fastest

MOST = 0.95
"""A ratio from here on is no difference that repeats."""

OURS = "ours", "one table", "many tables"
"""Programs of `bench recommender` that are ours, by how their names begin."""

HEADING = "## Where ampjax is slower"


def slower(found: Mapping[str, Records]) -> str:
    """A line for each comparison in which ampjax is at most 0.95 times as fast.

    Args:
      found: The records of all commands, by name.
    """
    lines = []
    for records in found.values():
        for what, ratio in ratios(records):
            if ratio <= MOST:
                lines.append((ratio, f"* {what}: {times(ratio)} times as fast"))
    if not lines:
        return f"{HEADING}\n\nIn none of the comparisons that were measured."
    ordered = "\n".join(line for _, line in sorted(lines))
    return f"{HEADING}\n\n{len(lines)} of the comparisons above, the slowest first:\n\n{ordered}"


def ratios(records: Records) -> Iterator[tuple[str, float]]:
    """Comparisons of a command in words, and how many times as fast ampjax is.

    Args:
      records: Of one command, of any kind.
    """
    for r in records:
        work = str(r.get("work"))
        if work in WORKS:
            words, by_hand = WORKS[work]
            yield f"{words}, beside plain JAX by hand ({by_hand})", r["ratio"]
        elif work in LOOPS:
            yield f"{LOOPS[work]}, beside `jax.vmap`", r["to_vmap"]
            yield f"{LOOPS[work]}, beside `lax.map`", r["map_ms"] / r["chosen_ms"]
        elif "work" in r:
            yield f"attention, `{work}`, beside plain JAX by hand", r["ratio"]
        elif r.get("what") in WHAT and not r["program"].startswith(OURS):
            yield f"{WHAT[r['what']]}, beside {r['program']}", r["times"]
        elif "plain" in r:
            yield f"a step of {r['what']}, beside plain JAX", r["ratio"]
    if records and "program" in records[0] and "bench" in records[0]:
        yield from _of_programs(records)


def _of_programs(records: Records) -> Iterator[tuple[str, float]]:
    """The fastest of other programs beside ours."""
    bench = records[0]["bench"]
    ours = fastest(records, "ampjax")
    for kind, name in PROGRAMS.items():
        other = fastest(records, kind)
        if kind != "ampjax" and other is not None and ours is not None:
            what = f"training by messages, {WORKLOADS.get(bench, bench)}, beside {name}"
            yield f"{what} ({other['setting']})", ours["train_per_s"] / other["train_per_s"]
