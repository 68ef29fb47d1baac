"""Right numbers on CPUs: the flag that keeps XLA from its wrong fusions, and the check that tells whether it is needed."""
