"""Data sets, one module for each: readers of real file formats, and generators; `plain` gives instances for models that are functions.

To add one, see `docs/guides/extending.md`, "A data set".
"""

from experiments.data import (
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
