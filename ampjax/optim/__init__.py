"""Updates of parameters: a node's from its accumulator, a table's row by row, remedies for staleness, averages."""

from ampjax.optim.average import averaged, parameter_average
from ampjax.optim.node_update import combine, make_update, trainable
from ampjax.optim.row_rule import RowRule, RowState
from ampjax.optim.split_rows import split_rows
from ampjax.optim.split_transform import Split
from ampjax.optim.staleness_remedies import scale_by_staleness

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


def __dir__() -> list[str]:
    return __all__
