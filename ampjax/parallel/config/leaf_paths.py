"""Leaves of a parameter tree by path, `encoder/embedding`, and the patterns that name paths.

Pure functions on pytrees; shared by partitioners, placement and explanations.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import jax

from ampjax.errors import AmpError, DataError

Tree = Any
_KEY = r"""\[(['"])(.*?)\1\]|\[(\d+)\]|\.([A-Za-z_]\w*)"""
"""A key of a path: of a dictionary, of a sequence, or an attribute's name."""
_PATH = re.compile(r"""(?<!\w)(?:\['.*?'\]|\[".*?"\]|\[\d+\]|\.[A-Za-z_]\w*)+""")


def path_text(path: tuple[Any, ...]) -> str:
    """Writes a key path as names with `/` between.

    >>> path_text(jax.tree_util.tree_flatten_with_path({"a": [1]})[0][0][0])
    'a/0'
    """
    return jax.tree_util.keystr(path, simple=True, separator="/")


def names(tree: Tree) -> dict[str, str]:
    """Maps the leaves' paths to their form for users.

    Returns:
      For each leaf its path as `jax.tree_util.keystr` writes it, and as names with `/` between them.

    >>> names({"layer": [1]})
    {"['layer'][0]": 'layer/0'}
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return {jax.tree_util.keystr(path): path_text(path) for path in paths}


def readable(text: str) -> str:
    """Rewrites a text's paths from the form of `jax.tree_util.keystr` to names with `/` between.

    Args:
      text: A path, or the name of a table of several.

    >>> readable("['layer'][0]"), readable("['a'] and 2 others"), readable("[0].mu['t']")
    ('layer/0', 'a and 2 others', '0/mu/t')
    """
    return _PATH.sub(
        lambda path: "/".join(key[2] or key[3] or key[4] for key in re.finditer(_KEY, path[0])),
        text,
    )


def by_path(
    tree: Tree,
    where: str = "leaf",
    error: type[AmpError] = DataError,
) -> dict[str, Any]:
    """The leaves of a tree by path, in the tree's order.

    Args:
      tree: Any pytree.
      where: The kind of leaf, for an error.
      error: The kind of error.

    Raises:
      AmpError: If two leaves have one path, as keys with `/` in them make possible.

    >>> by_path({"b": 1, "a": {"c": 2}})
    {'a/c': 2, 'b': 1}
    """
    result = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        text = path_text(path)
        if text in result:
            fix = "Rename a key, for example with `_` in place of `/`."
            raise error(f"{where} `{text}`", "a name of its own", "two leaves with this name", fix)
        result[text] = leaf
    return result


def matches(pattern: str, path: str) -> bool:
    """Tells whether a pattern names a path: the pattern fits some whole names in a row.

    Args:
      pattern: Names with `/` between them; `*` and `?` stand for parts of a name.
      path: Names with `/` between them.

    >>> [matches("embedding", p) for p in ("encoder/embedding/kernel", "embedding_bias")]
    [True, False]
    >>> matches("layer_*/kernel", "net/layer_3/kernel")
    True
    """
    wanted = pattern.split("/")
    names = path.split("/")
    starts = range(len(names) - len(wanted) + 1)
    return any(
        all(map(fnmatchcase, names[start : start + len(wanted)], wanted)) for start in starts
    )
