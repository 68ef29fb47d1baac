"""The optimizer of each node, and the optimizers' states as users see them."""
