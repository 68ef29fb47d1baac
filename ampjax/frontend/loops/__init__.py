"""Loops in steps over rows, as functions of arrays: how rows lie, what a step computes, what is kept for the way back."""
