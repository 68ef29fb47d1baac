"""Graphs in an instance: edges of several kinds, and values sent over the edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.draw_places import EACH, Use, follows
from ampjax.frontend.combinators.empty_sequences import learning_types
from ampjax.frontend.combinators.sequences import is_symbolic, row_type, sequences_of
from ampjax.frontend.combinators.structures import Ragged
from ampjax.frontend.combinators.tracing import (
    Call,
    Combinator,
    along,
    bind,
    require_same,
    require_structure,
    trace,
    type_of,
    user_line,
)
from ampjax.jaxprs.primitives import shape_text
from ampjax.jaxprs.wide_sums import wide_segment_sum

PROPAGATE = Combinator("propagate")

_FIX = "Mend the edges: nodes count from 0 within their graph, and so do kinds."


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Edges:
    """Directed edges between the nodes of an instance, each of a kind; an edge without direction is two.

    In a spec, `Edges("v", kinds=4)` says that edges of 4 kinds join the elements of the dimension `v`.

    Args:
      senders: `[e]` integers: the node that each edge leaves. In a spec, the nodes' dimension.
      receivers: `[e]` integers: the node that it leads to.
      kinds: `[e]` integers from 0, or None where all are of kind 0. In a spec, how many kinds there are; None for one.
      nodes: The nodes' dimension, in a model that is traced; empty otherwise.
      n_kinds: Likewise the number of kinds.

    >>> Edges([0, 1], [1, 0])
    Edges(2 edges)
    """

    senders: Any
    receivers: Any = None
    kinds: Any = None
    nodes: str = field(default="", metadata={"static": True})
    n_kinds: int | None = field(default=None, metadata={"static": True})

    @classmethod
    def of(cls, graph: Any) -> Edges:
        """Makes the edges of a graph in jraph's form; several graphs in one `GraphsTuple` count as one graph without edges between its parts.

        Args:
          graph: What has `senders`, `receivers`, `n_node` and `edges`, such as jraph's `GraphsTuple`. `edges` are the kinds: integers
            `[e]` or `[e, 1]`, or None for one kind.

        Returns:
          The edges: integers `[e]` in each column; `kinds` is None for one kind.

        Raises:
          DataError: If an array is missing, is not of integers or has another length, or an edge leads out of the graph.
        """
        try:
            senders = graph.senders
            receivers = graph.receivers
            kinds = graph.edges
            n_node = graph.n_node
        except AttributeError as error:
            fix = "Give a `jraph.GraphsTuple`, or make `amp.Edges(senders, receivers, kinds)`."
            raise DataError(
                "Edges.of", "senders, receivers, edges and n_node", f"{error}", fix
            ) from None
        n = int(np.sum(np.asarray(n_node)))
        senders = _column("Edges.of, senders", senders, n)
        receivers = _column("Edges.of, receivers", receivers, n)
        if kinds is not None:
            kinds = np.asarray(kinds)
            if kinds.ndim == 2 and kinds.shape[1] == 1:
                flat = kinds[:, 0]
            else:
                flat = kinds
            kinds = _column("Edges.of, edges (the kinds)", flat, None)
        lengths = []
        for column in (senders, receivers, kinds):
            if column is not None:
                lengths.append(len(column))
        if len(set(lengths)) > 1:
            raise DataError(
                "Edges.of", "as many senders as receivers and kinds", f"{lengths}", _FIX
            )
        return cls(senders, receivers, kinds)

    def __repr__(self) -> str:
        if isinstance(self.senders, str):
            return f"Edges({self.senders!r}, kinds={1 if self.kinds is None else self.kinds})"
        return f"Edges({np.size(self.senders)} edges)"


def propagate(
    sends: Sequence[Callable[[Any], Any]],
    edges: Edges,
    h: Any,
) -> Any:
    """Sends values over the edges of a graph: each node gets `sum over edges that lead to it of sends[kind](h[sender])`.

    When it runs: each function is traced once. Then it runs on the device, for the edges of its kind: as messages those of one example at a
    time, as a batch those of all examples together.

    Args:
      sends: A function for each kind of edge, from the value of a node to what is sent; all return floats of the same structure and
        shapes. It counts once for each edge. A single function is for edges of one kind.
      edges: The edges.
      h: A sequence over the nodes, or a pytree of such sequences.

    Returns:
      What each node gets, a sequence over the nodes; zeros where no edge leads to.

    Raises:
      GraphError: If there are not as many functions as kinds, they return different types, or `h` is not over the edges' nodes.
      DataError: If an edge leads out of the graph, or its kind is none.
    """
    functions = [sends] if callable(sends) else list(sends)
    leaves, structure = sequences_of("propagate", h)
    _check(functions, edges, leaves)
    rows = structure.unflatten([row_type(x) for x in leaves])
    line = user_line()
    use = Use()
    if not is_symbolic(leaves):
        return _send_now(functions, edges, structure.unflatten(leaves), rows, (line, use))
    traced = []
    for number, send in enumerate(functions):
        traced.append(trace(send, rows, inside=use.inside(number, EACH)))
    first, _, types = traced[0]
    _check_sent(
        [function.results for function, _, _ in traced],
        [results for _, _, results in traced],
        line,
    )
    ends = []
    for x in (edges.senders, edges.receivers, edges.kinds):
        if x is not None:
            ends.append(jnp.asarray(x))
    call = Call(
        PROPAGATE,
        [along(leaves[0].shape[0], a) for a in types],
        [function for function, _, _ in traced],
        [len(closed) for _, closed, _ in traced],
        line,
        {"n_ends": len(ends)},
    )
    return first.results.unflatten(
        bind(
            call,
            [
                *(x for _, closed, _ in traced for x in closed),
                *ends,
                *leaves,
            ],
        )
    )


def wrong_edge(
    ends: Sequence[np.ndarray],
    kinds: np.ndarray,
    n_nodes: np.ndarray | int,
    n_kinds: int,
) -> tuple[int, str, str] | None:
    """Finds an edge that leads out of its graph, or whose kind is none.

    Args:
      ends: Senders and receivers, `[e]` each.
      kinds: `[e]`.
      n_nodes: Nodes of each edge's graph, `[e]` or one number.
      n_kinds: Kinds.

    Returns:
      The first wrong edge, what was expected and what came; None where all are right.
    """
    for name, values, bound in (
        ("sender", ends[0], n_nodes),
        ("receiver", ends[1], n_nodes),
        ("kind", kinds, n_kinds),
    ):
        wrong = np.flatnonzero((values < 0) | (values >= bound))
        if len(wrong):
            top = np.broadcast_to(bound, values.shape)[wrong[0]]
            return int(wrong[0]), f"a {name} in [0, {top})", f"{values[wrong[0]]}"
    return None


def _send_now(
    functions: list[Any],
    edges: Edges,
    h: Any,
    rows: Any,
    where: tuple[str, Use],
) -> Any:
    """Sends arrays over edges, after a check that all functions return the same types."""
    line, use = where
    with learning_types(use):
        sent = []
        for send in functions:
            sent.append(jax.tree.flatten(jax.eval_shape(send, rows)))
    _check_sent(
        [tree for _, tree in sent],
        [types for types, _ in sent],
        line,
    )
    types, structure = sent[0]
    return _send(
        functions,
        edges,
        h,
        structure.unflatten(types),
        where,
    )


def _send(
    functions: list[Any],
    edges: Edges,
    h: Any,
    types: Any,
    where: tuple[str, Use],
) -> Any:
    """Computes `propagate` on a concrete graph, kind by kind; `types` are the types of the sent rows, `where` is the use's place."""
    line, use = where
    n = int(jnp.shape(jax.tree.leaves(h)[0])[0])
    ends = [
        np.asarray(edges.senders, np.int64),
        np.asarray(edges.receivers, np.int64),
    ]
    if edges.kinds is None:
        kinds = np.zeros(len(ends[0]), np.int64)
    else:
        kinds = np.asarray(edges.kinds, np.int64)
    if len({len(column) for column in (*ends, kinds)}) > 1:
        got = f"{len(ends[0])}, {len(ends[1])} and {len(kinds)}"
        raise DataError(line, "as many senders as receivers and kinds", got, _FIX)
    if (bad := wrong_edge(ends, kinds, n, len(functions))) is not None:
        raise DataError(f"{line}, edge {bad[0]}", bad[1], bad[2], _FIX)
    total = jax.tree.map(
        lambda t: jnp.zeros((n, *t.shape), t.dtype),
        types,
    )
    for kind, send in enumerate(functions):
        picks = np.flatnonzero(kinds == kind)
        if len(picks):
            operand_types = jax.tree.map(
                lambda x, at=ends[0][picks]: jnp.asarray(x)[at],
                h,
            )
            if follows():
                sent = _each(send, operand_types, len(picks), (use, kind))
            else:
                sent = jax.vmap(send)(operand_types)
            to = ends[1][picks]
            total = jax.tree.map(
                lambda a, m, to=to: a + wide_segment_sum(m, to, n),
                total,
                sent,
            )
    return total


def _each(
    send: Callable[[Any], Any],
    rows: Any,
    n: int,
    where: tuple[Use, int],
) -> Any:
    """Applies a function to the rows of all edges, edge by edge: each edge draws its own random numbers."""
    use, kind = where
    results = []
    for i in range(n):
        with use.inside(kind, i):
            results.append(
                send(
                    jax.tree.map(
                        lambda x, i=i: x[i],
                        rows,
                    )
                )
            )
    return jax.tree.map(
        lambda *sent: jnp.stack(sent),
        *results,
    )


def _check(
    functions: Sequence[Any],
    edges: Any,
    leaves: Sequence[Any],
) -> None:
    if not isinstance(edges, Edges):
        fix = (
            "Make them with `amp.Edges(senders, receivers, kinds)` or `amp.Edges.of(graph)`; "
            'in a spec they are `amp.Edges("v")`, with the name of the dimension of the nodes.'
        )
        got = shape_text(edges) if hasattr(edges, "dtype") else type(edges).__name__
        raise GraphError(user_line(), "`amp.Edges`", got, fix)
    if not functions or (edges.n_kinds is not None and len(functions) != edges.n_kinds):
        wanted = "each kind" if edges.n_kinds is None else _kinds_text(edges.n_kinds)
        fix = "Give one for each; how many kinds there are is said in the spec, as `kinds` of `amp.Edges`."
        raise GraphError(
            user_line(),
            f"a function for {wanted} of edges",
            f"{len(functions)}",
            fix,
        )
    lengths = {_length_text(x) for x in leaves}
    is_others = edges.nodes and is_symbolic(leaves) and lengths != {edges.nodes}
    if len(lengths) != 1 or "none" in lengths or is_others:
        over = f"over the nodes `{edges.nodes}`" if edges.nodes else "of one length, over the nodes"
        got = ", ".join(map(_show, leaves)) or "nothing"
        raise GraphError(
            user_line(), f"arrays {over}, as the values to send", got, "Give a value of each node."
        )


def _kinds_text(n: int) -> str:
    return "the one kind" if n == 1 else f"each of the {n} kinds"


def _length_text(x: Any) -> str:
    """The length of a sequence, or `none` for a value that is no sequence over nodes."""
    if isinstance(x, Ragged) or not jnp.ndim(x):
        return "none"
    return str(jnp.shape(x)[0])


def _show(x: Any) -> str:
    return repr(x) if isinstance(x, Ragged) else shape_text(type_of(x))


def _check_sent(
    structures: Sequence[Any],
    types: Sequence[Sequence[Any]],
    line: str,
) -> None:
    for number, (structure, types_of_kind) in enumerate(zip(structures, types, strict=True)):
        fix = "Return the same structure from every function."
        require_structure(
            line, "{}, as function 0 returns", structures[0], structure, fix, f" from {number}"
        )
        require_same(
            line, f"function {number} to send the same types as function 0", types[0], types_of_kind
        )
    for a in types[0]:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            raise GraphError(
                line,
                "floats to be sent",
                shape_text(a),
                "Cast what the functions return with `astype`.",
            )


def _column(
    where: str,
    values: Any,
    n: int | None,
) -> np.ndarray:
    column = np.asarray(values)
    if column.ndim != 1 or (column.dtype.kind not in "iu" and column.size):
        raise DataError(where, "integers [e]", f"{column.dtype} {list(column.shape)}", _FIX)
    if n is not None:
        wrong = np.flatnonzero((column < 0) | (column >= n))
    else:
        wrong = ()
    for edge in wrong[:1]:
        raise DataError(f"{where}, edge {edge}", f"a node in [0, {n})", f"{column[edge]}", _FIX)
    return column.astype(np.int32)
