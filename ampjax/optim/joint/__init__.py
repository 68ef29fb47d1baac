"""One optimizer for the parameters of several nodes: what it sees, what it does, and whether it needs to see them together."""
