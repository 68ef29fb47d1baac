"""Which leaves of a loss function are tables, found in its jaxpr."""
