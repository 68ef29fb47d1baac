"""Examples with numbers, vectors of three, and the number of another element for each, for programs that read and change elements."""

import numpy as np

SPEC = {
    "x": "float64[n]",
    "m": "float64[n,3]",
    "at": "int32[n]",
    "k": "int32[]",
}
PARAMS = {
    "a": np.float64(0.7),
    "b": np.float64(-0.3),
}


def example(seed, n):
    """An example of so many elements.

    Args:
      seed: Of its numbers.
      n: How many.
    """
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=n),
        "m": rng.normal(size=(n, 3)),
        "at": rng.integers(0, n, n).astype(np.int32),
        "k": np.int32(seed % 3),
    }
