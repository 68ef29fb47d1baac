"""Models of many kinds as plain JAX functions of one instance, on generated data: what the front end can express.

Each module has the model, `init` for its parameters, and `SPEC`: what an instance looks like. `experiments.data.generated` gives instances;
`python -m experiments functions NAME` trains one to a target.
"""
