"""A trainer's runs: one pass over the data, the epochs of a fit, its snapshots, inference, and recorded and replayed fits."""
