"""The papers' models, each short enough to read in one sitting."""

from ampjax.models.layers.losses import labelled_cross_entropy
from ampjax.models.mlp import mlp
from ampjax.models.rnn import list_reduction_rnn
