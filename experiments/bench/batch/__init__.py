"""Batches as one function beside plain JAX by hand: each work's model, its examples, and the same loss as its users write it for a batch."""
