"""The papers' models as plain JAX functions of one instance, for `ampjax.compile`: states, counters and keys are deduced."""
