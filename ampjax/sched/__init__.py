"""The order in time: a scheduler whose messages are integers.

The graph is cut into stages (`plan`), and what will happen to an instance is known beforehand (`unfold`): each invocation's inputs, consumers and rows. What is left are
counters of missing inputs and of owed gradients, queues, slots and versions: `loops` keeps them in arrays of integers and is compiled by Numba.
"""
