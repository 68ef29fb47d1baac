"""Batches as one function beside plain JAX by hand: each work's model, its examples, and the same loss as users write the loss for a batch."""
