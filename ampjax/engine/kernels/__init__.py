"""Kernels: a stage's nodes as one function of a row, compiled for rows by the hundred."""
