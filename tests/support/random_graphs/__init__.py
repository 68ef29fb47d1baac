"""Random graphs with instances for them, for property tests: every node kind, nested loops, fan-out, joins, groups, replicas.

A graph is grown block by block. Every open wire is known with its `Domain`, the exact set of states that its messages have: wires
of one domain can be joined, a loop whose counter is reset at the exit gives its entry's domain back, a group of what a flatmap made
gives back the flatmap's. So a case cannot wait for ever, and every loop ends because its bound is read from the state.
"""
