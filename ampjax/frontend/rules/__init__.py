"""The rules by which each combinator becomes nodes.

They run once, when a graph is built; the columns that they make run once for each data set.
"""
