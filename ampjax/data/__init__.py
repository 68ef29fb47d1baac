"""Data sets, one module for each: readers of real file formats, and generators; all give `ampjax.Instances` or batches.

To add one, begin with `mnist` (each instance is a row for each pump) or with `list_reduction`: from `ListReduction` to `Sequences.gather`, with
its helpers at the end of the file (a message for each step of a sequence, or one ragged message). It is a frozen dataclass of columns, a
`generate` or a reader of files (`data/readers`), and a class that keeps the protocol `Instances` of `ir/instances.py`. A function `plain`, which
gives the same for models that are written as functions, is optional. Register it here, twice, in `docs/reference/data.md`, and in the pinned names of `tests/docs/test_exports.py`.

What only a model of the zoo (`models/functions/zoo`) learns from belongs to `data/generated`: dictionaries of arrays, registered nowhere.
"""

from ampjax.data import (
    babi15,
    glove,
    graphs,
    images,
    list_reduction,
    mnist,
    multi30k,
    pairs,
    permutation,
    qm9,
    sst,
    text,
    wikiner,
    zipf,
)

__all__ = [
    "babi15",
    "glove",
    "graphs",
    "images",
    "list_reduction",
    "mnist",
    "multi30k",
    "pairs",
    "permutation",
    "qm9",
    "sst",
    "text",
    "wikiner",
    "zipf",
]


def __dir__() -> list[str]:
    return __all__
