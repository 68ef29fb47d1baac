"""Rewritten programs of one element: loops that run backwards, and loops that XLA compiles to one kernel."""
