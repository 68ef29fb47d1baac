"""Loops in steps over rows, as functions of arrays: the layout of rows, the computation of a step, and the arrays kept for the way back."""
