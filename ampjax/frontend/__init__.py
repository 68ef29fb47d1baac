"""Models as plain JAX functions of one instance, compiled to graphs: the states, loop counters and keys of AMPNet's nodes are deduced.

AMPNet's authors name this as what is missing (ICLR version, section 8). `combinators` are what a model calls; `compile_model` is the entry.
"""
