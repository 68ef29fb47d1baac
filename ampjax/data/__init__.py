"""Data sets: real file formats and generators, one module for each, all giving `ampjax.ir.instances.Instances`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # modules, imported when they are first asked for by name
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
