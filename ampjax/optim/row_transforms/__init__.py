"""Transforms made for large tables: one number of state a row, learning rates of rows, parameters in 16 bits."""
