"""Updates of parameters: of a node from its accumulator, of a table row by row; gradients that come late, remedies for staleness, averages."""

from typing import TYPE_CHECKING

from ampjax.moved_names import finder
from ampjax.optim.delayed import RandomDelay, delayed, stage_delays
from ampjax.optim.remedies.basis_rotation import scale_by_rotated_adam
from ampjax.optim.remedies.bounded_staleness import bounded_staleness
from ampjax.optim.remedies.delay_compensation import compensate_delay
from ampjax.optim.remedies.momentum import compensate_spikes, scale_by_discounted_nadam
from ampjax.optim.remedies.scale_by_staleness import (
    anneal_by_staleness,
    damp_by_staleness,
    scale_by_staleness,
)
from ampjax.optim.remedies.weight_prediction import predict_weights, trained_params
from ampjax.optim.row_transforms.rowwise_optimizers import (
    rowwise_adagrad,
    rowwise_adam,
    rowwise_rmsprop,
    scale_rows,
)
from ampjax.optim.row_transforms.stochastic_rounding import stochastic_rounding

__all__ = [
    "RandomDelay",
    "anneal_by_staleness",
    "bounded_staleness",
    "compensate_delay",
    "compensate_spikes",
    "damp_by_staleness",
    "delayed",
    "predict_weights",
    "rowwise_adagrad",
    "rowwise_adam",
    "rowwise_rmsprop",
    "scale_by_discounted_nadam",
    "scale_by_rotated_adam",
    "scale_by_staleness",
    "scale_rows",
    "stage_delays",
    "stochastic_rounding",
    "trained_params",
]

_MOVED = {
    "RowRule": "ampjax.optim.row_rule.RowRule",
    "RowState": "ampjax.optim.row_rule.RowState",
    "Split": "ampjax.optim.split_transform.Split",
    "averaged": "ampjax.optim.average.averaged",
    "combine": "ampjax.optim.node_update.combine",
    "make_update": "ampjax.optim.node_update.make_update",
    "parameter_average": "ampjax.optim.average.parameter_average",
    "split_rows": "ampjax.optim.split_by_rows.split_rows",
    "trainable": "ampjax.optim.node_update.trainable",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
