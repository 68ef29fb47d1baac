"""Remedies for stale gradients: optax transforms that get the staleness from a graph's nodes, from runners, or from `delayed` in plain JAX.

To add one, see `docs/guides/extending.md`, "An optimizer rule". Its `update` gets

* `updates`, `state` and `params` as optax has them (`require_params` in `extra_arguments` refuses None);
* one extra argument, `staleness`, a float32 scalar (`staleness_of` there refuses None): the updates that were made between the forward pass and
  the adjoint. At a node it is the mean over the gradient rows of an update (`optim/node_update.py`); a runner keeps it in the transform's state
  (`optim/staleness_state.py`); `optim/delayed.py` counts it itself. No other argument exists.
"""
