"""Servers of rows, in this process or in processes of their own."""
