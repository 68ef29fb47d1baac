"""Adam in a rotated basis, in which the Hessian is nearly diagonal: delays do less harm there."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ampjax.errors import SettingsError
from ampjax.optim.optax_transforms.transform import transform

Tree = Any


class RotationState(NamedTuple):
    """The state of `scale_by_rotated_adam`.

    Attributes:
      count: Gradients so far.
      mu: The moving mean of gradients but the first, in the parameters' own basis.
      nu: That of squares, in the rotated basis.
      sides: For each parameter the moving means of `G Gᵀ` and `Gᵀ G`, and their eigenvectors; empty for one that is no matrix.
    """

    count: jax.Array
    mu: Tree
    nu: Tree
    sides: list[Any]


def scale_by_rotated_adam(
    b1: float = 0.95,
    b2: float = 0.99,
    eps: float = 1e-8,
    every: int = 10,
) -> optax.GradientTransformationExtraArgs:
    """Adam in a rotated basis: second moments of the gradient in the eigenbasis of its covariances.

    This is the rule of SOAP (Vyas et al. 2024, arXiv 2409.11321, algorithm 3), in the order of its authors' code. Adam tolerates delays if the
    Hessian is diagonal in the basis of the parameters, and oscillates if it is not; in the rotated basis the Hessian is nearly diagonal ("basis
    rotation" for asynchronous pipelines, arXiv 2602.03515, uses such a rule under delay). For a matrix gradient G, `N` is the moving mean of
    the squares of `Uᵀ G V`, and the step is `U ((Uᵀ M̂ V) / (√N̂ + eps)) Vᵀ` with the moving mean `M` of G; both means are corrected for their
    bias. After the step, G goes into the moving means `L`, `R` of `G Gᵀ` and `Gᵀ G`, whose eigenvectors `U`, `V` are renewed every few updates. So no
    gradient is rotated into a basis that it has made itself: there the first one would be diagonal, and elsewhere Adam would divide rounding
    errors by their own size. The first gradient makes the first basis and no update. SOAP follows the eigenvectors by power iteration; here they
    are computed anew. Other parameters get Adam, from the second gradient on. It needs no staleness. Put `optax.scale(-learning_rate)` behind it.

    As long as gradients have a lower rank than their matrix, as those of single examples have, rounding chooses the eigenvectors outside of their
    span. So two runs that are equal but for rounding soon differ.

    Memory: Adam's, and for a matrix `[m, n]` another `2 m² + 2 n²`.

    Args:
      b1: The decay of the mean of gradients.
      b2: The decay of squares and covariances.
      eps: Added to the root; above 0.
      every: Updates between two decompositions.

    Returns:
      An optax transform.

    Raises:
      SettingsError: If a decay is outside [0, 1), `eps` not above 0, or `every` below 1.
    """
    if not (0 <= b1 < 1 and 0 <= b2 < 1 and eps > 0 and every >= 1):
        got = f"{b1}, {b2}, {eps}, {every}"
        raise SettingsError(
            "scale_by_rotated_adam",
            "decays in [0, 1), `eps` > 0, `every` >= 1",
            got,
            "Pass values in these ranges, or leave them out.",
        )

    def init(params: Tree) -> RotationState:
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return RotationState(
            jnp.zeros((), jnp.int32),
            mu,
            nu,
            [_no_sides(p) for p in jax.tree.leaves(params)],
        )

    def update(
        grads: Tree, state: RotationState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, RotationState]:
        del params, extra
        count = jnp.asarray(optax.safe_increment(state.count))
        n_steps = count - 1
        corrections = []
        for b in (b1, b2):
            corrections.append(1 - b ** jnp.maximum(n_steps, 1))
        leaves, structure = jax.tree.flatten(grads)
        updates_of_leaves = []
        for g, m, v, sides in zip(
            leaves,
            *map(
                jax.tree.leaves,
                (state.mu, state.nu),
            ),
            state.sides,
            strict=True,
        ):
            used = jnp.where(n_steps > 0, g, 0)
            mean = b1 * m + (1 - b1) * used
            square = b2 * v + (1 - b2) * _rotate(sides, used) ** 2
            step = (_rotate(sides, mean) / corrections[0]) / (
                jnp.sqrt(square / corrections[1]) + eps
            )
            update = _rotate(sides, step, back=True).astype(g.dtype)
            updates_of_leaves.append(
                (update, mean, square, _renew(sides, g, b2, n_steps % every == 0))
            )
        updates, mu, nu = (
            structure.unflatten([parts[i] for parts in updates_of_leaves]) for i in range(3)
        )
        return updates, RotationState(count, mu, nu, [parts[3] for parts in updates_of_leaves])

    return transform(init, update)


def _no_sides(param: jax.Array) -> Any:
    if jnp.ndim(param) != 2:
        return ()
    result = []
    for n in param.shape:
        result.append(
            (
                jnp.zeros(
                    (n, n),
                    param.dtype,
                ),
                jnp.eye(n, dtype=param.dtype),
            )
        )
    return tuple(result)


def _renew(
    sides: Any,
    g: jax.Array,
    decay: float,
    is_due: jax.Array,
) -> Any:
    """Adds a gradient to the covariances, and renews their eigenvectors when due."""
    if not sides:
        return sides
    covariances = []
    for (old, _), new in zip(sides, (g @ g.T, g.T @ g), strict=True):
        covariances.append(decay * old + (1 - decay) * new)
    return tuple(
        (
            covariance,
            jax.lax.cond(
                is_due,
                lambda c, _: jnp.linalg.eigh(c)[1],
                lambda _, old_basis: old_basis,
                covariance,
                basis,
            ),
        )
        for covariance, (_, basis) in zip(covariances, sides, strict=True)
    )


def _rotate(
    sides: Any,
    x: jax.Array,
    back: bool = False,
) -> jax.Array:
    if not sides:
        return x
    left = sides[0][1]
    right = sides[1][1]
    return left @ x @ right.T if back else left.T @ x @ right
