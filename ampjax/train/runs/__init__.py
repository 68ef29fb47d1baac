"""How a trainer runs: one pass over the data, the epochs of a fit, inference, and fits that are recorded and replayed."""
