"""Devices that round the operands of products: GPUs and TPUs, unless JAX is configured otherwise."""

from __future__ import annotations

import jax

_FULL = ("highest", "float32", "F32_F32_F32", "F64_F64_F64")
"""Values of `jax_default_matmul_precision` with which products of float32 are products of float32."""


def advice_on_rounded_products() -> str:
    """Returns the remedy where numbers differ because the default device rounds the operands of float32 products; empty if the device does not.

    By default JAX multiplies matrices of float32 in TensorFloat-32 on GPUs, with 10 bits after the point, and in bfloat16 on TPUs, with 7.
    A product of two 512 × 512 matrices then has errors of 1e-3 of its largest element, in place of 1e-6.

    Returns:
      Two sentences, for an error or a report.
    """
    backend = jax.default_backend()
    if backend == "cpu" or getattr(jax.config, "jax_default_matmul_precision", None) in _FULL:
        return ""
    return (
        f"On this {backend.upper()}, JAX rounds what it multiplies to fewer bits than float32 has. "
        "To compare, call `jax.config.update('jax_default_matmul_precision', 'highest')` before anything is compiled."
    )
