"""Loops of unequal length: a plain JAX function of one element, computed for many elements in lanes that take the next element as soon as one ends.

`jax.vmap` of a `lax.while_loop` runs until the last element is done. Here a program counter in each lane says where its element stands. Knows jaxprs; nothing of
models, graphs and messages.
"""
