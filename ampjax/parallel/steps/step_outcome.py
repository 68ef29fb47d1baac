"""The result of a step: `Metrics` for the user, and the check that gradients are finite, before anything changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampjax.errors import ParameterError, SettingsError
from ampjax.parallel.config.leaf_paths import by_path
from ampjax.parallel.homes.row_homes import RowGrads
from ampjax.parallel.homes.wire import MachineBytes

Tree = Any
FETCHES = ("gradients", "norms", "global_norm")


@dataclass(frozen=True)
class Metrics:
    """The result of one step.

    Args:
      step: Its number; the first is 1.
      losses: The loss, reduced over replicas, or each replica's own; scalars that may not have been computed yet.
      aux: The loss function's second result, with a leading axis of replicas; None if there is none.
      alpha: By sparse variable, the share of its rows that a replica touched, averaged over replicas.
      traffic: Bytes between machines.
      staleness: In asynchronous mode, for each update made in this step the number of updates between its pull and its push.
      fetched: What `run` was asked to fetch: `gradients` and `norms` by path, `global_norm`.
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
        """The loss; a read waits for the devices."""
        values = [float(np.asarray(loss)) for loss in self.losses]
        return sum(values) / (len(values) if self.is_mean else 1)

    def __str__(self) -> str:
        alphas = "".join(f", alpha of {path} {alpha:.3g}" for path, alpha in self.alpha.items())
        return f"step {self.step}: loss {self.loss:.6g}, {self.traffic.per_machine():.0f} bytes a machine{alphas}"

    def __repr__(self) -> str:
        return str(self)


def require_finite(
    step: int,
    loss: Callable[[], Any],
    finite: np.ndarray,
    dense: Tree,
) -> None:
    """Raises if a gradient or the loss is not finite; nothing has changed by then.

    Args:
      step: The step's number.
      loss: Gives the loss, or the replicas' losses.
      finite: Whether the loss and then each dense variable's gradient is, `[..., 1 + n]`.
      dense: A tree of dense variables.

    Raises:
      ParameterError: If something is not; it names the variables.
    """
    if finite.all():
        return
    each = zip(
        by_path(dense),
        finite.reshape(-1, finite.shape[-1]).T[1:],
        strict=True,
    )
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

    Returns:
      By path, the norm.
    """
    values = {}
    for path, grad in grads.items():
        values[path] = grad.values if isinstance(grad, RowGrads) else grad
    wide = {}
    for path, value in values.items():
        wide[path] = np.asarray(
            value,
            np.result_type(value.dtype, np.float32),
        )
    result = {}
    for path, value in wide.items():
        result[path] = float(np.linalg.norm(value.ravel()))
    return result


def select_fetched(
    names: Sequence[str],
    grads: Mapping[str, Any],
) -> dict[str, Any]:
    """Selects the gradients that a user asked to read.

    Args:
      names: Of `gradients`, `norms` and `global_norm`.
      grads: Aggregated gradients by path.

    Returns:
      By name, what was asked for.
    """
    norm_of = norms(grads)
    known = {
        "gradients": dict(grads),
        "norms": norm_of,
        "global_norm": float(np.linalg.norm(list(norm_of.values()))),
    }
    return {name: known[name] for name in names}


def checked_fetch(
    fetch: str | Sequence[str],
    sync: bool,
) -> tuple[str, ...]:
    """Checks the names of gradients that a user wants to read.

    Args:
      fetch: One name or several.
      sync: Whether replicas step together.

    Raises:
      SettingsError: If one is unknown, or replicas don't step together.
    """
    if isinstance(fetch, str) or not isinstance(fetch, Iterable):
        wanted = (fetch,)
    else:
        wanted = tuple(fetch)
    for name in wanted:
        if name not in FETCHES:
            raise SettingsError(
                "fetch", f"some of {list(FETCHES)}", f"{name!r}", "Choose among these."
            )
    if wanted and not sync:
        fix = "Without a barrier no gradient is aggregated over replicas."
        raise SettingsError("fetch", "synchronous training", "sync=False", fix)
    return wanted
