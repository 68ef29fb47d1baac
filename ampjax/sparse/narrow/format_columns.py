"""The places of a format's numbers in the array for compiled loops."""

from __future__ import annotations

MANTISSA = 0
"""Bits of its fractions; of an integer, bits of its absolute value."""
LEAST = 1
"""The least exponent of its normal numbers; below it numbers are evenly spaced."""
TOP = 2
"""The exponent of its largest number."""
LIMIT = 3
"""The fraction of its largest number, as that of a float32."""
IS_INTEGER = 4
"""1 where negative numbers are two's complements, 0 where they have a sign bit."""

MIN_EXPONENT = -100
"""The exponent of the smallest scale: products with it are normal float32 numbers."""
