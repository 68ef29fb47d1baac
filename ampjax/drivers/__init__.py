"""Event loops that ask the scheduler for work, in real time, in virtual time or as a recording tells; the controller; cost models; the tracer."""
