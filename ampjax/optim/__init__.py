"""Updates of parameters: of a node from its accumulator, of a table row by row; gradients that come late, remedies for staleness, averages."""

from ampjax.optim.average import averaged, parameter_average
from ampjax.optim.delayed import RandomDelay, delayed, stage_delays
from ampjax.optim.node_update import combine, make_update, trainable
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
from ampjax.optim.row_rule import RowRule, RowState
from ampjax.optim.row_transforms.rowwise_optimizers import (
    rowwise_adagrad,
    rowwise_adam,
    rowwise_rmsprop,
    scale_rows,
)
from ampjax.optim.row_transforms.stochastic_rounding import stochastic_rounding
from ampjax.optim.split_rows import split_rows
from ampjax.optim.split_transform import Split

__all__ = [
    "RandomDelay",
    "RowRule",
    "RowState",
    "Split",
    "anneal_by_staleness",
    "averaged",
    "bounded_staleness",
    "combine",
    "compensate_delay",
    "compensate_spikes",
    "damp_by_staleness",
    "delayed",
    "make_update",
    "parameter_average",
    "predict_weights",
    "rowwise_adagrad",
    "rowwise_adam",
    "rowwise_rmsprop",
    "scale_by_discounted_nadam",
    "scale_by_rotated_adam",
    "scale_by_staleness",
    "scale_rows",
    "split_rows",
    "stage_delays",
    "stochastic_rounding",
    "trainable",
    "trained_params",
]


def __dir__() -> list[str]:
    return __all__
