"""Lowering one function in one place: values known from the instance are computed on the host, the rest becomes nodes (binding-time analysis)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ampjax.frontend.deduction.clusters import OUTSIDE, Cluster, Clusters
from ampjax.frontend.deduction.equations import (
    Atom,
    Equation,
    Equations,
    Known,
    Name,
    equations_for,
    places_of,
)
from ampjax.frontend.deduction.joined_calls import join_calls, numbers_of
from ampjax.frontend.deduction.known_values import KnownValues
from ampjax.frontend.deduction.loss_terms import LossTerms
from ampjax.frontend.deduction.opened_functions import Opened
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Region
from ampjax.frontend.draft.node_bodies import LossPart, NodeNote
from ampjax.frontend.draft.values import (
    Computed,
    Constant,
    OfParams,
    Static,
    Wanted,
    leaves_of,
    read_of,
)

if TYPE_CHECKING:
    from ampjax.frontend.deduction.lowering import Lowering


class FunctionLowering:
    """One function that is being lowered in one place.

    Args:
      lowering: The lowering of the whole model.
      region: The place.
      function: The function.
    """

    def __init__(self, lowering: Lowering, region: Region, function: Opened):
        self.lowering = lowering
        self.region = region
        self.known = KnownValues(lowering, region, function)
        self.equations = function.equations
        self.results = function.results
        self.called = function.called
        self.losses = LossTerms(self.known, region, function, lowering.terms)
        self.metrics: list[Atom] = []
        self.of_losses: dict[Atom, Any] = {}
        self.choosers: dict[Atom, Equation] = {}

    def lower(self, wanted: Wanted) -> list[Any]:
        """Lowers the function; see `Lowering.run`."""
        late = [equation for equation in self.equations if not self.known.take_early(equation)]
        for i, weights in wanted.losses.items():
            self.losses.take(self.results[i], weights)
        read = []
        for i, atom in enumerate(self.results):
            if i in wanted.values and isinstance(atom, Name):
                read.append(atom)
        self.metrics = [self.results[i] for i in wanted.metrics]
        outside = {
            *read,
            *self.losses.weights,
            *(atom for atom in self.metrics if isinstance(atom, Name)),
        }
        kept = join_calls(
            equations_for(late, [*outside, *self.losses.element_weights]),
            self.known.is_computed,
        )
        self.choosers = _choosers(kept)
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
        self.losses.note()
        return self._wanted_results(wanted)

    def _wanted_results(self, wanted: Wanted) -> list[Any]:
        """The function's results; None for a result that is not wanted."""
        told = {}
        for i in wanted.metrics:
            told[i] = self.of_losses.get(
                self.results[i],
                self.known.value(self.results[i]),
            )
        result = []
        for i, atom in enumerate(self.results):
            result.append(self.known.value(atom) if i in wanted.values else told.get(i))
        return result

    def _clusters(
        self,
        equations: Sequence[Equation],
        of_losses: set[Equation],
    ) -> Clusters:
        clusters = Clusters()
        for equation in equations:
            if equation.call is not None:
                clusters.add_call(equation)
                continue
            if equation in of_losses:
                clusters.add_loss(equation)
                continue
            leaves = self.known.leaves(equation)
            if leaves:
                owner = self.lowering.draft.params.owner_name(leaves, equation.line)
            else:
                owner = None
            values = [self.known.get(atom) for atom in equation.inputs]
            flows = [value.flow for value in values if isinstance(value, Computed)]
            clusters.add(
                equation,
                owner,
                set(map(id, flows)),
                any(flow.is_late for flow in flows),
            )
        return clusters

    def _of_losses(
        self,
        equations: Sequence[Equation],
        read: Sequence[Name],
    ) -> set[Equation]:
        """Finds operations without parameters that only losses and metrics need: the loss computes these itself."""
        elsewhere = set(read)
        operations = set()
        for equation in reversed(equations):
            is_metric = equation.call is not None and equation.call.kind.with_loss
            if equation.call is None and not (
                equation.draws
                or self.known.leaves(equation)
                or any(name in elsewhere for name in equation.outputs)
            ):
                operations.add(equation)
            elif not is_metric:
                elsewhere |= {atom for atom in equation.inputs if isinstance(atom, Name)}
        return operations

    def _leave_to_losses(self, cluster: Cluster, equations: Sequence[Equation]) -> None:
        """Gives the losses the values that only losses and metrics read, and the metrics' values from the instance, such as a value's count."""
        atoms = [*_values_of_metrics(equations), *self.metrics]
        static = []
        for atom in atoms:
            if isinstance(atom, Name) and isinstance(self.known.env.get(atom), Static):
                static.append(atom)
        outputs = _outputs(cluster.equations)
        results = [name for name in outputs if name in atoms or name in self.losses.weights]
        results += dict.fromkeys(static)
        steps, roots = self._steps(cluster.equations, results)
        if any(isinstance(self.known.env[name], OfParams) for name in roots):
            cluster.is_loss = (
                False  # a combinator has given what follows from parameters alone: a loss has none
            )
            return
        note = NodeNote(
            name="loss",
            region=self.region,
            inputs=[self.known.env[name] for name in roots],
            types=[name.aval for name in roots],
            function=Equations(steps, roots, results),
            results=[name.aval for name in results],
            groups=[],
            line=cluster.equations[-1].line,
        )
        self.of_losses = {name: LossPart(note, number) for number, name in enumerate(results)}
        self.known.env |= {name: self.of_losses[name] for name in results if name not in static}

    def _call(
        self,
        equation: Equation,
        outside: set[Name],
        readers: Mapping[Name, set[int]],
    ) -> None:
        wanted = self._wanted_of(equation, outside, readers)
        operands = [self.known.value(atom) for atom in equation.inputs]
        if equation.call is not None and equation.call.kind.with_loss:
            operands = [
                self.of_losses.get(a, v) for a, v in zip(equation.inputs, operands, strict=True)
            ]
        results = self.lowering.call(equation, operands, self.region, wanted)
        self.known.env |= {
            name: value
            for name, value in zip(equation.outputs, results, strict=True)
            if value is not None
        }

    def _wanted_of(
        self,
        equation: Equation,
        outside: set[Name],
        readers: Mapping[Name, set[int]],
    ) -> Wanted:
        """Finds which results of a combinator are read, and from which its function can compute the loss."""
        read = set()
        for i, name in enumerate(equation.outputs):
            if name in readers or name in outside:
                read.add(i)
        losses = {}
        of_elements = self.losses.element_weights
        for i, name in enumerate(equation.outputs):
            is_once = len(of_elements.get(name, ())) == 1
            if i not in read and is_once and _can_lose(equation, i):
                losses[i] = of_elements[name][0]
        for i, name in enumerate(equation.outputs):
            if name in of_elements and i not in losses:
                read.add(i)
        bundles = group_results(
            [equation.outputs[i] for i in sorted(read)],
            lambda name: set(readers.get(name, ())) or {name},
        )
        groups = []
        for bundle in bundles:
            groups.append([equation.outputs.index(name) for name in bundle])
        return Wanted(read, losses, groups)

    def _compute(
        self,
        cluster: Cluster,
        read: set[Name],
        readers: Mapping[Name, set[int]],
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Notes a node for some equations; values from the instance are computed again in the node."""
        readers_of = lambda name: self._readers_of(name, read, readers)
        outputs = _outputs(cluster.equations)
        own = [name for name in outputs if readers_of(name)]
        if not own:
            return
        steps, roots = self._steps(cluster.equations)
        names = self._together(groups, set(outputs))
        rest = [name for name in own if not any(name in bundle for bundle in names)]
        reads = self._reads(steps)
        names += group_results(
            rest,
            lambda name: {self.choosers.get(name, name)} if name in reads else readers_of(name),
        )
        note = self._note(cluster, steps, roots, names)
        for bundle, flow in zip(
            names, payload_notes.compute(self.lowering.draft, note), strict=True
        ):
            self.known.env |= {
                name: Computed(flow, part, reads.get(name)) for part, name in enumerate(bundle)
            }

    def _readers_of(
        self,
        name: Name,
        read: set[Name],
        readers: Mapping[Name, set[int]],
    ) -> set[Any]:
        """Finds the readers of a result: other clusters, losses, and the caller of the function."""
        names: set[Any] = set(readers.get(name, ()))
        if name in self.losses.weights or name in self.metrics:
            names.add(OUTSIDE)
        if name in read:
            names.add(name)
        return names

    def _together(
        self,
        groups: Sequence[Sequence[int]],
        outputs: set[Name],
    ) -> list[list[Name]]:
        """Finds the groups of results that the caller wants in one message, as far as one node makes all of a group."""
        together = []
        for group in groups:
            atoms = [self.results[i] for i in group]
            names = [atom for atom in atoms if isinstance(atom, Name) and atom in outputs]
            if len(set(names)) == len(atoms):
                together.append(names)
        return together

    def _note(
        self,
        cluster: Cluster,
        steps: Sequence[Equation],
        roots: Sequence[Name],
        groups: Sequence[Sequence[Name]],
    ) -> NodeNote:
        """Makes the note of a node for a cluster: the node reads `roots`, takes some steps, and sends a message for each group of results."""
        results: list[Name] = []
        places = []
        for group in groups:
            places.append(range(len(results), len(results) + len(group)))
            results.extend(group)
        values = [self.known.env[name] for name in roots]
        maker = self._maker_of(cluster)
        called = cluster.equations[-1].function or self.called
        return NodeNote(
            name=called or self.region.space.dimension or "node",
            region=self.region,
            inputs=values,
            types=[name.aval for name in roots],
            function=Equations(steps, roots, results),
            results=[name.aval for name in results],
            groups=places,
            line=maker.line,
            origin=maker.origin,
            leaves=leaves_of(values),
            draws=places_of(steps),
        )

    def _reads(self, steps: Sequence[Equation]) -> dict[Name, int]:
        """Finds results that follow from values of `amp.read`, with the assumed value of each."""
        reads: dict[Name, int] = {}

        def of(atom: Atom) -> int | None:
            value = self.known.get(atom)
            return reads.get(atom) if value is None else read_of(value)  # type: ignore[arg-type]

        for step in steps:
            values = []
            for a in step.inputs:
                if not isinstance(self.known.get(a), Static | Constant):
                    values.append(of(a))
            if step.reads is not None:
                reads |= dict.fromkeys(step.outputs, step.reads)
            elif values and all(value is not None for value in values):
                reads |= dict.fromkeys(step.outputs, values[0])  # type: ignore[arg-type]
        return reads

    def _steps(
        self, equations: Sequence[Equation], results: Sequence[Atom] = ()
    ) -> tuple[list[Equation], list[Name]]:
        """Adds to some equations the ones that compute their inputs from the instance's own values; returns these steps, and all variables that they read."""
        inside = set(_outputs(equations))
        steps: list[Equation] = []
        roots: list[Name] = []

        def need(atom: Atom) -> None:
            if isinstance(atom, Known) or atom in inside or atom in roots:
                return
            maker = self.known.statics.get(atom)
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
        reads = []
        for e in cluster.equations:
            if any(isinstance(self.known.get(atom), OfParams) for atom in e.inputs):
                reads.append(e)
        return (reads or cluster.equations[-1:])[0]


def _outputs(equations: Sequence[Equation]) -> list[Name]:
    """The results of some equations."""
    names = []
    for equation in equations:
        names.extend(equation.outputs)
    return names


def _values_of_metrics(equations: Sequence[Equation]) -> list[Atom]:
    """The values from which metrics are computed."""
    atoms: list[Atom] = []
    for equation in equations:
        if equation.call is not None and equation.call.kind.with_loss:
            atoms.extend(equation.inputs)
    return atoms


def _choosers(equations: Sequence[Equation]) -> dict[Atom, Equation]:
    """Maps each number that chooses to the equation of its choice."""
    choosers: dict[Atom, Equation] = {}
    for equation in equations:
        choosers |= dict.fromkeys(numbers_of(equation), equation)
    return choosers


def group_results(
    names: Sequence[Name],
    readers: Callable[[Name], set[Any]],
) -> list[list[Name]]:
    """Results that travel in one message: of one dtype, and with a reader in common."""
    waiting = list(names)
    groups = []
    while waiting:
        bundle = [waiting.pop(0)]
        who = readers(bundle[0])
        for name in list(waiting):
            if readers(name) & who and name.aval.dtype == bundle[0].aval.dtype:
                bundle.append(name)
                who = who | readers(name)
                waiting.remove(name)
        groups.append(bundle)
    return groups


def _can_lose(equation: Equation, number: int) -> bool:
    """Tells whether a combinator's function can compute a part of the loss itself: a sequence's elements come from that function."""
    call = equation.call
    return call is not None and call.kind.turn is not None and number >= call.n_carry
