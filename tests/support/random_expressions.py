"""How expressions of random models are drawn (`random_models.py` says what they mean).

Vectors have two entries and all names of lengths are the spec's, so that programs of one primitive serve many models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from support.random_models import (
    COMPUTED,
    INTEGER,
    NUMBER,
    PAIR_TYPES,
    RECURSION,
    SEQUENCES,
    VECTOR,
    Model,
)


@dataclass(frozen=True)
class Scope:
    """What an expression may name.

    Args:
      names: Names with types.
      dimensions: For a sequence's name, over which elements it goes.
      budget: How deep combinators may go from here.
    """

    names: tuple[tuple[str, Any], ...]
    budget: int

    def having(self, **types):
        return Scope(
            (*self.names, *types.items()),
            self.budget,
        )

    def deeper(self):
        return Scope(self.names, self.budget - 1)

    def inside_decision(self):
        """Where a value that was read decides what runs: without recursions from outside."""
        return Scope(
            tuple((name, t) for name, t in self.names if t != RECURSION),
            min(self.budget, 2),
        )

    def of(self, kind):
        """Names of a type."""
        return [name for name, t in self.names if t == kind]


@dataclass
class Grower:
    """Draws expressions.

    Args:
      draw: Hypothesis's `draw`.
    """

    draw: Any
    n_names: int = field(default=0)

    def pick(self, options):
        return options[self.draw(st.integers(0, len(options) - 1))]

    def fresh(self):
        self.n_names += 1
        return f"v{self.n_names}"

    def loss(self, scope):
        """A loss: summands, some of them sums over sequences."""
        expression = self.summand(scope)
        for _ in range(self.draw(st.integers(0, 2))):
            expression = ("plus", expression, self.summand(scope))
        return expression

    def shared(self, scope):
        """A loss in which a value is computed once and used at several places."""
        name = self.fresh()
        kind = self.pick(
            [
                VECTOR,
                ("sequence", "w", VECTOR),
                ("sequence", "v", VECTOR),
                *PAIR_TYPES,
            ]
        )
        value = self.expression(kind, scope.deeper())
        inner = scope.having(**{name: kind})
        return (
            "let",
            name,
            value,
            self.pick([self.loss, self.shared])(inner) if scope.budget > 2 else self.loss(inner),
        )

    def summand(self, scope):
        kind = self.pick(["square", "sum", "sum", "metric", "weighted"])
        if kind == "sum":
            return ("sum", self.sequence(self.dimension(scope), NUMBER, scope))
        if kind == "weighted":
            return (
                "times",
                ("number", self.integer(scope)),
                self.number(scope),
            )
        if kind == "metric":
            return ("metric", self.number(scope))
        return ("square", self.vector(scope))

    def expression(self, kind, scope):
        if kind == VECTOR:
            return self.vector(scope)
        if kind == NUMBER:
            return self.number(scope)
        if kind == INTEGER:
            return self.integer(scope)
        if kind == COMPUTED:
            return self.computed(scope)
        if kind[0] == "pair":
            return (
                "pair",
                self.expression(kind[1], scope),
                self.expression(kind[2], scope),
            )
        return self.sequence(kind[1], kind[2], scope)

    # -- values of one element

    def integer(self, scope):
        options = [("get", name) for name in scope.of(INTEGER)] + [("int", 2)]
        options += [("length", ("get", name)) for name, t in scope.names if t[0] == "sequence"]
        found = self.pick(options)
        return ("half", found) if self.draw(st.booleans()) else found

    def computed(self, scope):
        """An integer that may be computed."""
        return self.pick([("get", name) for name in scope.of(COMPUTED)] + [self.integer(scope)])

    def number(self, scope):
        kind = self.pick(["dot", "first", "square", "number", "get", "item"])
        if kind == "get" and (names := scope.of(NUMBER)):
            return ("get", self.pick(names))
        if kind == "item" and (names := [n for n, t in scope.names if t == PAIR_TYPES[0]]):
            return ("item", ("get", self.pick(names)), 1)
        if kind == "number":
            return ("number", self.computed(scope))
        if kind == "dot":
            return (
                "dot",
                self.vector(scope),
                self.vector(scope, is_leaf=True),
            )
        return ("first" if kind == "first" else "square", self.vector(scope))

    def vector(self, scope, is_leaf=False):
        """A vector that depends on the instance, so that parameters of two nodes never meet by themselves."""
        if is_leaf or scope.budget <= 0:
            return self.simple_vector(scope)
        plain = [
            "simple",
            "dense",
            "dense",
            "joined",
            "named",
            "mix",
            "relu",
            "scaled",
            "stopped",
            "where",
            "cond",
            "switch",
        ]
        reads = ["cond_read", "switch_read", "experts", "while"]
        whole = [
            "sum",
            "mean",
            "max",
            "take",
            "scan",
            "scan",
            "rows",
            "fori",
            "fold",
            "let",
        ]
        asks = ["recall", "recall"] if scope.of(RECURSION) else []
        kind = self.pick(plain + reads + asks + whole)
        return getattr(self, f"_{kind}")(scope)

    def simple_vector(self, scope):
        options: list[Any] = [("get", name) for name in scope.of(VECTOR)]
        options += [("embed", ("get", name)) for name in scope.of(INTEGER) + scope.of(COMPUTED)]
        for name, t in scope.names:
            if isinstance(t, tuple) and t[0] == "pair":
                options += [("item", ("get", name), i) for i in (1, 2) if t[i] == VECTOR]
        options = [(o[0], o[1], o[2] - 1) if o[0] == "item" else o for o in options]
        return self.pick(options)

    def _simple(self, scope):
        return self.simple_vector(scope)

    def start(self, scope):
        """What may start a loop: also constants, or parameters alone."""
        return self.pick(
            [
                ("zeros",),
                ("constant", 0.3),
                ("param", "a"),
                ("param", "b"),
                None,
            ]
        ) or self.vector(scope.deeper())

    def _dense(self, scope):
        return (
            "dense",
            self.pick("abc"),
            self.vector(scope.deeper()),
        )

    def _joined(self, scope):
        return (
            "joined",
            self.pick("abc"),
            self.vector(scope.deeper()),
            self.vector(scope, is_leaf=True),
        )

    def _named(self, scope):
        return ("named", self.vector(scope.deeper()))

    def _mix(self, scope):
        return (
            "mix",
            self.vector(scope.deeper()),
            self.vector(scope, is_leaf=True),
        )

    def _relu(self, scope):
        return ("relu", self.vector(scope.deeper()))

    def _scaled(self, scope):
        return (
            "scaled",
            self.computed(scope),
            self.vector(scope.deeper()),
        )

    def _stopped(self, scope):
        return (
            "mix",
            self.vector(scope.deeper()),
            ("stopped", self.vector(scope, is_leaf=True)),
        )

    def _where(self, scope):
        return (
            "where",
            self.computed(scope),
            self.vector(scope.deeper()),
            self.vector(scope, is_leaf=True),
        )

    def branches(self, scope, n, kinds=None):
        result = []
        for _ in range(n):
            result.append(
                (
                    "fn",
                    (),
                    self.pick(kinds or [self.vector, self.vector, self.start])(scope),
                )
            )
        return result

    def choice(self, scope, n):
        """An integer, and what it chooses from. A constant chooses while the model is traced: what follows from parameters alone, or from nothing, would stay so."""
        index = self.integer(scope)
        is_constant = index in (("int", 2), ("half", ("int", 2)))
        return index, *self.branches(
            scope.deeper(),
            n,
            [self.vector] if is_constant else None,
        )

    def _cond(self, scope):
        return ("cond", *self.choice(scope, 2))

    def _switch(self, scope):
        return (
            "switch",
            *self.choice(
                scope,
                self.draw(st.integers(1, 3)),
            ),
        )

    def _cond_read(self, scope):
        return (
            "cond_read",
            self.vector(scope.deeper()),
            *self.branches(scope.deeper().inside_decision(), 2),
        )

    def _switch_read(self, scope):
        return (
            "switch_read",
            self.vector(scope.deeper()),
            *self.branches(scope.deeper().inside_decision(), 3),
        )

    def _experts(self, scope):
        values = tuple(self.vector(scope.deeper()) for _ in range(self.draw(st.integers(2, 3))))
        return (
            "experts",
            values,
            *self.branches(scope.deeper().inside_decision(), 2),
        )

    def _while(self, scope):
        name = self.fresh()
        body = self.vector(scope.deeper().inside_decision().having(**{name: VECTOR}))
        loop = (
            "while",
            self.start(scope),
            ("fn", (name,), body),
            self.draw(st.integers(1, 3)),
        )
        if self.draw(st.booleans()):
            return ("scaled", ("item", loop, 1), ("item", loop, 0))
        return ("item", loop, 0)

    # -- from sequences

    def dimension(self, scope):
        return self.pick(
            [
                *dict.fromkeys(t[1] for _, t in scope.names if t[0] == "sequence"),
                "v",
                "b",
            ]
        )

    def _sum(self, scope):
        return (
            "sum",
            self.sequence(self.dimension(scope), VECTOR, scope.deeper()),
        )

    def _mean(self, scope):
        return (
            "mean",
            self.sequence(self.dimension(scope), VECTOR, scope.deeper()),
        )

    def _max(self, scope):
        return (
            "max",
            self.sequence(self.dimension(scope), VECTOR, scope.deeper()),
        )

    def _take(self, scope):
        return (
            "take",
            self.sequence(self.dimension(scope), VECTOR, scope.deeper()),
            self.integer(scope),
        )

    def _recall(self, scope):
        return (
            "recall",
            self.pick(scope.of(RECURSION)),
            self.integer(scope),
        )

    def _let(self, scope):
        name = self.fresh()
        kind = self.pick(
            [
                VECTOR,
                ("sequence", self.dimension(scope), VECTOR),
            ]
        )
        value = self.expression(kind, scope.deeper())
        return (
            "let",
            name,
            value,
            self.vector(scope.deeper().having(**{name: kind})),
        )

    def _scan(self, scope):
        kind, expression = self.loop(scope, 0)
        return self.vector_of(kind, expression)

    def _rows(self, scope):
        """A loop of cells that gives a sequence for each element: one from outside, or one that its body computes."""
        name, carry, x, each = (self.fresh() for _ in range(4))
        rows = self.sequence(
            self.dimension(scope),
            VECTOR,
            scope.deeper(),
        )
        given = ("get", name)
        if self.draw(st.booleans()):
            given = (
                "map",
                [given],
                (
                    "fn",
                    (each,),
                    ("mix", ("get", each), ("get", x)),
                ),
            )
        state = (
            "cell",
            self.pick("abc"),
            ("get", carry),
            ("get", x),
        )
        step = ("fn", (carry, x), ("pair", state, given))
        xs = self.sequence(
            self.dimension(scope),
            VECTOR,
            scope.deeper(),
        )
        init = self.pick([("zeros",), ("constant", 0.3)])
        loop = (
            "scan",
            [xs],
            init,
            step,
            self.draw(st.booleans()),
            1,
        )
        return (
            "let",
            name,
            rows,
            (
                "sum",
                (
                    "map",
                    [loop],
                    ("fn", (each,), ("sum", ("get", each))),
                ),
            ),
        )

    def _fori(self, scope):
        kind = self.pick([VECTOR, PAIR_TYPES[0], PAIR_TYPES[1]])
        i = self.fresh()
        carry = self.fresh()
        body = self.expression(
            kind,
            scope.deeper().having(**{i: INTEGER, carry: kind}),
        )
        init = self.initial(kind, scope)
        return self.vector_of(
            kind,
            (
                "fori",
                self.integer(scope),
                init,
                ("fn", (i, carry), body),
            ),
        )

    def _fold(self, scope):
        kind, expression = self.fold(
            scope,
            self.pick(["wide", "binary"]),
            1,
        )
        return self.vector_of(kind, expression)

    def vector_of(self, kind, expression):
        """A vector from a value that holds one."""
        if kind == VECTOR:
            return expression
        if kind == PAIR_TYPES[2]:
            inner = ("item", ("get", "whole"), 1)
            vector = (
                "scaled",
                ("item", ("get", "whole"), 0),
                ("item", inner, 1),
            )
        else:
            vector = (
                "scaled",
                ("item", ("get", "whole"), 1),
                ("item", ("get", "whole"), 0),
            )
        return ("let", "whole", expression, vector)

    def initial(self, kind, scope):
        if kind == VECTOR:
            return self.start(scope)
        if isinstance(kind, tuple):
            return (
                "pair",
                self.initial(kind[1], scope),
                self.initial(kind[2], scope),
            )
        if kind == COMPUTED:
            return ("int", 1)
        return self.number(Scope(scope.names, 0))

    def loop(self, scope, which, dimension=None):
        kind = self.pick([VECTOR, VECTOR, *PAIR_TYPES])
        dimension = dimension or self.dimension(scope)
        sequences, types = self.arguments(dimension, scope)
        carry = self.fresh()
        names = [self.fresh() for _ in types]
        inner = scope.deeper().having(
            **{
                carry: kind,
                **dict(zip(names, types, strict=True)),
            }
        )
        result = self.fresh()
        init = None
        after = self.expression(kind, inner)
        if kind == VECTOR and self.draw(st.booleans()):
            after = self.pick(
                [after, self.vector(inner, is_leaf=True)]
            )  # of a whole expression there is seldom a first round
            after = ("cell", self.pick("abc"), ("get", carry), after)
            init = self.pick([("zeros",), ("zeros",), None])
        y = self.vector(
            inner.having(**{result: kind}),
            is_leaf=self.draw(st.booleans()),
        )
        body = (
            "let",
            result,
            after,
            ("pair", ("get", result), y),
        )
        step = ("fn", (carry, *names), body)
        return kind, (
            "scan",
            sequences,
            init or self.initial(kind, scope),
            step,
            self.draw(st.booleans()),
            which,
        )

    def fold(self, scope, tree, which):
        kind = self.pick([VECTOR, VECTOR, *PAIR_TYPES])
        word = self.fresh()
        inner = scope.deeper()
        leaf = self.expression(kind, inner.having(**{word: INTEGER}))
        if tree == "binary":
            kids = {self.fresh(): kind, self.fresh(): kind}
        else:
            kids = {self.fresh(): _sequence_of(self.fresh(), kind)}
        branch = self.expression(
            kind,
            inner.having(**{word: INTEGER, **kids}),
        )
        if tree == "wide" and kind == VECTOR and self.draw(st.booleans()):
            branch = (
                "dense",
                "c",
                ("sum", ("get", next(iter(kids)))),
            )
        return kind, ("fold", tree, ("fn", (word,), leaf), ("fn", (word, *kids), branch), which)

    # -- sequences

    def arguments(self, dimension, scope):
        """Sequences to go through together, and their elements' types; at least one."""
        found = [self.pick(self.given(dimension, scope))]
        if self.draw(st.booleans()):
            if scope.budget > 1:
                more = self.sequence(dimension, VECTOR, scope.deeper())
            else:
                more = None
            found.append((more, VECTOR) if more else self.pick(self.given(dimension, scope)))
        return [each for each, _ in found], [kind for _, kind in found]

    def given(self, dimension, scope):
        """Sequences in scope: expressions with their elements' types."""
        found = []
        for name, t in scope.names:
            if t[0] == "sequence" and t[1] == dimension:
                found.append((("get", name), t[2]))
        trees = {"v": "wide", "b": "binary"}
        if dimension in trees:
            found.append((("word", trees[dimension]), INTEGER))
        return found

    def sequence(self, dimension, kind, scope):
        """A sequence over a dimension, with elements of a type."""
        have = []
        for each, t in self.given(dimension, scope):
            if t == kind:
                have.append(each)
        ways = ["map", "map"]
        if have:
            ways.append("have")
        if kind == VECTOR and scope.budget > 0:
            ways += ["scan", "softmax", "cond"]
            if dimension in "vb":
                ways += ["fold", "scan_tree"]
            if dimension == "w":
                ways.append("recurse")
        way = self.pick(ways)
        if way == "have":
            return self.pick(have)
        if way == "softmax":
            return ("softmax", self.sequence(dimension, kind, scope.deeper()))
        if way == "cond":
            branches = []
            for _ in range(2):
                branches.append(
                    (
                        "fn",
                        (),
                        self.sequence(dimension, kind, scope.deeper()),
                    )
                )
            return ("cond", self.integer(scope), *branches)
        if way == "recurse":
            name = self.fresh()
            word = self.fresh()
            inner = scope.deeper().having(**{name: RECURSION, word: INTEGER})
            step = ("mix", self._recall(inner), self.vector(inner))
            return ("recurse", name, self.start(scope), word, step)
        if way == "scan":
            return self.loop(scope, 1, dimension)[1]
        tree = {"v": "wide", "b": "binary"}.get(dimension)
        if way == "scan_tree":
            state = self.fresh()
            word = self.fresh()
            step = self.vector(scope.deeper().having(**{state: VECTOR, word: INTEGER}))
            return (
                "scan_tree",
                tree,
                self.start(scope),
                ("fn", (state, word), step),
            )
        if way == "fold":
            kind, expression = self.fold(scope, tree, 0)
            for i in {VECTOR: (), PAIR_TYPES[2]: (1, 1)}.get(
                kind,
                (0,),
            ):
                expression = ("item", expression, i)
            return expression
        sequences, types = self.arguments(dimension, scope)
        names = [self.fresh() for _ in types]
        inner = scope.deeper().having(**dict(zip(names, types, strict=True)))
        return (
            "map",
            sequences,
            ("fn", tuple(names), self.expression(kind, inner)),
        )


def _sequence_of(dimension, kind):
    """The type of a sequence of pairs is a pair of sequences."""
    if isinstance(kind, tuple) and kind[0] == "pair":
        return (
            "pair",
            _sequence_of(dimension, kind[1]),
            _sequence_of(dimension, kind[2]),
        )
    return ("sequence", dimension, kind)


TOP = (
    ("k", INTEGER),
    ("n", INTEGER),
    ("y", VECTOR),
    *((name, ("sequence", *kind)) for name, kind in SEQUENCES.items()),
)


@st.composite
def models(draw, budget=3):
    """A random model."""
    grower = Grower(draw)
    scope = Scope(TOP, draw(st.integers(1, budget)))
    return Model(grower.shared(scope) if draw(st.booleans()) else grower.loss(scope))


@st.composite
def shapes(draw, n=2):
    """Lengths of instances: words, other elements, inner nodes of the two trees (0: a tree of one node)."""
    lengths = st.tuples(*(st.integers(0, most) for most in (3, 2, 2, 2)))
    return draw(st.lists(lengths, min_size=n, max_size=n))
