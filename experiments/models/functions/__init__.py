"""Models that `experiments.models` has in another form, as plain JAX functions of one instance, for `ampjax.compile`; in `zoo` many other kinds.

Each module has the model, `init` for its parameters, and `SPEC` or `spec`: what an instance looks like. The data sets of `experiments.data`
give such instances by their functions `plain`. Called as it is, a model runs on one instance and can be differentiated by `jax.grad`.
"""
