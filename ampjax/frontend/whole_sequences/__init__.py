"""Rules that turn JAX's own operations on whole sequences into steps of a batch as one function."""
