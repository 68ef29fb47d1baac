"""What touches devices and clocks: arenas, kernels, the executor, the drivers."""
