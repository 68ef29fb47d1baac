"""Lowering one function in one place: what follows from the instance is computed on the host, the rest becomes nodes (binding-time analysis)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.clusters import OUTSIDE, Cluster, Clusters
from ampjax.frontend.deduction.equations import Atom, Equation, Equations, Known, Name, flatten, needed
from ampjax.frontend.deduction.index_spaces import Column, Region
from ampjax.frontend.deduction.joined_calls import joined, numbers_of
from ampjax.frontend.deduction.node_bodies import LossPart, NodeNote
from ampjax.frontend.deduction.opened_functions import Opened, constant_results
from ampjax.frontend.deduction.summands import summands
from ampjax.frontend.deduction.values import (
    Computed,
    Constant,
    Elements,
    Leaf,
    LossTerm,
    OfParams,
    Static,
    Value,
    Wanted,
    leaves_of,
    read_of,
)
from ampjax.jaxprs.primitives import bind

if TYPE_CHECKING:
    from ampjax.frontend.deduction.lowering import Lowering


class FunctionLowering:
    """One function that is being lowered in one place."""

    def __init__(self, lowering: Lowering, region: Region, function: Opened):
        self.lowering, self.region, self.env = lowering, region, dict(function.values)
        self.equations, self.results, self.called = function.equations, function.results, function.called
        self.makers = {name: equation for equation in self.equations for name in equation.outputs}
        self.statics: dict[Name, Equation] = {}
        self.n_uses = Counter(atom for equation in self.equations for atom in equation.inputs) + Counter(self.results)
        self.losses: dict[Name, list[tuple[Value, ...]]] = {}
        self.metrics: list[Atom] = []
        self.element_losses: dict[Name, list[tuple[Value, ...]]] = {}
        self.of_losses: dict[Atom, Any] = {}
        self.choosers: dict[Atom, Equation] = {}

    def lower(self, wanted: Wanted) -> list[Any]:
        """Lowers it; see `Lowering.run`."""
        late = [equation for equation in self.equations if not self._is_early(equation)]
        for i, weights in wanted.losses.items():
            self._loss_terms(self.results[i], weights)
        read = [atom for i, atom in enumerate(self.results) if i in wanted.values and isinstance(atom, Name)]
        self.metrics = [self.results[i] for i in wanted.metrics]
        outside = {*read, *self.losses, *(atom for atom in self.metrics if isinstance(atom, Name))}
        kept = joined(needed(late, [*outside, *self.element_losses]), self._is_computed)
        self.choosers = {atom: each for each in kept for atom in numbers_of(each)}
        clusters = self._clusters(kept, self._of_losses(kept, read))
        order = clusters.in_order(outside)
        readers = clusters.readers()
        for cluster in order:
            if cluster.call is not None:
                self._call(cluster.call, outside, readers)
            elif cluster.is_loss:
                self._leave_to_losses(cluster, kept)
            if cluster.call is None and not cluster.is_loss:
                self._compute(cluster, set(read), readers, wanted.groups)
        self._note_losses()
        told = {i: self.of_losses.get(self.results[i], self._value(self.results[i])) for i in wanted.metrics}
        return [self._value(atom) if i in wanted.values else told.get(i) for i, atom in enumerate(self.results)]

    def _note_losses(self) -> None:
        terms = self.lowering.terms
        for name, factors in self.losses.items():
            line = self.makers[name].line if name in self.makers else ""
            terms += [LossTerm(self.env[name], self.region, weights, line=line) for weights in factors]
        for name, factors in self.element_losses.items():
            value = self.env.get(name)  # nothing where a function has taken the loss's part itself
            if isinstance(value, Elements):
                region = self.region.within(value.space)
                line = self.makers[name].line if name in self.makers else ""
                terms += [LossTerm(value.element, region, weights, line=line) for weights in factors]

    def _value(self, atom: Atom) -> Value:
        return Constant(atom.value) if isinstance(atom, Known) else self.env[atom]

    # -- what is a summand of the loss

    def _loss_terms(self, atom: Atom, weights: tuple[Value, ...]) -> None:
        """Takes a sum apart, so that a loss starts at each summand and no group waits for all of them; not a sum that is used elsewhere."""
        equation = self.makers.get(atom) if isinstance(atom, Name) and atom not in self.env else None
        if isinstance(atom, Known):
            self.lowering.terms.append(LossTerm(Constant(atom.value), self.region, weights))
            return
        if equation is None:
            self.losses.setdefault(atom, []).append(weights)
            return
        if equation.call is not None:
            sequence = equation.inputs[equation.outputs.index(atom)] if equation.call.kind == "sum" else None
            if isinstance(sequence, Name) and self.n_uses[atom] == 1:
                self.element_losses.setdefault(sequence, []).append(weights)
            else:
                self.losses.setdefault(atom, []).append(weights)
            return
        if not self._has_sum(atom):
            self.losses.setdefault(atom, []).append(weights)
            return
        for inner, factor in self._summands(equation):
            self._loss_terms(inner, weights if factor is None else (*weights, factor))

    def _has_sum(self, atom: Atom) -> bool:
        """Whether a result is a weighted sum in which the sum over a sequence is a summand."""
        equation = self.makers.get(atom) if isinstance(atom, Name) and atom not in self.env else None
        if equation is None:
            return False
        if equation.call is not None:
            return equation.call.kind == "sum" and self.n_uses[atom] == 1
        return any(self._has_sum(inner) for inner, _ in self._summands(equation))

    def _summands(self, equation: Equation) -> list[tuple[Atom, Value | None]]:
        return summands(equation, [self._known(each) for each in equation.inputs])

    # -- what is computed when

    def _is_early(self, equation: Equation) -> bool:
        """Finds out what an equation gives if that needs no message; tells whether it did."""
        values = [self._known(atom) for atom in equation.inputs]
        if equation.call is not None:
            if not _is_static_call(equation.call, values):
                return False
            every = Wanted(set(range(len(equation.outputs))))
            results = self.lowering.call(equation, values, self.region, every)  # type: ignore[arg-type]
            self.env |= dict(zip(equation.outputs, results, strict=True))
            return True
        if equation.source.primitive.name == "dim_as_value":
            self.env[equation.outputs[0]] = Static(
                self.lowering.length_of(str(equation.source.params["dim"]), equation.line)
            )
            return True
        if equation.reads is not None and isinstance(values[0], Static | Constant):
            self.env[equation.outputs[0]] = values[0]
            return True
        self._refuse_sequences(equation, values)
        leaves = leaves_of(values)
        is_computed = equation.draws or equation.reads is not None or any(map(self._is_computed, equation.inputs))
        if is_computed or (leaves and any(isinstance(value, Static) for value in values)):
            return False
        self._early(equation, values, leaves)
        return True

    def _clusters(self, equations: Sequence[Equation], of_losses: set[Equation]) -> Clusters:
        clusters = Clusters()
        for equation in equations:
            if equation.call is not None:
                clusters.add_call(equation)
                continue
            if equation in of_losses:
                clusters.add_loss(equation)
                continue
            leaves = self._leaves(equation)
            owner = self.lowering.draft.params.owner_name(leaves, equation.line) if leaves else None
            values = [self._known(atom) for atom in equation.inputs]
            flows = [value.flow for value in values if isinstance(value, Computed)]
            clusters.add(equation, owner, set(map(id, flows)), any(flow.is_late for flow in flows))
        return clusters

    def _leaves(self, equation: Equation) -> frozenset[Leaf]:
        values = [self._known(atom) for atom in equation.inputs]
        return leaves_of(values)

    def _of_losses(self, equations: Sequence[Equation], read: Sequence[Name]) -> set[Equation]:
        """Operations without parameters that only losses and metrics need: the loss does them itself."""
        elsewhere, found = set(read), set()
        for equation in reversed(equations):
            is_metric = equation.call is not None and equation.call.kind == "metric"
            if equation.call is None and not (
                equation.draws or self._leaves(equation) or any(name in elsewhere for name in equation.outputs)
            ):
                found.add(equation)
            elif not is_metric:
                elsewhere |= {atom for atom in equation.inputs if isinstance(atom, Name)}
        return found

    def _leave_to_losses(self, cluster: Cluster, equations: Sequence[Equation]) -> None:
        """What only losses and metrics read; with it goes what metrics know from the instance, such as how much a value counts."""
        told = [atom for e in equations if e.call is not None and e.call.kind == "metric" for atom in e.inputs]
        told += self.metrics
        static = [atom for atom in told if isinstance(atom, Name) and isinstance(self.env.get(atom), Static)]
        made = [name for equation in cluster.equations for name in equation.outputs]
        results = [name for name in made if name in told or name in self.losses]
        results += dict.fromkeys(static)
        steps, roots = self._steps(cluster.equations, results)
        if any(isinstance(self.env[name], OfParams) for name in roots):
            cluster.is_loss = False  # a combinator has given what follows from parameters alone: a loss has none
            return
        note = NodeNote(
            name="loss",
            region=self.region,
            inputs=[self.env[name] for name in roots],
            types=[name.aval for name in roots],
            function=Equations(steps, roots, results),
            results=[name.aval for name in results],
            groups=[],
            line=cluster.equations[-1].line,
        )
        self.of_losses = {name: LossPart(note, number) for number, name in enumerate(results)}
        self.env |= {name: self.of_losses[name] for name in results if name not in static}

    def _is_computed(self, atom: Atom) -> bool:
        """Whether a value comes in a message."""
        value = self._known(atom)
        return value is None or isinstance(value, Computed)

    def _known(self, atom: Atom) -> Value | None:
        return Constant(atom.value) if isinstance(atom, Known) else self.env.get(atom)

    def _refuse_sequences(self, equation: Equation, values: Sequence[Value | None]) -> None:
        shapes = [atom.aval.shape for atom in (*equation.inputs, *equation.outputs) if isinstance(atom, Name)]
        if any(isinstance(value, Elements) for value in values) or any(
            not isinstance(n, int) for shape in shapes for n in shape
        ):
            fix = "Put it into `amp.map`, or use `amp.scan`, `amp.sum`, `amp.max`, `amp.softmax`, `amp.take` or `amp.length`."
            if equation.source.primitive.name == "iota":
                fix = "Put the elements' numbers into the example: `np.arange` of its length."
            got = f"{self._users_word(equation)} on a whole sequence, whose length is each instance's own"
            raise GraphError(equation.line, "operations on one element", got, fix)

    def _users_word(self, equation: Equation) -> str:
        """What the user has written: JAX makes several operations of `x[i]`, of which a comparison comes first."""
        on_line = {other.source.primitive.name for other in self.equations if other.line == equation.line}
        word = equation.source.primitive.name
        return "indexing (`gather`)" if word in ("lt", "add", "select_n") and "gather" in on_line else f"`{word}`"

    def _early(self, equation: Equation, values: Sequence[Any], leaves: frozenset[Leaf]) -> None:
        """An operation that needs no message: on constants, parameters, or the instance's values."""
        if leaves:
            for i, name in enumerate(equation.outputs):
                self.env[name] = OfParams(leaves, _of_params(equation, values, i))
        elif any(isinstance(value, Static) for value in values):
            self.statics |= dict.fromkeys(equation.outputs, equation)
            spaces = [value.column.space for value in values if isinstance(value, Static)]
            space = max(spaces, key=lambda s: len(s.around()))
            operands = [v.column.inside(space) if isinstance(v, Static) else v.value for v in values]
            whole = Column(space, lambda data: data.equation(equation.source, operands))  # type: ignore[arg-type]
            for i, name in enumerate(equation.outputs):
                self.env[name] = Static(_Part(whole, i))
        else:
            results = constant_results(equation.source, [value.value for value in values])
            self.env |= {name: Constant(result) for name, result in zip(equation.outputs, results, strict=True)}

    # -- clusters

    def _call(self, equation: Equation, outside: set[Name], readers: Mapping[Name, set[int]]) -> None:
        read = {i for i, name in enumerate(equation.outputs) if name in readers or name in outside}
        losses = {
            i: self.element_losses[name][0]
            for i, name in enumerate(equation.outputs)
            if i not in read and len(self.element_losses.get(name, ())) == 1 and _can_lose(equation, i)
        }
        read |= {i for i, name in enumerate(equation.outputs) if name in self.element_losses and i not in losses}
        names = [equation.outputs[i] for i in sorted(read)]
        bundles = together(names, lambda name: set(readers.get(name, ())) or {name})
        wanted = Wanted(read, losses, [[equation.outputs.index(name) for name in bundle] for bundle in bundles])
        operands = [self._value(atom) for atom in equation.inputs]
        if equation.call is not None and equation.call.kind == "metric":
            operands = [self.of_losses.get(a, v) for a, v in zip(equation.inputs, operands, strict=True)]
        results = self.lowering.call(equation, operands, self.region, wanted)
        self.env |= {name: value for name, value in zip(equation.outputs, results, strict=True) if value is not None}

    def _compute(
        self, cluster: Cluster, read: set[Name], readers: Mapping[Name, set[int]], groups: Sequence[Sequence[int]]
    ) -> None:
        """A node for some equations; what the instance says is computed again in it from the instance's own values."""

        def readers_of(name: Name) -> set[Any]:
            """Who reads a result: other clusters, losses, and whoever gets it from the function."""
            is_told = name in self.losses or name in self.metrics
            loss, out = {OUTSIDE} if is_told else set(), {name} if name in read else set()
            return {*readers.get(name, ()), *loss, *out}

        own = [name for equation in cluster.equations for name in equation.outputs if readers_of(name)]
        if not own:
            return
        inside = {name for equation in cluster.equations for name in equation.outputs}
        steps, roots = self._steps(cluster.equations)
        bundles = [[self.results[i] for i in group] for group in groups]
        bundles = [b for b in bundles if all(isinstance(a, Name) and a in inside for a in b) and len(set(b)) == len(b)]
        names: list[list[Name]] = [list(b) for b in bundles]  # type: ignore[arg-type]
        rest = [name for name in own if not any(name in bundle for bundle in names)]
        reads = self._reads(steps)
        names += together(rest, lambda name: {self.choosers.get(name, name)} if name in reads else readers_of(name))
        flat = [name for bundle in names for name in bundle]
        values = [self.env[name] for name in roots]
        leaves, maker = leaves_of(values), self._maker_of(cluster)
        ends = np.cumsum([len(bundle) for bundle in names]).tolist()
        note = NodeNote(
            name=cluster.equations[-1].function or self.called or self.region.space.dimension or "node",
            region=self.region,
            inputs=values,
            types=[name.aval for name in roots],
            function=Equations(steps, roots, flat),
            results=[name.aval for name in flat],
            groups=[range(end - len(bundle), end) for end, bundle in zip(ends, names, strict=True)],
            line=maker.line,
            origin=maker.origin,
            leaves=leaves,
            draws=any(step.draws for step in steps),
        )
        for bundle, flow in zip(names, self.lowering.draft.compute(note), strict=True):
            self.env |= {name: Computed(flow, part, reads.get(name)) for part, name in enumerate(bundle)}

    def _reads(self, steps: Sequence[Equation]) -> dict[Name, int]:
        """Results that follow from what `amp.read` reads back, with what is to be assumed for it."""
        found: dict[Name, int] = {}

        def of(atom: Atom) -> int | None:
            value = self._known(atom)
            return found.get(atom) if value is None else read_of(value)  # type: ignore[arg-type]

        for step in steps:
            values = [of(a) for a in step.inputs if not isinstance(self._known(a), Static | Constant)]
            if step.reads is not None:
                found |= dict.fromkeys(step.outputs, step.reads)
            elif values and all(value is not None for value in values):
                found |= dict.fromkeys(step.outputs, values[0])  # type: ignore[arg-type]
        return found

    def _steps(self, equations: Sequence[Equation], results: Sequence[Atom] = ()) -> tuple[list[Equation], list[Name]]:
        """Equations with those that compute from the instance's own values what they, or results, read; and what all these read."""
        inside = {name for equation in equations for name in equation.outputs}
        steps: list[Equation] = []
        roots: list[Name] = []

        def need(atom: Atom) -> None:
            if isinstance(atom, Known) or atom in inside or atom in roots:
                return
            maker = self.statics.get(atom)
            if maker is None:
                roots.append(atom)
            elif maker not in steps:
                for each in maker.inputs:
                    need(each)
                steps.append(maker)

        for equation in equations:
            for atom in equation.inputs:
                need(atom)
            steps.append(equation)
        for atom in results:
            need(atom)
        return steps, roots

    def _maker_of(self, cluster: Cluster) -> Equation:
        """The equation that reads parameters; without any, the last one."""
        reads = [e for e in cluster.equations if any(isinstance(self._known(atom), OfParams) for atom in e.inputs)]
        return (reads or cluster.equations[-1:])[0]


class _Part(Column):
    """One result of an operation on columns that has several."""

    def __init__(self, whole: Column, number: int):
        super().__init__(whole.space, lambda data: data.once(whole, lambda: whole._compute(data))[number])


def together(names: Sequence[Name], readers: Callable[[Name], set[Any]]) -> list[list[Name]]:
    """Results that travel in one message: of one dtype, and with a reader in common."""
    waiting, found = list(names), []
    while waiting:
        bundle = [waiting.pop(0)]
        who = readers(bundle[0])
        for name in list(waiting):
            if readers(name) & who and name.aval.dtype == bundle[0].aval.dtype:
                bundle.append(name)
                who = who | readers(name)
                waiting.remove(name)
        found.append(bundle)
    return found


def _is_static_call(call: Call, values: Sequence[Value | None]) -> bool:
    """Whether a combinator gives something that the instance says, and is to be computed on the host."""
    if call.kind in ("count", "length"):
        return True
    return _has_static_rule(call) and all(_is_static(value) for value in values)


def _has_static_rule(call: Call) -> bool:
    is_simple = call.kind in ("count", "length", "sum", "max", "logsumexp", "take", "read", "switch")
    if not is_simple and (call.kind != "scan" or call.options["n_carry"]):
        return False
    equations = [
        equation
        for function in call.functions
        for equation in flatten(function, dict.fromkeys(function.variables, Known(None)))[0]
    ]
    return all(not e.draws and (e.call is None or _has_static_rule(e.call)) for e in equations)


def _can_lose(equation: Equation, number: int) -> bool:
    """Whether a function that a combinator was given can take a part of the loss itself: it gives a sequence's elements."""
    call = equation.call
    return call is not None and call.kind == "scan" and number >= call.options["n_carry"]


def _is_static(value: Value | None) -> bool:
    while isinstance(value, Elements):
        value = value.element
    return isinstance(value, Static | Constant)


def _of_params(equation: Equation, values: Sequence[Any], number: int) -> Callable[[Mapping[Leaf, Any]], Any]:
    def compute(given: Mapping[Leaf, Any]) -> Any:
        operands = [value.compute(given) if isinstance(value, OfParams) else value.value for value in values]
        return bind(equation.source, operands)[number]

    return compute
