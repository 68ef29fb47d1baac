"""Tables of training: epochs and seconds to a target, and examples a second beside other programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.results.markdown import each, middle, number, table
from experiments.results.section import Records

WORKLOADS: Mapping[str, str] = {
    "list-reduction": "list reduction",
    "sentiment": "sentiment treebank, nodes",
    "wikiner": "WikiNER, words, of 10,000 sentences",
    "babi15": "bAbI task 15",
    "mnist": "MNIST",
    "qm9": "molecules (QM9)",
    "permutation": "permutations",
}
"""By experiment."""

UNITS: Mapping[str, str] = {
    "list-reduction": "sequences",
    "sentiment": "trees",
    "wikiner": "sentences",
    "babi15": "questions",
    "mnist": "images",
}
"""By experiment, its examples."""

PAPER: Mapping[tuple[str, str], str] = {
    ("list-reduction", "async"): "9.5 (ICLR), 9 (arXiv)",
    ("sentiment", "async"): "3 (to 82 %, with GloVe vectors)",
    ("wikiner", "async"): "about 94 % after 1 epoch of 142,153 sentences",
}
"""AMPNet's epochs, by experiment and mode, where it has them."""

MODES = {"batch": "batches", "async": "asynchronously"}

PROGRAMS = {"ampjax": "ampjax", "jax": "plain JAX", "torch": "PyTorch"}
"""By the first word of a program's name, the column of its rate."""


def epochs(found: Mapping[str, Records]) -> str:
    """A line for each workload and mode.

    Args:
      found: Summaries of experiments.
    """
    rows = []
    for records in found.values():
        for r in records:
            name = r["experiment"]
            keys = f"{r['max_active_keys']} {UNITS.get(name, 'examples')}"
            if r["mode"] == "batch":
                how = f"batches of {keys}"
            else:
                how = f"asynchronously, {keys} in flight"
            if name == "list-reduction" and r["mode"] == "async":
                how = f"asynchronously, {r['max_active_keys']} buckets of 100 in flight"
            if name == "mnist":
                how = how.replace(keys, f"{r['max_active_keys'] * 100} images")
            goal = f"{WORKLOADS[name]}, {percent(r['target'])}"
            rows.append(
                [
                    goal,
                    how,
                    each(r["epochs"]),
                    ", ".join(percent(best) for best in r["best"]),
                    each(r["seconds"]),
                    number(r["train_per_s"]),
                    PAPER.get((name, r["mode"]), ""),
                ]
            )
    headers = (
        "workload, target",
        "how",
        "epochs, by seed",
        "accuracy",
        "seconds",
        "examples a second",
        "epochs in the paper",
    )
    return table(headers, rows)


def functions(found: Mapping[str, Records]) -> str:
    """A line for each model.

    Args:
      found: Summaries of `functions`.
    """
    rows = []
    for records in found.values():
        for r in records:
            rows.append(
                [
                    r["experiment"].removeprefix("functions-").replace("-", " "),
                    percent(r["target"]),
                    MODES[r["mode"]],
                    each(r["epochs"]),
                    ", ".join(percent(best) for best in r["best"]),
                    each(r["seconds"]),
                ]
            )
    return table(
        ("model", "target", "how", "epochs, by seed", "accuracy", "seconds"),
        rows,
    )


def rates(found: Mapping[str, Records]) -> str:
    """A line for each workload: the best program of each kind, with its setting.

    Args:
      found: Records of `bench NAME`.
    """
    rows = []
    for records in found.values():
        if not records:
            continue
        cells = [WORKLOADS.get(records[0]["bench"], records[0]["bench"])]
        for kind in PROGRAMS:
            best = fastest(records, kind)
            cells.append("" if best is None else _program(best))
        rows.append(cells)
    return table(("workload", *PROGRAMS.values()), rows)


def fastest(records: Iterable[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The fastest program of a kind; None if there is none.

    Args:
      records: Of one workload.
      kind: The first word of a program's name.
    """
    own = [r for r in records if r["program"].split()[0] == kind]
    return max(own, key=lambda r: r["train_per_s"], default=None)


def percent(share: float) -> str:
    """A share in percent, with a digit behind the point unless that is 0.

    Args:
      share: From 0 to 1.

    >>> percent(0.97), percent(0.9712)
    ('97 %', '97.1 %')
    """
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def late(found: Mapping[str, Records]) -> str:
    """Losses by remedy and delay, medians over seeds, for one workload.

    Args:
      found: Records of `staleness`.
    """
    cells: dict[str, dict[int, list[float]]] = {}
    for records in found.values():
        for r in records:
            cells.setdefault(r["remedy"], {}).setdefault(r["delay"], []).append(r["loss"])
    delays = sorted({delay for own in cells.values() for delay in own})
    rows = []
    for remedy, own in cells.items():
        rows.append([remedy, *(number(middle(own.get(delay, [None]))) for delay in delays)])
    return table(("remedy", *(f"τ = {delay}" for delay in delays)), rows)


def _program(r: Mapping[str, Any]) -> str:
    """A program's rate and setting."""
    name: Sequence[str] = r["program"].split()[1:]
    setting = " ".join([*name, r["setting"]]) if name else r["setting"]
    return f"{r['train_per_s']:,.0f} ({setting})"
