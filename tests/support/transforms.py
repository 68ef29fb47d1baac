"""Transforms that trainers share: with the same object, equal graphs share the kernels of their updates, too."""

import functools

import optax

adam = functools.cache(optax.adam)
sgd = functools.cache(optax.sgd)
