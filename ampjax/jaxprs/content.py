"""The content of a jaxpr, as a value that can be compared: two traces of one function have equal contents."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from ampjax.jaxprs.primitives import jvp_rule, opened

_SHORT = 64
"""Bytes of an array that is compared as it is; of longer ones the SHA-256 is."""

_MOST_NESTED = 2
"""How often a `jax.custom_jvp` that its own rule calls is followed into the rule."""


class HasContent(ABC):
    """A parameter of an operation with a comparable content."""

    @abstractmethod
    def content(self) -> Any:
        """Returns the content: jaxprs, arrays, hashable values, and tuples, lists and mappings of these."""


@dataclass(frozen=True)
class OpenJaxpr:
    """A jaxpr whose constants are operands. From JAX 0.11 on, a jaxpr also holds the constants' values, which may be tracers.

    Args:
      jaxpr: The jaxpr.
    """

    jaxpr: Any


def content(
    jaxpr: Any,
    constants: Sequence[Any] = (),
    around: tuple[Hashable, ...] = (),
) -> Hashable:
    """The operations of a jaxpr, with variables numbered in order, and its constants by value.

    A function of the user's that an operation calls back (as `jax.debug.callback` and the rules of a `jax.custom_vjp` do) is compared by identity.

    Args:
      jaxpr: An open or closed jaxpr, or an `OpenJaxpr`.
      constants: Values of the constants of an open one.
      around: What the `jax.custom_jvp` functions compute in whose rules it is.

    Returns:
      A hashable value; equal ones mean equal results for equal inputs.
    """
    jaxpr, inner_constants = (jaxpr.jaxpr, ()) if isinstance(jaxpr, OpenJaxpr) else opened(jaxpr)
    numbers: dict[Any, int] = {}

    def bind_names(variables: Sequence[Any]) -> Hashable:
        for variable in variables:
            numbers[variable] = len(numbers)
        return tuple(variable.aval for variable in variables)

    def read(atom: Any) -> Hashable:
        if isinstance(atom, jex.Literal):
            return (array_content(atom.val), atom.aval)
        return numbers[atom]

    arguments = bind_names([*jaxpr.constvars, *jaxpr.invars])
    steps = []
    for equation in jaxpr.eqns:
        operands = tuple(read(atom) for atom in equation.invars)
        steps.append(
            (
                equation.primitive,
                operands,
                settings(equation, around),
                bind_names(equation.outvars),
            )
        )
    return (
        arguments,
        _value([*constants, *inner_constants], around),
        tuple(steps),
        tuple(read(atom) for atom in jaxpr.outvars),
    )


def settings(
    equation: Any,
    around: tuple[Hashable, ...] = (),
) -> Hashable:
    """Collects an operation's parameters, and the settings of its trace.

    Args:
      equation: The operation.
      around: As for `content`.

    Returns:
      A hashable value.
    """
    params = dict(equation.params)
    if (
        equation.primitive.name == "custom_jvp_call"
    ):  # its rule is another object in each trace, its jaxpr is not
        params.pop("jvp_jaxpr_fun", None)
        function = content(params["call_jaxpr"], (), around)
        if around.count(function) < _MOST_NESTED:  # a rule may call the function itself
            rule, constants, is_zero = jvp_rule(equation)
            params["rule"] = content(rule, constants, (*around, function)), tuple(is_zero)
    return _value(params, around), str(equation.ctx)


def _value(value: Any, around: tuple[Hashable, ...]) -> Hashable:
    if (
        isinstance(value, OpenJaxpr)
        or hasattr(value, "eqns")
        or hasattr(getattr(value, "jaxpr", None), "eqns")
    ):
        return content(value, (), around)
    if isinstance(value, tuple | list):
        return type(value), *(_value(each, around) for each in value)
    if isinstance(value, Mapping):
        result = []
        for key in sorted(value):
            result.append((key, _value(value[key], around)))
        return tuple(result)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return array_content(value)
    if isinstance(value, HasContent):
        return type(value), _value(value.content(), around)
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return type(value), value


def array_content(value: Any) -> Hashable:
    """Describes the value of an array: a short array itself, else its SHA-256.

    Args:
      value: An array or a number.
    """
    if jnp.issubdtype(
        getattr(value, "dtype", np.dtype(type(value))),
        jax.dtypes.prng_key,
    ):
        return str(value.dtype), array_content(jax.random.key_data(value))
    array = np.asarray(value)
    data = array.tobytes()
    return array.dtype, array.shape, data if len(data) <= _SHORT else hashlib.sha256(data).digest()


class _Identity:
    """An unhashable object, equal to itself alone. The object stays alive, so that no other gets its address."""

    def __init__(self, value: Any):
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)
