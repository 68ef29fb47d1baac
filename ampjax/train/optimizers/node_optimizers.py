"""The optimizer of each node.

In asynchronous training each node has an optimizer of its own (AMPNet §3). In synchronous and pipeline training the nodes without one of their own
are trained as plain optax trains a pytree: by one transform, with a step for all of them after each round. Where that transform treats each node's
parameters by themselves, each node makes its part of the step where it is; else a joint group makes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import optax

from ampjax.engine.joint_updates import JointGroup
from ampjax.engine.parameters import NodeTraining
from ampjax.errors import SettingsError, SettingsWarning
from ampjax.ir.graph import Graph
from ampjax.ir.nodes import Node
from ampjax.optim.delayed import delay_node
from ampjax.optim.joint.joint_transform import JointTransform
from ampjax.optim.joint.params_form import ParamsForm
from ampjax.optim.joint.separable import is_separable
from ampjax.optim.joint.transform_checks import check_init, draws, wants_loss
from ampjax.optim.node_update import trainable
from ampjax.optim.optimizer_identity import operations_of
from ampjax.optim.remedies.discrepancy_correction import track_velocity
from ampjax.train.settings import Settings
from ampjax.utils.setting_checks import spelling

ALL_NODES = "all nodes"
"""The name of the group of nodes that have no optimizer of their own."""

DEFAULT = optax.adam(1e-3)
"""The transform of users who pass none."""

WHERE = "setting `tx`"

_FROZEN = optax.set_to_zero()

_BY_KEY = "Labels and masks need the keys of the parameters that the model was compiled with (of a graph that was built by hand, the nodes' names)."
_IN_ROUNDS = "Train with `mode='pipeline'` or `mode='sync'`, or take a transform without it."
_BY_NODE = (
    "In asynchronous mode each node has an optimizer for its own parameters alone: give nodes theirs with `amp.node(name, tx=...)`, or train "
    "with `mode='pipeline'` or `mode='sync'`, where one optimizer has all parameters."
)


@dataclass(frozen=True)
class Optimizers:
    """The assignment of optimizers to nodes.

    Args:
      training: How each parameterised node is trained.
      groups: The nodes that are updated together.
    """

    training: Mapping[str, NodeTraining]
    groups: tuple[JointGroup, ...] = ()

    @property
    def joint(self) -> dict[str, tuple[str, ...]]:
        """The nodes of each group, by its name."""
        return {group.name: group.names for group in self.groups}

    def operations(self, graph: Graph) -> dict[str, str]:
        """For each optimizer state, the operations that make updates from gradients.

        Args:
          graph: The graph of the nodes.

        Returns:
          By a node's name, or a group's, what `operations_of` gives; nothing for tables.
        """
        result = {}
        for name, training in self.training.items():
            if training.tx is not None and training.table is None:
                params = trainable(_shapes(graph.parameterised[name]))
                result[name] = operations_of(training.tx, params)
        for group in self.groups:
            shapes = {}
            for role, names in group.nodes.items():
                shapes[role] = _shapes(graph.parameterised[names[0]])
            unread = dict(graph.unread) if group.updates_unread else {}
            transform = group.transform
            params = transform.params(shapes, unread)
            result[group.name] = operations_of(transform.tx, params)
        return result


def optimizers_of(
    graph: Graph,
    settings: Settings,
    tx: optax.GradientTransformation | None,
    delays: Mapping[str, int],
    estimated: frozenset[str],
) -> Optimizers:
    """Tells which optimizer updates which nodes.

    Args:
      graph: A closed graph.
      settings: The common settings.
      tx: The transform of nodes without one of their own; None for `optax.adam(1e-3)`.
      delays: By node, the updates by which its gradients come late.
      estimated: Nodes whose adjoint uses an estimate of the forward pass's parameters.

    Raises:
      SettingsError: If a transform does not fit the parameters that it is to update, or needs what the engine can't give it.
    """
    default = tx if tx is not None else DEFAULT
    if settings.flush_every is None:
        groups = ()
    else:
        groups = tuple(_groups(graph, settings, default, delays))
    frozen = frozen_roles(graph, settings)
    together = set()
    for group in groups:
        for name in group.names:
            together.add(name)
    known: dict[tuple[int, int, bool], Any] = {}  # one for nodes alike, so that they share kernels
    training = {}
    for name, node in graph.parameterised.items():
        gradient = node.options.gradient or settings.gradient
        if name in together:
            training[name] = NodeTraining(None, gradient)
            continue
        if node.role in frozen:
            training[name] = NodeTraining(_FROZEN, gradient, node.table, is_frozen=True)
            continue
        node_tx = node.options.tx or default
        delay = delays.get(name, 0)
        estimates = name in estimated
        key = id(node_tx), delay, estimates
        if key not in known:
            known[key] = delay_node(node_tx, delay)
            if estimates:
                known[key] = track_velocity(known[key], settings.velocity_decay)
            if node.table is None:
                check_init(known[key], _shapes(node), f"{WHERE}, node `{name}`", _BY_NODE)
        training[name] = NodeTraining(known[key], gradient, node.table, estimates)
    return Optimizers(training, groups)


def check_by_node(
    graph: Graph,
    tx: optax.GradientTransformation | None,
    frozen: Collection[str] = (),
) -> None:
    """Checks that each node can have its own copy of a transform, as in asynchronous training, and warns if this changes its meaning.

    Args:
      graph: A closed graph.
      tx: The transform of nodes without one of their own; None for `optax.adam(1e-3)`.
      frozen: The roles of nodes that are not trained.

    Raises:
      SettingsError: If it does not fit the parameters of a node, or needs the loss.

    Warns:
      SettingsWarning: If it looks at all parameters together, or at their place among the others.
    """
    nodes = shared_nodes(graph, frozen)
    if tx is None or is_separable(tx, form_of(graph), nodes):
        return
    for role, tree in nodes.items():
        where = f"{WHERE}, node `{role}`"
        if wants_loss(tx, tree, where, _BY_NODE):
            expected = "a transform of gradients and parameters"
            raise SettingsError(
                where,
                expected,
                "one that needs the loss, which asynchronous updates don't have",
                _IN_ROUNDS,
            )
    if not draws(tx, nodes):
        expected = "a transform that treats the parameters of each node by themselves"
        got = "one that looks at all of them together, or at their names (a global norm, a mask, labels): each node applies it to its own"
        warnings.warn(
            f"{WHERE}: expected {expected}, got {got}. {_BY_NODE}", SettingsWarning, stacklevel=2
        )


def form_of(graph: Graph) -> ParamsForm:
    """The pytree in which users see a graph's parameters.

    Args:
      graph: A closed graph.
    """
    if graph.form is None:
        graph.form = ParamsForm.by_node(
            {role: _shapes(nodes[0]) for role, nodes in _by_role(graph).items()}
        )
    return graph.form


def frozen_roles(graph: Graph, settings: Settings) -> frozenset[str]:
    """The nodes that are not trained, by role.

    Args:
      graph: A closed graph.
      settings: The common settings.

    Raises:
      SettingsError: If one is unknown.
    """
    roles = _by_role(graph)
    for name in settings.frozen:
        if name not in roles:
            raise SettingsError(
                "setting `frozen`", f"names among {list(roles)}", f"{name!r}", spelling(name, roles)
            )
    return frozenset(settings.frozen)


def shared_nodes(
    graph: Graph,
    frozen: Collection[str],
) -> dict[str, Any]:
    """The trained parameters of nodes without a transform or table of their own, by role, as shapes.

    Args:
      graph: A closed graph.
      frozen: The roles of nodes that are not trained.
    """
    groups = {}
    for role, nodes in _by_role(graph).items():
        if role not in frozen:
            groups[role] = nodes[0]
    result = {}
    for role, node in groups.items():
        if node.options.tx is None and not node.table:
            result[role] = trainable(_shapes(node))
    return result


def _groups(
    graph: Graph,
    settings: Settings,
    default: optax.GradientTransformation,
    delays: Mapping[str, int],
) -> list[JointGroup]:
    """The groups of a graph that is trained in rounds."""
    roles = _by_role(graph)
    frozen = frozen_roles(graph, settings)
    shared = shared_nodes(graph, frozen)
    if isinstance(settings.exact_staleness, Mapping):
        shared = _without_delays(graph, shared, delays)
    elif settings.exact_staleness is not None:
        default = delay_node(default, settings.exact_staleness)
    form = form_of(graph)
    is_whole = settings.mode == "batch"
    is_copied = any(len(roles[role]) > 1 for role in shared)
    groups = []
    if shared and (
        is_whole or is_copied or graph.unread or not is_separable(default, form, shared)
    ):
        groups.append(
            _group(
                ALL_NODES,
                default,
                form,
                roles,
                shared,
                settings,
                dict(graph.unread),
            )
        )
    for role, nodes in roles.items():
        is_own = role not in shared and role not in frozen and nodes[0].table is None
        if is_own and (is_whole or len(nodes) > 1):
            groups.append(_own_group(role, roles, settings, default, delays))
    return groups


def _own_group(
    role: str,
    roles: Mapping[str, list[Node]],
    settings: Settings,
    default: optax.GradientTransformation,
    delays: Mapping[str, int],
) -> JointGroup:
    """The group of a node with an optimizer of its own, and of its copies."""
    node = roles[role][0]
    own = delay_node(
        node.options.tx or default,
        delays.get(node.name, 0),
    )
    tree = _shapes(node)
    structure = jax.tree.structure(tree)
    alone = ParamsForm(
        structure,
        ((role, tuple(range(structure.num_leaves)), structure),),
    )
    return _group(
        role,
        own,
        alone,
        roles,
        {role: trainable(tree)},
        settings,
        {},
    )


def _without_delays(
    graph: Graph,
    shared: Mapping[str, Any],
    delays: Mapping[str, int],
) -> dict[str, Any]:
    """The nodes that share a transform, without nodes whose gradients are kept back."""
    delayed = {node.role for node in graph.parameterised.values() if node.name in delays}
    return {role: tree for role, tree in shared.items() if role not in delayed}


def _group(
    name: str,
    tx: optax.GradientTransformation,
    form: ParamsForm,
    roles: Mapping[str, list[Node]],
    trees: Mapping[str, Any],
    settings: Settings,
    unread: Mapping[str, Any],
) -> JointGroup:
    """A group of nodes, whose transform has been checked."""
    needs_loss = wants_loss(tx, form.whole(trees, unread), WHERE, _BY_KEY)
    gradients = tuple(
        (role, roles[role][0].options.gradient or settings.gradient) for role in trees
    )
    transform = JointTransform(tx, form, gradients, needs_loss)
    return JointGroup(
        name,
        transform,
        {role: tuple(n.name for n in roles[role]) for role in trees},
        bool(unread),
    )


def _by_role(graph: Graph) -> dict[str, list[Node]]:
    """The parameterised nodes by role: copies of one node together."""
    by_role: dict[str, list[Node]] = {}
    for node in graph.parameterised.values():
        by_role.setdefault(node.role, []).append(node)
    return by_role


def _shapes(node: Node) -> Any:
    """The shapes of a node's parameters; of a table none."""
    if node.table is not None:
        return ()
    return jax.eval_shape(
        node.op.body.init,
        jax.random.key(0),
    )
