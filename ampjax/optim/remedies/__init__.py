"""Remedies for stale gradients: optax transforms that get the staleness from a graph's nodes, from runners, or from `delayed` in plain JAX."""
