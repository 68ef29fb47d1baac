"""What a step came to: for the user as `Metrics`, and the checks that let a step change anything at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampjax.errors import ParameterError
from ampjax.parallel.config.leaf_paths import by_path
from ampjax.parallel.homes.row_homes import RowGrads
from ampjax.parallel.homes.wire import MachineBytes

Tree = Any


@dataclass(frozen=True)
class Metrics:
    """One step.

    Args:
      step: Its number; the first is 1.
      losses: The loss, reduced over replicas, or each replica's own; scalars that may still be under way.
      aux: The loss function's second result, with a leading axis of replicas; None if there is none.
      alpha: By sparse variable the share of its rows that a replica touched, the mean over replicas.
      traffic: Bytes between machines.
      staleness: In asynchronous mode, for each update made in this step the number of updates between its pull and its push.
      fetched: What was asked for: `gradients` and `norms` by path, `global_norm`.
      is_mean: Whether the loss is the mean or the sum of `losses`.
    """

    step: int
    losses: Sequence[Any]
    aux: Tree
    alpha: Mapping[str, float]
    traffic: MachineBytes
    staleness: Sequence[int] = ()
    fetched: Mapping[str, Any] = field(default_factory=dict)
    is_mean: bool = True

    @property
    def loss(self) -> float:
        """The loss; waits for it."""
        values = [float(np.asarray(loss)) for loss in self.losses]
        return sum(values) / (len(values) if self.is_mean else 1)

    def __str__(self) -> str:
        alphas = "".join(f", alpha of {path} {alpha:.3g}" for path, alpha in self.alpha.items())
        return f"step {self.step}: loss {self.loss:.6g}, {self.traffic.per_machine():.0f} bytes a machine{alphas}"

    def __repr__(self) -> str:
        return str(self)


def require_finite(step: int, loss: Callable[[], Any], finite: np.ndarray, dense: Tree) -> None:
    """Raises with the names of what is not finite, if anything is; nothing has been changed by then.

    Args:
      step: The step's number.
      loss: Gives the loss, or the replicas' losses.
      finite: Whether the loss and then each dense variable's gradient is, `[..., 1 + n]`.
      dense: A tree of dense variables.

    Raises:
      ParameterError: If something is not.
    """
    if finite.all():
        return
    each = zip(by_path(dense), finite.reshape(-1, finite.shape[-1]).T[1:], strict=True)
    wrong = [f"`{path}`" for path, is_finite in each if not is_finite.all()]
    got = f"a loss of {np.asarray(loss()).tolist()}" + (
        f" and NaN or infinity in {', '.join(wrong[:4])}" if wrong else ""
    )
    raise ParameterError(
        f"step {step}, gradients",
        "finite numbers",
        got,
        "Nothing was changed: look at this batch (ids within their tables?), lower the learning rate, or clip.",
    )


def norms(grads: Mapping[str, Any]) -> dict[str, float]:
    """The 2-norm of each variable's gradient.

    Args:
      grads: By path an array, or `RowGrads`.
    """
    values = {path: grad.values if isinstance(grad, RowGrads) else grad for path, grad in grads.items()}
    wide = {path: np.asarray(value, np.result_type(value.dtype, np.float32)) for path, value in values.items()}
    return {path: float(np.linalg.norm(value.ravel())) for path, value in wide.items()}


def fetched(names: Sequence[str], grads: Mapping[str, Any]) -> dict[str, Any]:
    """What a user asked to read.

    Args:
      names: Of `gradients`, `norms` and `global_norm`.
      grads: Aggregated gradients by path.
    """
    own = norms(grads)
    known = {"gradients": dict(grads), "norms": own, "global_norm": float(np.linalg.norm(list(own.values())))}
    return {name: known[name] for name in names}
