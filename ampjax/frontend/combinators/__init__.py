"""The functions that a model calls: plain JAX on a concrete instance, one equation each in a traced model.

They run when the model is traced, and see no numbers then.
"""
