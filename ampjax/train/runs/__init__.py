"""How a trainer runs: one pass over the data, the epochs of a fit, its snapshots, inference, and fits that are recorded and replayed."""
