"""The data that nodes keep on their devices (parameters, optimizer states, accumulated gradients), and the changes of these data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.devices.allreduce import Device, average
from ampjax.engine.joint_updates import JointGroup, JointUpdates
from ampjax.engine.kernels.kernel import Kernel, jitted
from ampjax.engine.kernels.residuals import shapes_of
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.memory.arenas import copy_array, zeros
from ampjax.engine.memory.table_gradients import TableGradients
from ampjax.engine.touched_rows import TouchedRows
from ampjax.ir.host_tables import HostTable
from ampjax.jaxprs.wide_sums import sum_dtype
from ampjax.optim.joint.params_form import UNREAD
from ampjax.optim.node_keys import with_own_keys
from ampjax.optim.node_update import make_update, trainable
from ampjax.optim.remedies.discrepancy_correction import params_before
from ampjax.optim.row_update import make_row_update
from ampjax.sched.decisions.parameter_changes import (
    Average,
    Change,
    Contribute,
    JointUpdate,
    Merge,
    Update,
    nodes_of,
)


@dataclass(frozen=True)
class NodeTraining:
    """The settings by which one parameterised node is trained.

    Args:
      tx: Its optax transform; if it `estimates`, one of `track_velocity`. None if a joint group's transform updates it.
      gradient: `mean` or `sum` over gradient rows.
      table: The table that is trained by itself, of a node whose parameters are one in host memory.
      estimates: Whether its adjoint uses an estimate of the forward pass's parameters.
      is_frozen: Whether it stays as it is: gradients of a table are then forgotten.
    """

    tx: optax.GradientTransformation | None
    gradient: str = "mean"
    table: HostTable | None = None
    estimates: bool = False
    is_frozen: bool = False


class ParameterStore:
    """The parameters, optimizer states and accumulated gradients of all nodes, by name.

    Of a node whose parameters are a table in host memory (`tables`) all three are trees without arrays. The optimizer state of nodes that are
    updated together is kept once, under the name of their group; leaves that no node reads are among the parameters under the name `UNREAD`.

    It has more than 15 methods and twelve attributes, as parameters, optimizer states and accumulators change together: each way in which they
    do is a method.

    Args:
      params: Parameters by node name.
      training: How each node is trained.
      device_of: The device of each node.
      stashed: Nodes whose adjoint uses the forward pass's parameters.
      groups: Nodes that are updated together.

    Attributes:
      groups: The same, by name.
      stash: Parameters that messages in flight have seen, by stage and versions.
      estimated: Nodes whose adjoint uses an estimate of the forward pass's parameters.
      tables: The gradients that wait for an update, of nodes whose parameters are tables in host memory.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        training: Mapping[str, NodeTraining],
        device_of: Mapping[str, Device],
        stashed: Iterable[str] = (),
        groups: Sequence[JointGroup] = (),
    ):
        self.training = dict(training)
        self.stashed = frozenset(stashed)
        self.groups = {group.name: group for group in groups}
        self._joint = {group.name: JointUpdates(group, device_of) for group in groups}
        homes = {name: joint.device for name, joint in self._joint.items()}
        self._device_of = {
            UNREAD: next(iter(device_of.values()), None),
            **device_of,
            **homes,
        }
        self.estimated = frozenset(
            node for node, of_node in self.training.items() if of_node.estimates
        )
        self.params: dict[str, Any] = {}
        self.opt_state: dict[str, Any] = {}
        self.accumulators: dict[str, Any] = {}
        self.stash: dict[tuple[int, tuple[int, ...]], tuple[Any, ...]] = {}
        self._by_row: dict[str, TouchedRows] = {}
        tables = {}
        for node, of_node in self.training.items():
            if of_node.table is not None and node in params:
                tables[node] = TableGradients(of_node.table, of_node.gradient)
        self.tables = tables
        self._handed_in: dict[str, dict[str, Any]] = {}
        self._updates: dict[str, Kernel] = {}
        for node, value in params.items():
            self.set_params(node, value)
            if node != UNREAD:
                self.reset_optimizer(node)
        for name, joint in self._joint.items():
            self.opt_state[name] = joint.init(
                self.params,
                self._unread_of(joint),
            )

    def set_params(self, node: str, params: Any) -> None:
        """Puts a copy of a node's parameters on its device."""
        self.params[node] = jax.tree.map(
            lambda x: copy_array(x, self._device_of[node]),
            params,
        )

    def reset_optimizer(self, node: str) -> None:
        """Starts a node's optimizer state and accumulator anew."""
        # The table has its own optimizer state; here stands what waits for its update.
        if node in self.tables:
            self.opt_state[node] = ()
            self.accumulators[node] = self.tables[node]
            return
        self.empty(node)
        floats = trainable(self.params[node])
        device = self._device_of[node]
        tx = self.training[node].tx
        # Copies, since an update donates every buffer once: some transforms keep the parameters that they were given, or one array twice.
        state = () if tx is None else tx.init(floats)
        if len(self.training) > 1:  # a single node draws what optax draws
            state = with_own_keys(state, node)
        self.opt_state[node] = jax.tree.map(
            lambda x: copy_array(x, device),
            state,
        )
        # Nothing is accumulated, so no row waits.
        if node in self._by_row:
            self._by_row[node].clear()

    def empty(self, node: str) -> None:
        """Forgets the gradients that a node has accumulated."""
        device = self._device_of[node]
        floats = trainable(self.params[node])
        self.accumulators[node] = jax.tree.map(
            lambda x: zeros(x.shape, sum_dtype(x.dtype), device), floats
        )

    def restore(
        self,
        params: Mapping[str, Any],
        opt_state: Mapping[str, Any],
        accumulators: Mapping[str, Any],
    ) -> None:
        """Takes copies of every node's parameters, optimizer state and accumulated gradients."""
        pairs = (
            (self.params, params),
            (self.opt_state, opt_state),
            (self.accumulators, accumulators),
        )
        for present, restored in pairs:
            for node, device in self._device_of.items():
                if node in present:
                    present[node] = jax.tree.map(
                        lambda x, to=device: copy_array(x, to),
                        restored[node],
                    )
        # The rows that wait for an update are those of which the accumulator holds something.
        for node, rows in self._by_row.items():
            rows.restart(self.accumulators[node])

    # -- tables, of which few rows have gradients

    def update_by_row(self, nodes: Iterable[str]) -> set[str]:
        """Lets updates of nodes whose parameters are a table go over the rows with gradients only.

        Returns:
          Those of them whose transforms allow it.
        """
        for node in set(nodes) - self.stashed - self.estimated - self.tables.keys():
            table = self.params[node]
            training = self.training[node]
            tx = training.tx
            if tx is None:
                update = None
            else:
                update = make_row_update(tx, training.gradient, table.shape, table.dtype)
            if update is not None:
                self._by_row[node] = TouchedRows(len(table), update)
        return set(nodes) & self._by_row.keys()

    def add_rows(self, node: str, numbers: np.ndarray) -> None:
        """Keeps which rows of a table get gradients.

        Args:
          node: Its node.
          numbers: The rows, `[m]`.
        """
        self._by_row[node].add(numbers)

    def params_before(self, node: str, versions: float) -> Any:
        """Gives the parameters of a node some versions ago: an estimate for a node that has one, else the present ones."""
        if node not in self.estimated or not versions:
            return self.params[node]
        return _params_before(
            self.params[node],
            self.opt_state[node].velocity,
            np.float32(versions),
        )

    # -- changes

    def change(
        self,
        change: Change,
        elsewhere: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes a parameter change.

        Args:
          change: The change.
          elsewhere: What `list_shares` gives for those of the nodes that are kept in other processes.
        """
        if isinstance(change, Update) and change.node in self.tables:
            table = self.tables[change.node]
            if self.training[change.node].is_frozen:
                table.clear()
            else:
                table.update(change.divisor)
        elif isinstance(change, Update):
            by_row = self._by_row.get(change.node)
            self._update(change, None if by_row is None else by_row.rows)
            if by_row is not None:
                by_row.clear()
        elif isinstance(change, Average):
            self.params |= self._means(
                change.nodes,
                {**self.params, **(elsewhere or {})},
            )
        elif isinstance(change, Contribute):
            self._handed_in.setdefault(change.group, {})[change.node] = _copies(
                self.params[change.node]
            )
        elif isinstance(change, Merge):
            self._merge(change, elsewhere or {})

    def change_together(self, change: JointUpdate, loss: float | None) -> None:
        """Makes one optimizer step of a group of nodes.

        Args:
          change: The change.
          loss: The mean loss of the examples that gradients come from; None if the group's transform does not want it.
        """
        joint = self._joint[change.group]
        params, unread, state, empty = joint.step(
            self.params,
            self._unread_of(joint),
            self.opt_state[change.group],
            self.accumulators,
            change.examples,
            loss,
        )
        self.opt_state[change.group] = state
        self.params |= params
        self.accumulators |= empty
        if unread:
            self.params[UNREAD] = {**self.params[UNREAD], **unread}

    def _unread_of(self, joint: JointUpdates) -> dict[str, Any]:
        """Selects the leaves that no node reads, if a group's transform updates such leaves."""
        if joint.group.updates_unread:
            return dict(self.params[UNREAD])
        return {}

    def forget(self) -> None:
        """Forgets the stashes of instances that are given up, and the parameters that replicas have handed in."""
        self.stash.clear()
        self._handed_in.clear()

    def _update(self, change: Update, rows: np.ndarray | None) -> None:
        """Makes an optimizer step of a node; with `rows`, of some rows of a table.

        Interrupted among many rows, it leaves some of them updated, without a gradient, and the optimizer's count of steps as it was.
        """
        node = change.node
        training = self.training[change.node]
        held = self.params[node], self.opt_state[node], self.accumulators[node]
        count = np.float32(change.divisor)
        # The kernel donates its arrays, so what it returns replaces them at once.
        if rows is None:
            step = self._updates.get(node)
            if step is None:
                settings = training.tx, training.gradient, node not in self.stashed
                step = self._updates[node] = _update_of(
                    *settings,
                    shapes_of(self.params[node]),
                )
            results: Iterable[Any] = [
                step.once(
                    *held,
                    count,
                    np.float32(change.mean_staleness),
                )
            ]
        else:
            results = self._by_row[node].update(*held, rows, count)
        for self.params[node], self.opt_state[node], self.accumulators[node] in results:
            pass

    def list_shares(self, change: Average | Merge) -> dict[str, Any]:
        """Gives this process's shares in the mean of replicas: parameters, or parameters handed in."""
        if isinstance(change, Average):
            held = self.params
        else:
            held = self._handed_in.get(change.group, {})
        return {node: held[node] for node in change.nodes if node in held}

    def _means(
        self,
        nodes: Sequence[str],
        trees: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The mean of some nodes' trees, for each node that is kept here; computed here if any node is kept elsewhere."""
        kept_here = [node for node in nodes if node in self.params]
        if len(kept_here) == len(nodes):
            devices = None
        else:
            devices = [self._device_of[kept_here[0]]] * len(nodes)
        means = dict(
            zip(
                nodes,
                average(
                    [trees[node] for node in nodes],
                    devices,
                ),
                strict=True,
            )
        )
        if devices is None:
            return means
        result = {}
        for node in kept_here:
            result[node] = jax.tree.map(
                partial(copy_array, device=self._device_of[node]),
                means[node],
            )
        return result

    def _merge(
        self,
        merge: Merge,
        elsewhere: Mapping[str, Any],
    ) -> None:
        """Gives each replica the mean of the parameters handed in, plus its own progress since."""
        # What each has learnt since is the difference between its parameters now and what it handed
        # in.
        handed_in = self._handed_in.pop(merge.group)
        for node, mean in self._means(
            merge.nodes,
            {**handed_in, **elsewhere},
        ).items():
            self.params[node] = _rebase(
                self.params[node],
                handed_in[node],
                mean,
            )

    # -- compiling

    def warm_update(self, node: str) -> None:
        """Compiles a node's update, and the update of a table's rows, by a run on copies."""
        if node in self.tables or self.training[node].tx is None:
            return
        for rows in (
            (
                None,
                np.zeros(
                    1,
                    int,
                ),
            )
            if node in self._by_row
            else (None,)
        ):
            with self.on_copies([node], [node]):
                self._update(Update(node, 1), rows)
        self.params_before(node, 1)

    def warm_group(self, name: str) -> None:
        """Compiles the update of a group of nodes, by a run on copies."""
        group = self.groups[name]
        unread = [UNREAD] if group.updates_unread else []
        loss = 0.0 if group.transform.wants_loss else None
        accumulators = (self.accumulators, group.names)
        params = (self.params, [*group.names, *unread])
        with on_copies(accumulators, params, (self.opt_state, [name])):
            self.change_together(JointUpdate(name, group.names, 1), loss)

    def warm_average(self, nodes: Sequence[str]) -> None:
        """Compiles the averaging of replicas, by a run on copies."""
        kept_here = [node for node in nodes if node in self.params]
        with on_copies((self.params, ()), (self._handed_in, ())):
            elsewhere = {}
            for node in nodes:
                if node not in kept_here:
                    elsewhere[node] = self.params[kept_here[0]]
            self.change(Average("", tuple(nodes)), elsewhere)
            for node in kept_here:
                self.change(Contribute("", node))
            self.change(Merge("", tuple(nodes)), elsewhere)

    @contextmanager
    def on_copies(
        self,
        accumulating: Iterable[str],
        changed: Iterable[str],
    ) -> Iterator[None]:
        """Puts copies in place of nodes' arrays as long as the context is open, for kernels that donate arrays.

        Args:
          accumulating: Nodes whose accumulators are copied.
          changed: Nodes whose parameters and optimizer states are.
        """
        with on_copies(
            (self.accumulators, accumulating), (self.params, changed), (self.opt_state, changed)
        ):
            yield

    # -- questions

    @property
    def all_params(self) -> dict[str, Any]:
        """Parameters by node, with copies of all rows of tables in host memory."""
        return self.params | {
            node: gradients.table.dense() for node, gradients in self.tables.items()
        }

    @property
    def not_finite(self) -> list[str]:
        """The nodes of whose parameters some are not finite; tables in host memory are not looked at."""
        result = []
        for node, tree in self.params.items():
            if not all(map(_is_finite, jax.tree.leaves(trainable(tree)))):
                result.append(node)
        return result

    @property
    def n_bytes(self) -> dict[str, int]:
        """Bytes on devices."""
        trees = {
            "params": self.params,
            "opt_state": self.opt_state,
            "accumulators": self.accumulators,
        }
        result = {}
        for name, tree in trees.items():
            result[name] = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
        return result

    def find_changed(self, changes: Iterable[Change]) -> list[jax.Array]:
        """The arrays that parameter changes write."""
        nodes = []
        for change in changes:
            for node in nodes_of(change):
                nodes.append(node)
        handed_in = []
        for of_group in self._handed_in.values():
            for tree in of_group.values():
                handed_in.append(tree)
        if nodes:
            return jax.tree.leaves(([self.params[node] for node in nodes], handed_in))
        return []

    def arrays(self, nodes: Iterable[str]) -> list[jax.Array]:
        """The parameters and accumulators of some nodes, where a node has any."""
        return jax.tree.leaves(
            [(self.params.get(node), self.accumulators.get(node)) for node in nodes]
        )


@contextmanager
def on_copies(*parts: tuple[dict[Any, Any], Iterable[Any]]) -> Iterator[None]:
    """Puts copies in place of some entries of dictionaries as long as the context is open, and the old entries back afterwards."""
    before = [dict(held) for held, _ in parts]
    try:
        for held, keys in parts:
            held.update({key: _copies(held[key]) for key in keys})
        yield
    finally:
        for (held, _), entries in zip(parts, before, strict=True):
            held.clear()
            held.update(entries)


def _copies(tree: Any) -> Any:
    """Copies a tree of arrays on the arrays' devices."""
    return jax.tree.map(
        lambda x: copy_array(x, x.device),
        tree,
    )


def _is_finite(leaf: jax.Array) -> bool:
    on_host = {device.platform for device in leaf.devices()} == {
        "cpu"
    }  # NumPy needs no copy and no compilation
    return bool(np.isfinite(np.asarray(leaf)).all() if on_host else jnp.isfinite(leaf).all())


@shared
def _update_of(
    tx: Any,
    gradient: str,
    donate_params: bool,
    shapes: Any,
) -> Kernel:
    """`kernel(params, opt_state, accumulator, count, staleness) -> (params, opt_state, accumulator)`: an update.

    It is for parameters of these shapes (`residuals.shapes_of`).
    """
    update: Callable[..., Any] = make_update(tx, gradient)

    @jitted(*(("params",) if donate_params else ()), "opt_state", "accumulator")
    def step(
        params: Any,
        opt_state: Any,
        accumulator: Any,
        count: Any,
        staleness: Any,
    ) -> Any:
        return update(params, opt_state, accumulator, count, staleness=staleness)

    return step


_params_before = jax.jit(params_before)


@jax.jit
def _rebase(now: Any, handed_in: Any, mean: Any) -> Any:
    return jax.tree.map(
        lambda n, h, m: m + (n - h) if jnp.issubdtype(n.dtype, jnp.inexact) else n,
        now,
        handed_in,
        mean,
    )
