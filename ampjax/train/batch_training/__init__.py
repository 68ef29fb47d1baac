"""Training by whole batches: the model as one function of a round's examples, in one call with its gradient and the optimizer's step."""
