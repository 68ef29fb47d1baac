"""What a model calls: plain JAX on a concrete instance, one equation each in a model that is traced."""
