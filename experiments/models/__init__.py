"""The papers' models, one module for each, short enough to read in one sitting; and the functions that the first examples need.

`act`, `ggnn`, `mixture`, `permutation`, `rnn`, `tagger` and `tree_lstm` are plain JAX functions of one instance, for `ampjax.compile`: each module
has the model, `init` for its parameters, and what an instance looks like. `mlp` and `tiled` make graphs. The others are single-device programs.
"""

from experiments.models import (
    act,
    ggnn,
    inception,
    lm,
    mixture,
    nmt,
    permutation,
    resnet,
    rnn,
    scores,
    tagger,
    tiled,
    translate,
    tree_lstm,
)
from experiments.models.layers.losses import labelled_cross_entropy
from experiments.models.mlp import mlp
from experiments.models.rnn import list_reduction_rnn

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
    "rnn",
    "scores",
    "tagger",
    "tiled",
    "translate",
    "tree_lstm",
]


def __dir__() -> list[str]:
    return __all__
