"""Gradient parity of a compiled model: the engine against `jax.grad` of the function that was compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from ampjax.errors import DataError, NumericsError
from ampjax.frontend.combinators.draw_places import counting
from ampjax.frontend.drawn_keys import DrawnKeys
from ampjax.numerics.array_writes import advice_on_moved_rows
from ampjax.numerics.differences import (
    Difference,
    Verification,
    compare,
    difference_table,
    widen_leaf,
)
from ampjax.numerics.double_precision import operation_by_operation, widen_tree
from ampjax.numerics.product_precision import advice_on_rounded_products
from ampjax.train.preparation import showing_compilations
from ampjax.train.settings import Settings
from ampjax.train.trainer import Trainer
from ampjax.utils.counted import count_of
from ampjax.utils.progress import Reporter

if TYPE_CHECKING:
    from ampjax.frontend.compile_model import Compiled

_SETTINGS = Settings(max_active_keys=64, max_dispatch_size=64)
_LOSS = "the loss"
_UPDATES = "updates and optimizers: parameters were frozen"


def verify_gradients(
    compiled: Compiled,
    name: str,
    instances: Sequence[Any],
    params: Mapping[str, Any],
    tolerance: float,
    reporter: Reporter,
) -> Verification:
    """Compares the loss and every gradient of some instances; see `Compiled.verify`.

    Args:
      compiled: The compiled model.
      name: What the function is called.
      instances: The instances, as the model takes them.
      params: Parameters of the model's structure.
      tolerance: Largest difference allowed.
      reporter: Shows how far it is.

    Returns:
      The verdict: they agree.

    Raises:
      DataError: If the function's own loss or gradients are not finite.
      NumericsError: If they differ.
    """
    if compiled.graph.batches_only:
        computed = _by_batch(compiled, name, instances, params)
    else:
        computed = _by_engine(compiled, instances, params, reporter)
    want, how = _by_jax(compiled, instances, params, computed.drawn, reporter)
    _require_finite(name, want)
    differences = compare(computed.sums, want)
    return _verdict(name, len(instances), how, differences, tolerance, computed)


@dataclass(frozen=True)
class _FoundSums:
    """The sums of one form of a model over some instances.

    Args:
      form: The form, in words.
      sums: The loss, and gradients by parameter.
      not_looked_at: What its verdict leaves open, beside updates.
      drawn: The random numbers, if it drew any that the function itself can draw again.
    """

    form: str
    sums: Mapping[str, Any]
    not_looked_at: str
    drawn: DrawnKeys | None = None


def _by_engine(
    compiled: Compiled,
    instances: Sequence[Any],
    params: Mapping[str, Any],
    reporter: Reporter,
) -> _FoundSums:
    data = compiled.data(instances)
    trainer = Trainer(
        compiled.graph,
        optax.sgd(0.0),
        params=compiled.node_params(params),
        settings=_SETTINGS,
    )
    session = trainer.session
    drawn = DrawnKeys(compiled.drawings, session.scheduler, session.row_seeds)
    watching = session.passes.watched(drawn) if compiled.drawings else nullcontext()
    with showing_compilations(reporter, session.preparation.most_kernels(data)), watching:
        loss = trainer.accumulate(data, update=False)["loss_sum"]
    return _FoundSums(
        "The engine",
        {_LOSS: loss, **compiled.gradients(trainer.gradients)},
        "metrics and outputs, and other schedules: `amp.verify(compiled.graph, compiled.data(...))` compares those",
        drawn,
    )


def _by_batch(
    compiled: Compiled,
    name: str,
    instances: Sequence[Any],
    params: Mapping[str, Any],
) -> _FoundSums:
    """The sums of a model whose batch form alone is trained.

    Raises:
      DataError: If the model draws random numbers.
    """
    if compiled.draws:
        fix = "Verify it with dropout left out, or compile without `messages=False`."
        expected = "a model without random numbers, of which a batch draws others"
        raise DataError("verify, messages=False", expected, f"`{name}` draws some", fix)
    batch = compiled.batched.pack(instances)

    def total(params: Any) -> jax.Array:
        result = compiled.batched(params, batch)
        losses = result[0] if isinstance(result, tuple) else result
        return losses.sum()

    loss, grads = jax.jit(
        jax.value_and_grad(
            total,
            allow_int=True,
        )
    )(dict(params))
    return _FoundSums(
        "The batch form",
        {_LOSS: loss, **grads},
        "metrics and outputs",
    )


def _require_finite(name: str, want: Mapping[str, Any]) -> None:
    """Refuses a function whose own loss or gradients are not finite."""
    for key, tree in want.items():
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)):
            fix = "Look for a division by 0, and for `amp.max` of an empty sequence, which is minus infinity."
            raise DataError(
                f"verify, {_part(key)}",
                f"finite numbers from `{name}` itself",
                "NaN or infinity",
                fix,
            )


def _verdict(
    name: str,
    n: int,
    how: str,
    differences: Sequence[Difference],
    tolerance: float,
    sums: _FoundSums,
) -> Verification:
    key, path, worst = max(differences, key=lambda difference: difference[2])
    table = difference_table(differences, tolerance)
    if not worst <= tolerance:
        ours = "Does the function compute the same whenever it is called? If so, this is a mistake of ampjax's."
        raise NumericsError(
            f"verify, {_part(key)}{path}",
            f"what `jax.grad` of `{name}`, {how}, gives for {count_of(n, 'instance')}, to {tolerance:.0e}",
            f"a difference of {worst:.1e}",
            " ".join(filter(None, (advice_on_rounded_products(), advice_on_moved_rows(), ours)))
            + f" All differences:\n{table}",
        )
    seen = f"the loss and {count_of(len(differences) - 1, 'gradient')} of {count_of(n, 'instance')}"
    not_looked_at = (sums.not_looked_at, _UPDATES)
    report = [
        f"{sums.form} agrees with jax.grad of `{name}`, {how}, in {seen}: largest difference {worst:.1e}, tolerance {tolerance:.0e}.",
        table,
        "Not checked:",
        *(f"  {line}" for line in not_looked_at),
    ]
    return Verification(True, worst, "\n".join(report), not_looked_at)


def _by_jax(
    compiled: Compiled,
    instances: Sequence[Any],
    params: Mapping[str, Any],
    drawn: DrawnKeys | None,
    reporter: Reporter,
) -> tuple[dict[str, Any], str]:
    """Computes the function's own loss and gradients, and names the way of this computation."""
    if compiled.draws:  # keys give other numbers in float64
        summed = _sum_runs(compiled, instances, dict(params), reporter, drawn)
        return summed, "in its own precision, with the random numbers that the engine drew"
    try:
        with operation_by_operation():
            return _sum_runs(
                compiled, instances, widen_tree(dict(params)), reporter
            ), "operation by operation in float64"
    except Exception:  # a function that names a dtype need not fit together in float64
        return _sum_runs(compiled, instances, dict(params), reporter), "in its own precision"


def _sum_runs(
    compiled: Compiled,
    instances: Sequence[Any],
    params: Any,
    reporter: Reporter,
    drawn: DrawnKeys | None = None,
) -> dict[str, Any]:
    function = jax.value_and_grad(compiled.loss)
    total = None
    with reporter.part("jax.grad", len(instances)) as advance:
        for i in range(len(instances)):
            with nullcontext() if drawn is None else counting(partial(drawn.key, i)):
                one = jax.tree.map(
                    widen_leaf,
                    function(params, [instances[i]]),
                )
            if total is None:
                total = one
            else:
                total = jax.tree.map(np.add, total, one)
            advance()
    assert total is not None
    loss, grads = total
    return {_LOSS: loss, **grads}


def _part(key: str) -> str:
    return key if key == _LOSS else f"parameters `{key}`"
