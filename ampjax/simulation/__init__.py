"""Machines that one need not own: cost models, measured profiles, shared cores."""
