"""Classes that are mixtures of Gaussians, as in the toy study of asynchronous local SGD (Liu et al., arXiv 2401.09135).

Each class has some clusters. Their centres have length 1 and random directions; the examples of a cluster lie around its centre with noise in
every feature. With 512 features and a noise of 0.5 the noise is about eleven times as long as a centre.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from experiments.data.readers.data_checks import at_least_one

N_CLASSES = 4
N_FEATURES = 512
NOISE = 0.5


@dataclass(frozen=True)
class Clusters:
    """Examples with their classes, class by class.

    Args:
      features: `[n, 512]` float32.
      labels: `[n]` int32, each in `[0, 4)`.
    """

    features: Float[np.ndarray, "n 512"]
    labels: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.labels)


def generate(
    n: int,
    clusters_per_class: int,
    seed: int,
) -> Clusters:
    """Draws centres, and as many examples of each cluster.

    Args:
      n: Examples; what the number of clusters does not divide is left out.
      clusters_per_class: Gaussians of a class.
      seed: Of the random numbers.

    Raises:
      SettingsError: If a number is below 1.
    """
    at_least_one("clusters", n=n, clusters_per_class=clusters_per_class)
    rng = np.random.default_rng(seed)
    n_clusters = clusters_per_class * N_CLASSES
    per_cluster = n // n_clusters
    centres = rng.normal(size=(n_clusters, N_FEATURES))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    features = np.empty((n_clusters, per_cluster, N_FEATURES), np.float32)
    for of_cluster, centre in zip(features, centres, strict=True):
        of_cluster[:] = centre + NOISE * rng.normal(size=of_cluster.shape)
    labels = np.repeat(
        np.arange(N_CLASSES, dtype=np.int32),
        clusters_per_class * per_cluster,
    )
    return Clusters(features.reshape(-1, N_FEATURES), labels)
