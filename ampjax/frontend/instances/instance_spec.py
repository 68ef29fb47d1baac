"""The spec of an instance, in JAX's notation of types: `int32[w]`, where names are lengths that each instance has of its own."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.graph_combinators import Edges
from ampjax.frontend.combinators.structures import Ragged, Stacked
from ampjax.frontend.combinators.tracing import Dimensions
from ampjax.frontend.draft.payload_types import from_raw, is_key, raw, raw_type
from ampjax.frontend.instances.plain_leaves import plain_rows

_TYPE = re.compile(r"\s*([a-z]+\d*|key<\w+>)\s*\[([^\]]*)\]\s*")
_WORDS_OF_SHAPES = ("max", "min", "mod", "floordiv", "non_negative")
_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")
"""JAX's generators of random numbers, each of which has keys of its own type."""


@dataclass(frozen=True)
class LeafSpec:
    """The type of one leaf of an instance.

    Args:
      path: Where it is in the instance, as JAX writes paths.
      keys: The path's keys.
      dtype: Its dtype; of PRNG keys that of the integers that they are made of.
      dimensions: Names of its leading dimensions, from the outside.
      shape: The other dimensions; of PRNG keys with that of their integers.
      is_of_nodes: Whether its elements are the nodes of a graph.
      of_keys: The keys' dtype, if these are typed PRNG keys; else None.
      like: For the kinds of edges, the name of the column beside it that it is as long as: without kinds, all are of kind 0. Empty otherwise.
    """

    path: str
    keys: tuple[Any, ...]
    dtype: np.dtype
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    is_of_nodes: bool = False
    of_keys: Any = None
    like: str = ""

    def aval(self, dimensions: Dimensions) -> jax.ShapeDtypeStruct:
        """The type with symbolic dimensions."""
        named = tuple(dimensions.get(name) for name in self.dimensions)
        if self.of_keys is not None:
            return jax.ShapeDtypeStruct(
                (*named, *self.shape[:-1]),
                self.of_keys,
            )
        return jax.ShapeDtypeStruct((*named, *self.shape), self.dtype)

    def read(
        self,
        instances: Sequence[Any],
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The leaf's values in all instances, one after the other.

        Args:
          instances: The instances.

        Returns:
          `[rows, *shape]`, and for each named dimension how many elements each row of the dimension before has.

        Raises:
          DataError: If a leaf is missing or has another shape; names the instance.
        """
        if isinstance(instances, Stacked):
            return self._read_stacked(
                self._follow(instances.columns, 0),
                len(instances),
            )
        if self.of_keys is None:
            plain = plain_rows(instances, self.keys, len(self.dimensions), self.shape)
            if plain is not None and self._fits(plain[0]):
                return plain[0].astype(self.dtype, copy=False), plain[1]
        values = [self._follow(instance, number) for number, instance in enumerate(instances)]
        try:
            return self._read(values)
        except DataError:
            for number, value in enumerate(values):
                try:
                    self._read([value])
                except DataError as error:
                    where = f"instance {number}, `{self.path}`"
                    raise DataError(where, error.expected, error.got, error.fix) from None
            raise

    def _read(
        self,
        values: list[Any],
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Collects the values of instances, one after the other."""
        sizes: list[np.ndarray] = []
        for depth in range(len(self.dimensions)):
            is_last = depth == len(self.dimensions) - 1
            sizes.append(
                np.array(
                    [self._length(value) for value in values],
                    np.int64,
                )
            )
            if is_last:
                break
            values = [row for value in values for row in _rows(value)]
        return self._stack_rows(values), sizes

    def cast_leaf(self, instance: Any, number: int = 0) -> Any:
        """Casts the leaf of one instance to the spec's dtype and shape, which the data do not tell for an empty sequence.

        Returns:
          An array, or a `Ragged` where several dimensions have names; what JAX has already as it is.

        Raises:
          DataError: If it is missing or has another shape.
        """
        value = self._follow(instance, number)
        if _is_of_jax(value):
            return value
        try:
            rows, sizes = self._read([value])
        except DataError as error:
            raise DataError(
                f"instance {number}, `{self.path}`", error.expected, error.got, error.fix
            ) from None
        rows = rows if self.of_keys is None else from_raw(rows, self.of_keys)
        if not self.dimensions:
            return rows[0]
        whole: Any = rows
        for column in reversed(sizes[1:]):
            whole = Ragged(whole, column)
        return whole

    def is_missing(self, instances: Sequence[Any]) -> bool:
        """Tells whether no instance has the leaf."""
        wholes = [instances.columns] if isinstance(instances, Stacked) else instances
        return not any(self._is_in(whole) for whole in wholes)

    def _is_in(self, instance: Any) -> bool:
        try:
            self._follow(instance, 0)
        except DataError:
            return False
        return True

    def _read_stacked(
        self,
        column: Any,
        n: int,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The same of a data set that is stacked already."""
        sizes: list[np.ndarray] = []
        for _ in self.dimensions:
            if isinstance(column, Ragged):
                sizes.append(np.asarray(column.sizes, np.int64))
                column = column.values
            elif np.ndim(column) > 1:  # all of one length
                shape = np.shape(column)
                sizes.append(np.full(shape[0], shape[1], np.int64))
                column = np.asarray(column).reshape(
                    -1,
                    *shape[2:],
                )
            else:
                raise DataError(
                    f"instances, `{self.path}`",
                    f"a column of sequences, {len(self.dimensions)} deep",
                    "one of numbers" if np.ndim(column) else type(column).__name__,
                    "Stack sequences as `amp.Ragged`, or as an array with one more axis.",
                )
        if sizes:
            rows = int(sizes[-1].sum())
        else:
            rows = n
        if isinstance(column, Ragged) or len(column) != rows:
            got = "a `Ragged`" if isinstance(column, Ragged) else f"{len(column)}"
            raise DataError(
                f"instances, `{self.path}`", f"{rows} rows", got, "Mend the data or the spec."
            )
        return self._cast(np.asarray(column)), sizes

    def _stack_rows(self, values: list[Any]) -> np.ndarray:
        """Stacks all rows of all values to one array."""
        where = f"instances, `{self.path}`"
        wanted = self.shape
        if any(isinstance(value, np.ma.MaskedArray) for value in values):
            fix = "Give the entries that count, with `compressed()`, or the mask as a leaf of its own."
            raise DataError(where, "arrays all of whose entries count", "a masked one", fix)
        try:
            parts = [np.asarray(value) for value in values]
            if self.dimensions:
                rows = [part for part in parts if len(part)]
            else:
                rows = [part[None] for part in parts]
            wrong = [part.shape[1:] for part in rows if part.shape[1:] != wanted]
        except (ValueError, TypeError):
            raise DataError(
                where,
                f"rows of shape {wanted}",
                "rows of rows",
                "Mend the data, or name their lengths in the spec.",
            ) from None
        if wrong:
            raise DataError(
                where, f"rows of shape {wanted}", f"{wrong[0]}", "Mend the data or the spec."
            )
        return self._cast(
            np.concatenate(rows)
            if rows
            else np.zeros(
                (0, *wanted),
                self.dtype,
            )
        )

    def _cast(self, out: np.ndarray) -> np.ndarray:
        """The rows in the spec's dtype."""
        where = f"instances, `{self.path}`"
        if out.shape[1:] != self.shape:
            raise DataError(
                where,
                f"rows of shape {self.shape}",
                f"{out.shape[1:]}",
                "Mend the data or the spec.",
            )
        if not self._fits(out):
            fix = "Cast the data, or change the spec."
            got = f"{out.dtype}" + (f" up to {abs(out).max()}" if out.dtype.kind in "iu" else "")
            raise DataError(where, f"numbers that fit into {self.dtype}", got, fix)
        return out.astype(self.dtype, copy=False)

    def _fits(self, values: np.ndarray) -> bool:
        """Tells whether values are of the spec's dtype, or keep their meaning in that one."""
        return values.dtype == self.dtype or not values.size or self._holds(values)

    def _holds(self, values: np.ndarray) -> bool:
        """Tells whether values of another dtype keep their meaning: floats may be rounded, integers must stay the same."""
        if values.dtype.kind in "iub" and not jnp.issubdtype(self.dtype, np.inexact):
            return bool((values.astype(self.dtype) == values).all())
        is_number = values.dtype.kind in "iubfc" or jnp.issubdtype(values.dtype, np.inexact)
        return is_number and bool(np.can_cast(values.dtype, self.dtype, "same_kind"))

    def _length(self, value: Any) -> int:
        try:
            return len(value)
        except TypeError:
            where = f"instances, `{self.path}`"
            raise DataError(
                where,
                "a sequence, as the spec says",
                f"{type(value).__name__}",
                "Give an array or a list.",
            ) from None

    def _follow(self, instance: Any, number: int) -> Any:
        value = around = instance
        for key in self.keys:
            try:
                around, value = value, _got(value, key)
            except (KeyError, AttributeError, IndexError, TypeError):
                name = getattr(key, "name", None)
                there = sorted(value) if isinstance(value, dict) else type(value).__name__
                fix = "Give every instance what the spec names; with `labels=False`, what only losses read may be missing."
                if name in ("parent", "side", "value") and isinstance(value, tuple | list):
                    fix = "Make a tree of nested tuples with `amp.Tree.of(...)`."
                raise DataError(f"instance {number}", f"`{self.path}`", f"{there}", fix) from None
        if value is None and self.like:
            return _zeros_like(getattr(around, self.like))
        return self._as_integers(value)

    def _as_integers(self, value: Any) -> Any:
        """Converts PRNG keys to their integers, also in a list or rows; returns anything else unchanged."""
        if isinstance(value, list | tuple):
            has_keys = self.of_keys is not None or (len(value) and isinstance(value[0], jax.Array))
            if has_keys:
                return [self._as_integers(each) for each in value]
            return value
        if isinstance(value, Ragged):
            return Ragged(self._as_integers(value.values), value.sizes)
        if not isinstance(value, jax.Array) or not is_key(value):
            return value
        if self.of_keys != value.dtype:
            where = f"instances, `{self.path}`"
            wanted = "keys of its type" if self.of_keys is not None else "numbers"
            fix = f'Write `{value.dtype}` in the spec, or give `jax.random.key_data(...)`, which is "uint32[2]".'
            raise DataError(where, f"{wanted}, as the spec says", f"PRNG keys, {value.dtype}", fix)
        return np.asarray(raw(value))


def parse(spec: Any) -> tuple[list[LeafSpec], Any]:
    """Reads a spec.

    Args:
      spec: A pytree of texts, such as `{"tokens": "int32[t]", "label": "int32[]"}`, and of `Edges`.

    Returns:
      Its leaves, and its structure.

    Raises:
      GraphError: If a text is no type, or edges are over a dimension that is not one of a graph's nodes.
    """
    if spec is None:
        raise GraphError(
            "spec",
            "types, such as `float32[n,11]`",
            "None",
            'Write for example `{"words": "int32[t]"}`.',
        )
    taken: set[str] = set()

    def spell(part: Any) -> Any:
        return _edges_spec(part, taken) if isinstance(part, Edges) else part

    spec = jax.tree.map(
        spell,
        spec,
        is_leaf=lambda part: isinstance(part, Edges),
    )
    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(spec)
    leaves = [_parse(path, text) for path, text in paths_and_leaves]
    parts = jax.tree.leaves(
        spec,
        is_leaf=lambda part: isinstance(part, Edges),
    )
    nodes = {part.nodes for part in parts if isinstance(part, Edges)}
    for name in sorted(nodes - {leaf.dimensions[0] for leaf in leaves if leaf.dimensions}):
        fix = (
            "Write the name of the dimension of the nodes; they need something to start from, "
            "such as features or labels."
        )
        raise GraphError(
            f'spec, `Edges("{name}")`',
            f'a leaf over `{name}`, such as `"float32[{name},11]"`',
            "none",
            fix,
        )
    return [_of_nodes(leaf, nodes) for leaf in leaves], structure


def _edges_spec(edges: Edges, taken: set[str]) -> Edges:
    """Makes the types of `Edges("v", kinds=4)`; the edges get a dimension of their own."""
    nodes = edges.senders
    n = 1 if edges.kinds is None else edges.kinds
    where = f"spec, `{edges!r}`"
    fix = 'Write `amp.Edges("v", kinds=4)`, with the name of the dimension of the nodes.'
    if not isinstance(nodes, str) or not nodes.isidentifier() or edges.receivers is not None:
        raise GraphError(where, "the nodes' dimension", f"{nodes!r}", fix)
    if not isinstance(n, int) or n < 1:
        raise GraphError(where, "a number of kinds of at least 1", f"{n!r}", fix)
    name = next(
        name
        for i in range(len(taken) + 1)
        if (name := f"{nodes}_edges{i + 1 if i else ''}") not in taken
    )
    taken.add(name)
    column = f"int32[{name}]"
    return Edges(
        column,
        column,
        None if edges.kinds is None else _Kinds(column),
        nodes,
        n,
    )


class _Kinds(str):
    """The type of the kinds of edges, which data may leave out."""


def _of_nodes(leaf: LeafSpec, nodes: set[str]) -> LeafSpec:
    """Says of a leaf whether its elements are a graph's nodes, which hold arrays of one shape."""
    dimensions = nodes.intersection(leaf.dimensions)
    if dimensions and len(leaf.dimensions) > 1:
        fix = "Give nodes arrays of one shape, and an instance one graph; a sequence beside it gets another name."
        got = f"`[{','.join(leaf.dimensions)}]`"
        raise GraphError(
            f"spec, `{leaf.path}`",
            f"`{min(dimensions)}`, which edges join, as the only name",
            got,
            fix,
        )
    return replace(leaf, is_of_nodes=bool(dimensions))


@functools.cache
def _key_types() -> dict[str, jax.ShapeDtypeStruct]:
    """The types of random keys, such as `key<fry>`, by their text."""
    types = {}
    for name in _KEYS:
        key = jax.eval_shape(functools.partial(jax.random.key, 0, impl=name))
        types[str(key.dtype)] = key
    return types


def _parse(keys_of: tuple[Any, ...], text: Any) -> LeafSpec:
    path = jax.tree_util.keystr(keys_of)
    where = f"spec, `{path}`"
    fix = 'Write `"int32[t]"` for a sequence, `"float32[n,11]"` for one of vectors, `"int32[]"` for a number.'
    match = _TYPE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise GraphError(where, "a type, such as `float32[n,11]`", f"{text!r}", fix)
    of_keys = _key_types().get(match[1])
    if of_keys is not None:
        words = raw_type(of_keys)
        plain = _parse(keys_of, f"{words.dtype}[{match[2]}]")
        return replace(
            plain,
            shape=(*plain.shape, *words.shape),
            of_keys=of_keys.dtype,
        )
    dtype = _parse_dtype(where, match[1], fix)
    named, numbers = _parse_shape(where, match[2], fix)
    like = "senders" if isinstance(text, _Kinds) else ""
    return LeafSpec(
        path,
        keys_of,
        dtype,
        named,
        numbers,
        like=like,
    )


def _parse_dtype(where: str, text: str, fix: str) -> np.dtype:
    try:
        dtype = np.dtype(jnp.dtype(text))
    except TypeError:
        dtype = np.dtype(object)
    if not (
        jnp.issubdtype(
            dtype,
            np.number,
        )
        or jnp.issubdtype(dtype, np.bool_)
    ):
        raise GraphError(where, "a dtype of JAX", f"`{text}`", fix)
    held = jax.dtypes.canonicalize_dtype(dtype)
    if held != dtype:
        hint = f'Write `{held.name}`, or set `jax.config.update("jax_enable_x64", True)`.'
        raise GraphError(where, "a dtype that JAX holds now", f"`{text}`", hint)
    return dtype


def _parse_shape(
    where: str,
    text: str,
    fix: str,
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The dimensions of a leaf's type: first the names, then the numbers."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    named = [part for part in parts if not part.isdigit()]
    numbers = parts[len(named) :]
    is_ordered = parts[: len(named)] == named
    are_names = all(name.isidentifier() for name in named)
    if not is_ordered or not are_names or len(set(named)) < len(named):
        raise GraphError(where, "different names first, then numbers", f"`[{text}]`", fix)
    for name in named:
        if name in _WORDS_OF_SHAPES:
            raise GraphError(
                where,
                "a name that means nothing else in JAX's shapes",
                f"`{name}`",
                f"Write `{name}_`.",
            )
    return tuple(named), tuple(map(int, numbers))


def list_once(instances: Sequence[Any]) -> Sequence[Any]:
    """Wraps instances in a list that asks for each only once, since a lazy source would make several of one.

    Args:
      instances: What has a length and gives an instance for each number.
    """
    if isinstance(instances, list | Stacked) or not (
        hasattr(instances, "__len__") and hasattr(instances, "__getitem__")
    ):
        return instances
    if isinstance(instances, Mapping):
        return instances
    return [instances[number] for number in range(len(instances))]


def part_finder(
    leaves: Sequence[LeafSpec],
    structure: Any,
) -> Callable[[Any, Any], Any]:
    """Makes a function that finds parts of a model's instances, with the spec's types.

    Returns:
      `find(instance, part)`: the part; None if the instance does not have it.
    """
    places = list(
        dict.fromkeys(
            leaf.keys[:depth] for leaf in leaves for depth in range(1, len(leaf.keys) + 1)
        )
    )

    def find(instance: Any, part: Any) -> Any:
        for keys in places:
            if _part(instance, keys) is part:
                whole: Any = structure.unflatten(leaves)
                return jax.tree.map(
                    lambda leaf: leaf.cast_leaf(instance),
                    _part(whole, keys),
                )
        return None

    return find


def _part(whole: Any, keys: tuple[Any, ...]) -> Any:
    """Finds a part of an instance by its keys; None if there is none."""
    for key in keys:
        try:
            whole = _got(whole, key)
        except (KeyError, AttributeError, IndexError, TypeError):
            return None
    return whole


def _got(value: Any, key: Any) -> Any:
    """Looks up a key; in a list of structures, collects the parts of all structures."""
    name: Any = getattr(
        key,
        "key",
        getattr(key, "name", getattr(key, "idx", None)),
    )
    if isinstance(value, list) and not isinstance(name, int):
        return [_got(each, key) for each in value]
    if hasattr(key, "name"):
        return getattr(value, str(name))
    return value[name]


def _is_of_jax(value: Any) -> bool:
    """Tells whether a value is a JAX array already, perhaps one that JAX differentiates or traces."""
    return any(
        isinstance(leaf, jax.Array)
        for leaf in jax.tree.leaves(value.values if isinstance(value, Ragged) else value)
    )


def _zeros_like(value: Any) -> Any:
    """A zero for each element of a sequence, or of each row of a data set's column of sequences."""
    if isinstance(value, Ragged):
        return Ragged(_zeros_like(value.values), value.sizes)
    return np.zeros(np.shape(value), np.int32)


def _rows(value: Any) -> list[Any]:
    if isinstance(value, Ragged):
        return [value[i] for i in range(len(value))]
    return list(value)
