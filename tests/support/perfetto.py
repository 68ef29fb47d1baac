"""A reader of Chrome's trace event JSON that knows nothing of ampjax, and is stricter than the browsers'."""

import json
from collections import defaultdict

PHASES = {"M", "X", "C", "s", "f"}


def read(path):
    """The events of a file, checked: the fields that each must have, order, nesting, flows, counters.

    Returns:
      Slices, flows (pairs of start and end) and counters, with times in nanoseconds.
    """
    document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    names = []
    timed = []
    for event in document["traceEvents"]:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert event["name"]
        assert all(isinstance(event[key], int) and event[key] >= 0 for key in ("pid", "tid"))
        if event["ph"] == "M":
            names.append(event)
        else:
            timed.append(
                {
                    **event,
                    "ts": _ns(event["ts"]),
                    "dur": _ns(event.get("dur", 0)),
                }
            )
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    slices = [e for e in timed if e["ph"] == "X"]
    _named(names, slices)
    _nested(slices)
    return slices, _flows(timed, slices), _counters(timed)


def _refuse(text):
    raise AssertionError(f"{text} is not JSON")


def _ns(time_us):
    """A time in whole nanoseconds."""
    assert time_us >= 0 and abs(time_us * 1000 - round(time_us * 1000)) < 1e-3
    return round(time_us * 1000)


def _named(names, slices):
    threads = set()
    for e in names:
        if e["name"] == "thread_name" and e["args"]["name"]:
            threads.add((e["pid"], e["tid"]))
    processes = set()
    for e in names:
        if e["name"] == "process_name" and e["args"]["name"]:
            processes.add(e["pid"])
    assert {(e["pid"], e["tid"]) for e in slices} == threads
    assert {pid for pid, _ in threads} <= processes


def _nested(slices):
    """On each track a slice lies within another or beside it."""
    tracks = defaultdict(list)
    for e in slices:
        tracks[e["pid"], e["tid"]].append((e["ts"], -e["dur"]))
    for found in tracks.values():
        ends = []
        for start, minus in sorted(found):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start - minus <= ends[-1], (
                f"a slice at {start} ns ends after the one that it begins in"
            )
            ends.append(start - minus)


def _flows(timed, slices):
    """Each flow begins once and ends once, not before it begins, each time within a slice."""
    tracks = defaultdict(list)
    for e in slices:
        tracks[e["pid"], e["tid"]].append(e)
    begun = {}
    pairs = []
    for e in timed:
        if e["ph"] not in "sf":
            continue
        inside = []
        for s in tracks[e["pid"], e["tid"]]:
            if s["ts"] <= e["ts"] <= s["ts"] + s["dur"]:
                inside.append(s)
        assert inside, f"flow {e['id']} touches no slice at {e['ts']} ns"
        if e["ph"] == "s":
            assert e["id"] not in begun
            begun[e["id"]] = e, inside
        else:
            assert e["bp"] == "e"
            pairs.append(
                (
                    begun.pop(e["id"]),
                    (e, inside),
                )
            )
    assert not begun
    return pairs


def _counters(timed):
    counters = defaultdict(list)
    for e in timed:
        if e["ph"] == "C":
            assert e["args"]
            assert all(isinstance(v, (int, float)) and v >= 0 for v in e["args"].values())
            counters[e["pid"], e["name"]].append(e)
    return dict(counters)
