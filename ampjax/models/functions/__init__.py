"""The papers' models as plain JAX functions of parameters and one instance, for `ampjax.compile`; one file for each model."""
