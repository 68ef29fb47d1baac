"""Graphs as text, kept: those of the project's models, and of small programs that use one combinator each.

`python -m support.printed`, run in `tests/`, writes those that have changed into `support/printed`; say why in the commit. Names of nodes may change, what is computed may not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support.models import MODELS, model

import ampjax as amp
import ampjax.graphs as ag
from experiments.functions import RECIPES
from experiments.models import act, ggnn, mixture, permutation, rnn, tagger, tree_lstm

FOLDER = Path(__file__).with_name("printed")
KEY = jax.random.key(0)
WEIGHTS = {
    "w": np.eye(2, dtype=np.float32),
    "v": np.ones((2, 2), np.float32),
}
ROW = {"x": "float32[2]", "n": "int32[]"}
ROWS = {"x": "float32[2]", "xs": "float32[t,2]", "n": "int32[]"}
TREE = {"tree": amp.Tree("int32[v]", "int32[v]", "float32[v,2]")}
GRAPH = {"xs": "float32[v,2]", "edges": amp.Edges("v", kinds=2)}


def _first(p: Any, h: Any) -> Any:
    return jnp.tanh(h @ p["w"])


def _second(p: Any, h: Any) -> Any:
    return jnp.sin(h @ p["v"])


def _squares(h: Any) -> Any:
    return jnp.sum(h**2)


def cond(p: Any, s: Any) -> Any:
    return _squares(
        amp.cond(
            s["n"] > 0,
            lambda h: _first(p, h),
            lambda h: _second(p, h),
            s["x"],
        )
    )


def switch(p: Any, s: Any) -> Any:
    branches = [
        lambda h: _first(p, h),
        lambda h: _second(p, h),
        lambda h: h,
    ]
    return _squares(amp.switch(s["n"], branches, s["x"]))


def while_loop(p: Any, s: Any) -> Any:
    return _squares(
        amp.while_loop(
            lambda h: amp.read(jnp.sum(h) < 1),
            lambda h: _first(p, h),
            s["x"],
            most=4,
        )
    )


def read(p: Any, s: Any) -> Any:
    most = amp.read(jnp.argmax(_first(p, s["x"])))
    return _squares(
        amp.cond(
            most > 0,
            lambda h: _second(p, h),
            lambda h: h,
            s["x"],
        )
    )


def fori_loop(p: Any, s: Any) -> Any:
    return _squares(
        amp.fori_loop(
            s["n"],
            lambda i, h: _first(p, h),
            s["x"],
        )
    )


def scan(p: Any, s: Any) -> Any:
    last, each = amp.scan(
        lambda h, x: (
            _first(p, h + x),
            _second(p, h),
        ),
        s["x"],
        s["xs"],
    )
    return _squares(last) + amp.sum(amp.map(_squares, each))


def reversed_scan(p: Any, s: Any) -> Any:
    last, _ = amp.scan(
        lambda h, x: (_first(p, h + x), None),
        s["x"],
        s["xs"],
        reverse=True,
    )
    return _squares(last)


def map_(p: Any, s: Any) -> Any:
    return amp.sum(
        amp.map(
            lambda x: _squares(_first(p, x)),
            s["xs"],
        )
    )


def softmax(p: Any, s: Any) -> Any:
    weights = amp.softmax(
        amp.map(
            lambda x: _first(p, x)[0],
            s["xs"],
        )
    )
    return _squares(
        amp.sum(
            amp.map(
                lambda weight, x: weight * x,
                weights,
                s["xs"],
            )
        )
    )


def take(p: Any, s: Any) -> Any:
    return _squares(
        amp.take(
            amp.map(lambda x: _first(p, x), s["xs"]),
            s["n"],
        )
    )


def fold_tree(p: Any, s: Any) -> Any:
    _, root = amp.fold_tree(
        lambda x: _first(p, x),
        lambda x, a, b: _second(p, a + x) + b,
        s["tree"],
        arity=2,
    )
    return _squares(root)


def scan_tree(p: Any, s: Any) -> Any:
    each = amp.scan_tree(
        lambda h, x: _first(p, h + x),
        jnp.zeros(2),
        s["tree"],
    )
    return amp.sum(amp.map(_squares, each))


def recurse(p: Any, s: Any) -> Any:
    each = amp.recurse(
        lambda recur, x, a: _first(p, x + recur(a)),
        jnp.zeros(2),
        s["xs"],
        s["before"],
    )
    return amp.sum(amp.map(_squares, each))


def propagate(p: Any, s: Any) -> Any:
    sends = [
        lambda h: _first(p, h),
        lambda h: _second(p, h),
    ]
    return amp.sum(
        amp.map(
            _squares,
            amp.propagate(sends, s["edges"], s["xs"]),
        )
    )


def look_up(p: Any, s: Any) -> Any:
    last, _ = amp.scan(
        lambda h, word: (
            _first(p, h + amp.look_up(p["v"], word)),
            None,
        ),
        s["x"],
        s["words"],
    )
    return _squares(last)


def dropout(p: Any, s: Any) -> Any:
    return _squares(amp.dropout(_first(p, s["x"]), 0.5))


def reports(p: Any, s: Any) -> Any:
    h = amp.node(
        "layer",
        replicas=2,
    )(lambda x: _first(p, x))(s["x"])
    amp.output("h", h)
    amp.metric("positive", jnp.sum(h) > 0)
    return _squares(h)


COMBINATORS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "cond": (cond, ROW),
    "switch": (switch, ROW),
    "while_loop": (while_loop, ROW),
    "read": (read, ROW),
    "fori_loop": (fori_loop, ROW),
    "scan": (scan, ROWS),
    "scan, reversed": (reversed_scan, ROWS),
    "map": (map_, ROWS),
    "softmax": (softmax, ROWS),
    "take": (take, ROWS),
    "fold_tree": (fold_tree, TREE),
    "scan_tree": (scan_tree, TREE),
    "recurse": (recurse, {"xs": "float32[t,2]", "before": "int32[t]"}),
    "propagate": (propagate, GRAPH),
    "look_up": (look_up, {"x": "float32[2]", "words": "int32[t]"}),
    "dropout": (dropout, ROW),
    "node, output and metric": (reports, ROW),
}
"""By name: a program that uses one combinator, and the spec of its instances."""


def _compiled(
    function: Callable[..., Any],
    params: Any,
    spec: Any,
) -> ag.Graph:
    return amp.compile(function, params, spec).graph


def _of_the_zoo(name: str) -> ag.Graph:
    module = import_module(f"experiments.models.functions.zoo.{name.replace('-', '_')}")
    return _compiled(
        getattr(module, name.replace("-", "_")),
        module.init(KEY, 6),
        module.SPEC,
    )


def _sentences() -> ag.Graph:
    params = tagger.init(
        KEY,
        9,
        7,
        tagger.Sizes(3, 4, 5, 6, noise=0),
    )
    return _compiled(tagger.tagger(0), params, tagger.SPEC)


def _trees(kind: str) -> ag.Graph:
    cells = tree_lstm.Cells(kind, 4, 6, keep=0.5)
    return _compiled(
        tree_lstm.tree_lstm(cells),
        tree_lstm.init(KEY, 9, cells),
        tree_lstm.SPEC,
    )


def _experts() -> ag.Graph:
    sizes = mixture.Experts(6, 8, 3, n=4, top=2)
    return _compiled(
        mixture.mixture_of_experts(sizes),
        mixture.init(KEY, sizes),
        mixture.spec(sizes),
    )


def _pondering() -> ag.Graph:
    sizes = act.Ponder(
        4,
        6,
        2,
        max_steps=4,
        epsilon=0.05,
        time_penalty=0.01,
    )
    return _compiled(
        act.act_rnn(sizes),
        act.init(KEY, sizes),
        act.spec(sizes),
    )


PAPERS: dict[str, Callable[[], ag.Graph]] = {
    "list reduction": lambda: rnn.list_reduction_rnn(6).graph,
    "list reduction, in buckets": lambda: rnn.list_reduction_rnn(6, 3).graph,
    "sentiment, tai": functools.partial(_trees, "tai"),
    "sentiment, fold": functools.partial(_trees, "fold"),
    "tagger": _sentences,
    "mixture of experts": _experts,
    "adaptive computation time": _pondering,
    "permutations": lambda: _compiled(
        permutation.permutation, permutation.init(KEY, 3, 4), permutation.SPEC
    ),
    "molecules": lambda: _compiled(
        ggnn.ggnn_regression,
        ggnn.init_regression(KEY, 3, 5),
        ggnn.regression_spec(3, 4),
    ),
    "questions": lambda: _compiled(
        ggnn.ggnn_selection,
        ggnn.init_selection(KEY, 3, 5),
        ggnn.selection_spec(3, 4),
    ),
}
"""By name: makes the graph of a paper's model, from its function."""


def cases() -> dict[str, Callable[[], ag.Graph]]:
    """By name, in folders: makes a graph whose text is kept."""
    found: dict[str, Callable[[], ag.Graph]] = {}
    for name, (function, spec) in COMBINATORS.items():
        found[f"combinators/{name}"] = functools.partial(_compiled, function, WEIGHTS, spec)
    for name, make in PAPERS.items():
        found[f"papers/{name}"] = make
    for name in RECIPES:
        found[f"zoo/{name}"] = functools.partial(_of_the_zoo, name)
    for name in MODELS:
        found[f"by hand/{name}"] = lambda name=name: model(name)[0]
    return found


def file(name: str) -> Path:
    """The file that keeps a graph's text.

    Args:
      name: The case's name.
    """
    return FOLDER / f"{name.replace(', ', '-').replace(' ', '_')}.txt"


def main() -> None:
    """Writes the texts that have changed."""
    for name, make in cases().items():
        path = file(name)
        text = f"{make()!r}\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(name)


if __name__ == "__main__":
    main()
