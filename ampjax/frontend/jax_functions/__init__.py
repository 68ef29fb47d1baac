"""Functions of JAX that ask for lengths, as functions that don't."""
