"""`amp.vmap` of plain JAX functions beside `jax.vmap` and one element after another."""
