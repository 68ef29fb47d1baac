"""The papers' models, each short enough to read in one sitting."""

from typing import TYPE_CHECKING

from ampjax.models.layers.losses import labelled_cross_entropy
from ampjax.models.mlp import mlp
from ampjax.models.rnn import list_reduction_rnn

if TYPE_CHECKING:  # modules, imported when they are first asked for by name
    from ampjax.models import (
        act,
        ggnn,
        inception,
        lm,
        mixture,
        nmt,
        permutation,
        resnet,
        scores,
        tagger,
        tiled,
        tree_lstm,
    )

__all__ = [
    "act",
    "ggnn",
    "inception",
    "labelled_cross_entropy",
    "list_reduction_rnn",
    "lm",
    "mixture",
    "mlp",
    "nmt",
    "permutation",
    "resnet",
    "scores",
    "tagger",
    "tiled",
    "tree_lstm",
]
