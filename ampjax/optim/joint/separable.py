"""The test whether a transform of all parameters does the same when each node has its own copy of the transform.

SGD and Adam do. Clipping by the global norm does not, nor do labels and masks by the keys of the whole tree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.interpreters import partial_eval

from ampjax.jaxprs.content import content
from ampjax.optim.joint.params_form import ParamsForm
from ampjax.optim.optax_transforms.transform_arguments import with_extra_arguments

Tree = Any

STEPS = 2
"""How many steps are compared: the second one shows what the first has left in the optimizer's state."""


def is_separable(
    tx: optax.GradientTransformation, form: ParamsForm, nodes: Mapping[str, Tree]
) -> bool:
    """Tells whether a transform of the whole pytree is the same transform for each node.

    Args:
      tx: An optax transform.
      form: The pytree.
      nodes: By role, the trained parameters of the nodes that the transform is for, or their shapes.

    Returns:
      True if the operations that lead to each node's updates are the same and read nothing of other nodes. False if not, or if the transform
      can't be traced, since it needs extra arguments or does not fit a single node.
    """
    leaves, structure = jax.tree.flatten(dict(nodes))
    shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)
    try:
        return _is_separable(tx, form, structure, shapes)
    except Exception:  # a user's transform may raise anything while it is traced
        return False


@functools.lru_cache(maxsize=256)
def _is_separable(
    tx: Any,
    form: ParamsForm,
    structure: Any,
    shapes: tuple[tuple[tuple[int, ...], Any], ...],
) -> bool:
    leaves = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    nodes = structure.unflatten(leaves)

    def by_node(*trees: Tree) -> list[Tree]:
        result = []
        for updates in _updates(tx, [form.whole(tree, {}) for tree in trees]):
            result.append(form.parts(updates, nodes))
        return result

    together = jax.make_jaxpr(by_node)(*[nodes] * (1 + STEPS))
    alone = functools.lru_cache(maxsize=None)(functools.partial(_describe_alone, tx))
    n = len(leaves)
    first = 0
    for node in nodes.values():
        mine, inner = jax.tree.flatten(node)
        wanted = []
        for i in range(STEPS * n):
            wanted.append(i % n in range(first, first + len(mine)))
        place = functools.partial(_place, n=n, first=first)
        if mine and _content(together, wanted, place) != alone(
            inner, shapes[first : first + len(mine)]
        ):
            return False
        first += len(mine)
    return True


def _describe_alone(
    tx: Any,
    structure: Any,
    shapes: Sequence[Any],
) -> Hashable:
    """Describes the computation of one node's updates, if the transform sees only that node's parameters."""
    params = structure.unflatten([jax.ShapeDtypeStruct(*shape) for shape in shapes])
    closed = jax.make_jaxpr(lambda *trees: _updates(tx, trees))(*[params] * (1 + STEPS))
    n = len(shapes)
    return _content(
        closed,
        [True] * (STEPS * n),
        functools.partial(_place, n=n, first=0),
    )


def _place(
    argument: int,
    n: int,
    first: int,
) -> tuple[int, int]:
    """Finds the tree of an argument, and the leaf of the node within that tree."""
    return argument // n, argument % n - first


def _updates(tx: Any, trees: Sequence[Tree]) -> list[Tree]:
    """The updates of one step after the other, from parameters, which stay the same, and a gradient for each step."""
    params, *gradients = trees
    step = with_extra_arguments(tx)
    state = tx.init(params)
    per_group = []
    for gradient in gradients:
        updates, state = step.update(
            gradient,
            state,
            params,
            staleness=jnp.float32(0),
        )
        per_group.append(updates)
    return per_group


def _content(
    closed: Any,
    wanted: list[bool],
    place: Callable[[int], tuple[int, int]],
) -> Hashable:
    """Describes the computation of some results of a jaxpr, and the arguments that they depend on."""
    jaxpr, used = partial_eval.dce_jaxpr(closed.jaxpr, wanted)
    constants = closed.consts if jaxpr.constvars else ()
    return content(
        jaxpr,
        constants,
    ), tuple(place(i) for i, is_used in enumerate(used) if is_used)
