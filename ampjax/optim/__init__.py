"""Updates of one node's parameters from accumulated gradients, and remedies for staleness as optax transforms."""

from ampjax.optim.staleness import scale_by_staleness
from ampjax.optim.update import combine, make_update, trainable
