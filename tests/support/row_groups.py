"""Random rows in groups, like the rows of a loop's levels."""

import numpy as np


def random_groups(rng, n_rows):
    """Rows in some order, dealt out to groups with gaps; some are left out."""
    shape = (
        int(
            rng.integers(
                1,
                4,
            )
        ),
        int(rng.integers(0, 7)),
    )
    places = np.full(shape[0] * shape[1], -1)
    n = int(
        rng.integers(
            0,
            min(n_rows, len(places)) + 1,
        )
    )
    at = rng.permutation(len(places))[:n]
    places[at] = rng.permutation(n_rows)[:n]
    return places.reshape(shape)
