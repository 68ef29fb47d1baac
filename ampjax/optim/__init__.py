"""Updates of parameters: a node's from its accumulator, a table's row by row, remedies for staleness, averages."""

from ampjax.optim.average import averaged, parameter_average
from ampjax.optim.rows import split_rows
from ampjax.optim.rule import RowRule, RowState
from ampjax.optim.split import Split
from ampjax.optim.staleness import scale_by_staleness
from ampjax.optim.update import combine, make_update, trainable

__all__ = [
    "RowRule",
    "RowState",
    "Split",
    "averaged",
    "combine",
    "make_update",
    "parameter_average",
    "scale_by_staleness",
    "split_rows",
    "trainable",
]
