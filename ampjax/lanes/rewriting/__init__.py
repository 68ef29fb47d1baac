"""Programs of one element with other computations in place of some equations: loops that go back, and what XLA compiles to one kernel."""
