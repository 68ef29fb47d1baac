"""When it happens: a scheduler whose messages are integers. It stands beside `sched` until it does all that that does, and then takes its name (decision 22).

What will happen is known (`unfold`): each invocation's inputs, consumers and rows. What is left are counters of missing inputs and of owed gradients, queues,
slots and versions: `loops` keeps them in arrays of integers and is compiled by Numba.
"""
