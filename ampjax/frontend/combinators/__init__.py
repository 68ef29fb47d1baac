"""The functions that a model calls: plain JAX on a concrete instance, one equation each in a traced model."""
