"""Remedies for stale gradients, as optax transforms that are told the staleness: by nodes of AMP, and by `delayed` in plain JAX."""
