"""Constructors and calls of optax transforms, below all modules that transform gradients."""
