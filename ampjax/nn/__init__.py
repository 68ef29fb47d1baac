"""A few layers as pairs of pure functions: `init(key) -> params` and `layer(params, x) -> y`, on one message's payload; and a table of n-grams."""

from typing import TYPE_CHECKING

from ampjax.moved_names import finder
from ampjax.nn.layers import Embed, Linear, TableEmbed, choose_embed
from ampjax.nn.ngram_table import NgramTable

__all__ = [
    "Embed",
    "Linear",
    "NgramTable",
    "TableEmbed",
    "choose_embed",
]

_MOVED = {
    "ChosenEmbed": "ampjax.nn.layers.ChosenEmbed",
    "ngram_hashes": "ampjax.nn.ngram_hash.ngram_hashes",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
