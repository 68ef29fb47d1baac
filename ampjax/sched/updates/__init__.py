"""Parameter changes: which are due, how replicas are kept together, which versions are still needed."""
