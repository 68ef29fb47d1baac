"""Remedies for stale gradients: optax transforms that get the staleness from a graph's nodes, from runners, or from `delayed` in plain JAX.

An optimizer rule that does not ask for staleness is an optax transform like any other: users pass it, and nothing here need know of it. To add
one that does, begin with `bounded_staleness.py`, the smallest; one that only scales belongs to `scale_by_staleness.py`, which has `_scaled` for it.
Its `update` gets

* `updates`, `state` and `params` as optax has them (`require_params` in `extra_arguments` refuses None);
* one extra argument, `staleness`, a float32 scalar (`staleness_of` there refuses None): the updates that were made between the forward pass and
  the adjoint. At a node it is the mean over the gradient rows of an update (`optim/node_update.py`); a runner keeps it in the transform's state
  (`optim/staleness_state.py`); `optim/delayed.py` counts it itself. No other argument exists.

Export it in `optim/__init__.py`, with a line in `docs/reference/optim.md`, in `docs/guides/remedies.md` and in the pinned names of
`tests/docs/test_exports.py`. `PLAIN` in `tests/unit/optim/remedies/test_remedies.py` compares it, at staleness 0, with the plain optimizer.
"""
