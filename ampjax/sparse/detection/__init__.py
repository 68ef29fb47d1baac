"""Finds the leaves of a loss function that are tables, in its jaxpr."""
