"""The scheduler as a pure state machine: NumPy and the standard library only."""
