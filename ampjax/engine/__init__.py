"""Everything that touches devices: arenas, parameters, kernels and the executor."""
