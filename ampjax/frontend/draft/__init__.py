"""The graph to be: index spaces with their values, pumps, and notes of nodes, built when all state fields are known.

The functions of columns run later, once for each data set.
"""
