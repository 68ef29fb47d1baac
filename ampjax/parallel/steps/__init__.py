"""Training steps: compute, exchange, update."""
