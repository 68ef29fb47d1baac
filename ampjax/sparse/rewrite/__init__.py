"""A loss function as a step on pulled rows."""
