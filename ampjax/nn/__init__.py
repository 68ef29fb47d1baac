"""A few layers as pairs of pure functions: `init(key) -> params` and `layer(params, x) -> y`, on one message's payload; and a table of n-grams."""

from ampjax.nn.layers import ChosenEmbed, Embed, Linear, TableEmbed, choose_embed
from ampjax.nn.ngram_hash import ngram_hashes
from ampjax.nn.ngram_table import NgramTable

__all__ = [
    "ChosenEmbed",
    "Embed",
    "Linear",
    "NgramTable",
    "TableEmbed",
    "choose_embed",
    "ngram_hashes",
]


def __dir__() -> list[str]:
    return __all__
