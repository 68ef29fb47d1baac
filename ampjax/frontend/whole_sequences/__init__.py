"""How JAX's own operations on whole sequences become steps of a batch as one function."""
