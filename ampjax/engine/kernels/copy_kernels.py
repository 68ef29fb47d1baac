"""Kernels that copy rows out of an arena and into one."""

from __future__ import annotations

from typing import Any

from ampjax.engine.kernels.kernel import Kernel, jitted
from ampjax.engine.kernels.scatter import set_rows
from ampjax.engine.kernels.shared_kernels import shared
from ampjax.engine.kernels.wiring import put_gradients
from ampjax.plan.stages import ArenaKey

ArenaKeys = tuple[ArenaKey, ...]
"""The arenas that a kernel is for. Such a kernel is freed with the last graph that has these arenas; a single kernel for all graphs would
keep the compiled programs of every graph."""


@shared
def put_rows(arenas: ArenaKeys) -> Kernel:
    """`kernel(arena, grads, slots, rows) -> (arena, grads)`: writes rows to slots.

    It sets their adjoint rows to zero, unless `grads` is None.
    """

    @jitted("arena", "grads")
    def put_rows(
        arena: Any,
        grads: Any,
        slots: Any,
        rows: Any,
    ) -> Any:
        return set_rows(arena, slots, rows), grads if grads is None else set_rows(grads, slots, 0)

    return put_rows


@shared
def get_rows(arenas: ArenaKeys) -> Kernel:
    """`kernel(arena, slots) -> rows`: the rows of slots."""

    @jitted()
    def get_rows(arena: Any, slots: Any) -> Any:
        return arena[slots]

    return get_rows


@shared
def return_gradients(arenas: ArenaKeys, sole: bool) -> Kernel:
    """`kernel(grads, slots, rows) -> grads`: adds cotangents to the adjoint rows of slots, or for a sole consumer writes the cotangents.

    Padding has the trash slot.
    """

    @jitted("grads")
    def return_gradients(grads: Any, slots: Any, rows: Any) -> Any:
        return put_gradients(grads, slots, rows, sole)

    return return_gradients


@shared
def first_element(arenas: ArenaKeys) -> Kernel:
    """`kernel(array) -> number`: the first element of an array, to wait for."""

    @jitted()
    def first_element(array: Any) -> Any:
        return array.reshape(-1)[0]

    return first_element
