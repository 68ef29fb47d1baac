"""Generated data with a structure of its own in each instance, for the models of `experiments.models.functions.zoo`; same seed, same instances."""
