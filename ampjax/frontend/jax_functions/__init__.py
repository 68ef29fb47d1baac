"""Functions in place of JAX's own, which ask for lengths, while a batch's model is traced."""
