"""From a traced model to notes of nodes: the binding times of values, and the equations that become one node.

This code runs once, when a graph is built.
"""
