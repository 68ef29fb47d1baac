"""Tables of `amp.vmap`: batches beside plain JAX by hand, and loops of unequal length beside `jax.vmap`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from experiments.results.markdown import number, table, times
from experiments.results.section import Records

WORKS: Mapping[str, tuple[str, str]] = {
    "trees": ("Tree-LSTM, 64 trees of the treebank", "level by level"),
    "tagger": ("tagger with a model of characters, 64 sentences of WikiNER", "padded, with masks"),
    "list-reduction-16": ("list reduction, 16 sequences, no buckets", "padded"),
    "list-reduction-100": ("list reduction, 100 sequences", "padded"),
    "molecules-20": (
        "gated graph network, 20 molecules of QM9",
        "all edges in one array, as in jraph",
    ),
    "molecules-64": ("gated graph network, 64 molecules", "all edges in one array, as in jraph"),
    "child-sum-trees": ("child-sum Tree-LSTM, trees of 38 nodes", "level by level"),
    "translation": ("encoder and decoder with attention", "padded"),
    "input-feeding": ("the same with input feeding", "padded"),
    "graph-attention": ("graph attention, 400 nodes", "segment sums"),
    "attention-200": ("self-attention, one text of 200 words", "a matrix"),
    "attention-64": ("self-attention, 64 sentences of 5 to 40 words", "padded"),
    "soft-dtw": ("soft dynamic time warping, 16 pairs", "diagonal by diagonal, padded"),
    "crf": (
        "a conditional random field over a recurrent network, 64 sentences",
        "padded, with masks",
    ),
    "distances": (
        "distances in a graph by up to eight rounds, 64 graphs",
        "segment sums, all rounds",
    ),
    "chain": ("a chain of 10,000 steps", "`lax.scan`"),
    "chain-tree": ("the chain as a tree", "`lax.scan`"),
    "chain-recursion": ("the chain as a recursion", "`lax.scan`"),
    "small-graphs": ("128 small graphs, three layers", "segment sums"),
}
"""By name, a work in words, and how it is written by hand."""

LOOPS: Mapping[str, str] = {
    "loops-equal": "a loop of 40 trips each",
    "loops-uniform": "1 to 100 trips",
    "loops-lognormal": "lognormal trips, 24 on average",
    "loops-one-long": "10 trips, one in a hundred 500",
    "loop-in-a-loop": "forty draws with a loop each",
    "resets": "1,000 steps with rare, costly resets",
    "early-exit-128": "eight blocks of width 128, early exit",
    "early-exit-512": "of width 512",
    "early-exit-1024": "of width 1,024",
    "newton": "Newton's method to tolerance",
    "lbfgs": "L-BFGS of optax to tolerance",
    "lbfgs-optimistix": "L-BFGS of optimistix",
    "lbfgs-jaxopt": "L-BFGS of jaxopt",
    "bfgs-jaxopt": "BFGS of jaxopt",
    "van-der-pol": "Van der Pol's equation, diffrax",
    "learned-field": "and a network of two layers of width 64",
    "nuts-funnel": "NUTS of BlackJAX, 100 draws, a funnel",
    "nuts-mixture": "and a mixture of Gaussians",
}
"""By name, a loop in words."""


def batches(found: Mapping[str, Records]) -> str:
    """A line for each work.

    Args:
      found: Records of `bench batch`.
    """
    rows = []
    for r in every(found):
        words, by_hand = WORKS[r["work"]]
        own, plain = r["temporary_bytes"]
        rows.append(
            [
                words,
                by_hand,
                number(r["ours_ms"]),
                number(r["plain_ms"]),
                _ratio(r),
                ", ".join(f"{seconds:.1f}" for seconds in r["first_s"]),
                f"{own / 1e6:,.1f}, {plain / 1e6:,.1f}",
            ]
        )
    headers = (
        "work",
        "by hand",
        "ampjax, ms",
        "by hand, ms",
        "times as fast",
        "first update, s: ampjax, by hand",
        "temporary MB: ampjax, by hand",
    )
    return table(headers, rows)


def attention(found: Mapping[str, Records]) -> str:
    """A line for each form of attention, a column for sentences and one for a text.

    Args:
      found: Records of `bench batch --work attention-forms`.
    """
    by_form: dict[str, dict[str, str]] = {}
    for r in every(found):
        _, data, form = r["work"].split("-", 2)
        by_form.setdefault(form, {})[data] = f"{_ratio(r)}, {number(r['ours_ms'])}"
    rows = []
    for form, cells in by_form.items():
        rows.append([f"`{form}`", cells.get("64", ""), cells.get("200", "")])
    return table(
        ("form", "64 sentences: times as fast, ms", "a text of 200 words: times as fast, ms"),
        rows,
    )


def loops(found: Mapping[str, Records]) -> str:
    """A line for each loop.

    Args:
      found: Records of `bench lanes`.
    """
    rows = []
    records = list(every(found))
    has_hand = any("to_hand" in r for r in records)
    for r in records:
        ms = [number(r[f"{form}_ms"]) for form in ("vmap", "map", "lanes", "chosen")]
        by_hand = [times(r["to_hand"])] if "to_hand" in r else [""]
        rows.append(
            [
                LOOPS[r["work"]],
                f"{r['elements']:,}",
                *ms,
                f"**{times(r['to_vmap'])}**",
                times(r["to_best"]),
                *(by_hand if has_hand else []),
                f"{r['rows_vmap'] / r['rows']:.1f}, {r['rows_lanes'] / r['rows']:.1f}",
            ]
        )
    headers = (
        "loop",
        "elements",
        "`jax.vmap`, ms",
        "`lax.map`, ms",
        "32 lanes, ms",
        "chosen, ms",
        "to `jax.vmap`",
        "to the better of the two",
        *(["to a state machine by hand"] if has_hand else []),
        "rows: `jax.vmap`, lanes",
    )
    return table(headers, rows)


def every(found: Mapping[str, Records]) -> Iterator[Mapping[str, Any]]:
    """The records of several commands, one after the other.

    Args:
      found: By command.
    """
    for records in found.values():
        yield from records


def by_work(records: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Records by the name of their work.

    Args:
      records: Of `bench batch` or `bench lanes`.
    """
    return {record["work"]: record for record in records if "work" in record}


def _ratio(r: Mapping[str, Any]) -> str:
    """The ratio of a work, with the least and the largest of a round."""
    low, high = r["spread"]
    return f"**{times(r['ratio'])}** ({times(low)} to {times(high)})"
