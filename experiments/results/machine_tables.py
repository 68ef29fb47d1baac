"""Tables of machines: tables in host memory, simulated machines and clusters, and killed processes."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.chaos.durations import words
from experiments.local_sgd.driver import PUBLISHED
from experiments.parallax import paper
from experiments.results.batch_tables import every
from experiments.results.markdown import number, table, times
from experiments.results.section import Records

WHAT: Mapping[str, str] = {
    "dlrm-8": "DLRM, 8 tables of 100,000 × 32, 20 ids each",
    "dlrm-26": "DLRM, 26 tables of 20,000 × 16, an id each",
    "one-table": "a table of 1,000,000 × 64, 40 ids",
    "stacked-26": "26 tables of 20,000 × 16",
    "stacked-100": "100 tables of 5,000 × 16",
}
"""Comparisons of `bench recommender` in words."""

SCALED: Mapping[str, str] = {
    "list-reduction": "list reduction",
    "tree-lstm": "trees",
    "ggnn": "molecules",
    "perceptron": "perceptron",
    "tagger": "tagged sentences",
}
"""Models of `scaling` in words."""

PAPER: Mapping[tuple[str, str], str] = {
    ("list-reduction", "none"): "about 3 million",
    ("list-reduction", "measured"): "268,000",
}
"""AMPNet's examples a second, by workload and what all else takes."""

BYTES: Mapping[tuple[str, str], str] = {
    ("dense", "AR"): "dense, by AllReduce",
    ("sparse", "AR"): "rows, by AllGatherv",
    ("dense", "PS"): "dense, by servers",
    ("sparse", "PS"): "rows, by servers",
}
"""By kind of variable and architecture."""

SERVERS = "naive PS"


def recommender(found: Mapping[str, Records]) -> str:
    """A line for each other program.

    Args:
      found: Records of `bench recommender`.
    """
    rows = []
    ours = {}
    for r in every(found):
        what = r["what"]
        if what not in ours:  # the first program of a comparison
            ours[what] = r["seconds"]
            continue
        own = number(1e3 * ours[what])
        rows.append(
            [
                WHAT[what],
                r["program"],
                own,
                number(1e3 * r["seconds"]),
                f"**{times(r['times'])}**",
            ]
        )
    return table(
        ("what", "beside", "ampjax, ms", "the other, ms", "times as fast"),
        rows,
    )


def replicas(found: Mapping[str, Records]) -> str:
    """A line for each comparison.

    Args:
      found: Records of `bench parallax`.
    """
    rows = []
    for r in every(found):
        rows.append(
            [
                r["what"],
                number(1e3 * r["ours"]),
                number(1e3 * r["plain"]),
                f"**{times(r['ratio'])}**",
            ]
        )
    return table(
        ("a step of", "ampjax, ms", "plain JAX, ms", "times as fast"),
        rows,
    )


def cluster(found: Mapping[str, Records]) -> str:
    """A line for each model: ours and the paper's throughput, by way.

    Args:
      found: Records of Parallax's tables 1 and 4.
    """
    figures: dict[str, dict[str, str]] = {}
    for r in every(found):
        if r["where"] == "cluster" and r["paper"] is not None:
            own = figures.setdefault(r["model"], {})
            own[r["way"]] = f"{digits(r['per_s'])}, {digits(r['paper'])}"
    ways = ("AR", SERVERS, "optimised PS", "hybrid")
    rows = []
    for model, own in figures.items():
        unit = "words" if model in ("lm", "nmt") else "images"
        cells = [own.get(way, "") for way in ways]
        if not own.get("hybrid"):
            cells[-1] = "as AllReduce"
        rows.append([f"{paper.NAMES[model]}, {unit}/s", *cells])
    headers = (
        "model",
        "AllReduce: ours, paper",
        "naive parameter servers: ours, paper",
        "optimised servers: ours, paper",
        "hybrid: ours, paper",
    )
    return table(headers, rows)


def transferred(found: Mapping[str, Records]) -> str:
    """A line for each kind of variable and way: how far measured bytes are from the formula.

    Args:
      found: Records of Parallax's table 3.
    """
    cells: dict[str, dict[int, str]] = {}
    for r in every(found):
        off = 100 * (r["measured"] / r["formula"] - 1)
        way = BYTES[r["kind"], r["architecture"]]
        cells.setdefault(way, {})[r["machines"]] = f"{r['measured'] / 1e6:.2f} MB, {off:+.2f} %"
    machines = sorted({n for own in cells.values() for n in own})
    rows = []
    for way, own in cells.items():
        rows.append([way, *(own.get(n, "") for n in machines)])
    return table(("variables", *(f"{n} machines" for n in machines)), rows)


def simulated(found: Mapping[str, Records]) -> str:
    """A line for each simulated machine.

    Args:
      found: Records of `table3`, `appendix-c` and `scaling`.
    """
    rows = []
    for r in every(found):
        if "rest" in r:
            name = r["workload"].replace("-", " ")
            took = "only layers take time" if r["rest"] == "none" else "all else as measured here"
            rows.append(
                [
                    f"{name}, the paper's settings, {took}: examples a second",
                    number(r["train_per_s"]),
                    PAPER.get((r["workload"], r["rest"]), ""),
                ]
            )
        elif r.get("source") in ("closed form", "simulated"):
            rows.append(
                [
                    f"gated graph network, {r['source']}: graphs a second",
                    number(r["graphs_per_s"]),
                    "6,500" if r["source"] == "closed form" else "",
                ]
            )
        elif r.get("workers", 1) > 1:
            name = SCALED.get(r["model"], r["model"])
            rows.append(
                [
                    f"{name}, {r['workers']:,} workers: throughput over one worker",
                    number(r["speed_up"]),
                    "",
                ]
            )
    return table(("what", "ampjax", "paper"), rows)


def local_sgd(found: Mapping[str, Records]) -> str:
    """A line for each training.

    Args:
      found: Records of `local-sgd`.
    """
    printed = {row.name: row.printed or () for row in PUBLISHED}
    rows = []
    for r in every(found):
        rows.append(
            [
                f"{r['name']}, seed {r['seed']}",
                f"{r['losses'][-1]:.4f}",
                f"{r['accuracies'][-1]:.2f}",
                f"{r['seconds'][-1]:.0f}",
                ", ".join(f"{n:g}" for n in printed.get(r["name"], ())),
            ]
        )
    return table(
        (
            "training",
            "loss",
            "accuracy",
            "seconds on the clock",
            "the study: loss, accuracy, seconds",
        ),
        rows,
    )


def kills(found: Mapping[str, Records]) -> str:
    """A line for each model and fault.

    Args:
      found: Records of `chaos-hosts`.
    """
    names = {"kill": "killed", "hang": "stopped"}
    rows = []
    for r in every(found):
        for fault, said in names.items():
            own = r[fault]
            if own["n"]:
                rows.append(
                    [
                        f"{r['model'].replace('-', ' ')} on two hosts; a host {said}",
                        f"{own['n']}",
                        "yes" if r["exact"] else "**no**",
                        words(own["noticed_s"]),
                        words(own["to_go_on_s"], 1),
                    ]
                )
    headers = (
        "training; what is hit",
        "faults",
        "the same bits",
        "noticed after, s: median, worst",
        "goes on after, s: median, worst",
    )
    return table(headers, rows)


def digits(value: float) -> str:
    """A throughput with three digits that count.

    Args:
      value: Words or images a second.

    >>> digits(81_812.3)
    '81,800'
    """
    return f"{float(f'{value:.3g}'):,.0f}"
