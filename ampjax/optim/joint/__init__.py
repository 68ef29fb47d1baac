"""One optimizer for the parameters of several nodes: its view of them, its step, and whether it needs them together."""
