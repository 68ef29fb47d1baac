"""Data sets: real file formats and generators, one module for each, all giving `ampjax.ir.instances.Instances`."""

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
