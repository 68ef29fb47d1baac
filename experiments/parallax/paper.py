"""What the Parallax papers print, and the machine that they measured on: 8 machines with 6 GPUs each, 100 Gb/s between them.

Throughput in words or images a second on all 48 GPUs. Numbers only; nothing here is computed. Table 1 of LM and NMT is sure. The last two columns
of table 4, tables 2 and 6, figure 9 and the rest of table 1 are quoted from memory and could not be checked against the text: they agree with each
other and with the ratios of its abstract.
"""

from __future__ import annotations

from collections.abc import Mapping

MACHINES = 8
GPUS_A_MACHINE = 6
LINK_BYTES_PER_S = 12.5e9
"""100 Gb/s, each way."""

MODELS = ("resnet", "inception", "lm", "nmt")
NAMES = {"resnet": "ResNet-50", "inception": "Inception-v3", "lm": "LM", "nmt": "NMT"}

ALPHA = {"resnet": 1.0, "inception": 1.0, "lm": 0.02, "nmt": 0.65}
"""Table 1: the share of a model's elements, dense and sparse, that a worker touches in an iteration."""

TABLE1: Mapping[str, Mapping[str, float]] = {
    "resnet": {"PS": 5.8e3, "AR": 7.6e3},
    "inception": {"PS": 3.8e3, "AR": 5.9e3},
    "lm": {"PS": 98.9e3, "AR": 45.5e3},
    "nmt": {"PS": 102e3, "AR": 68.3e3},
}
"""Table 1; PS is the naive one."""

TABLE2: Mapping[str, Mapping[int, float]] = {
    "lm": {
        8: 50.5e3,
        16: 78.6e3,
        32: 96.5e3,
        64: 96.1e3,
        128: 98.9e3,
        256: 93.2e3,
    },
    "nmt": {
        8: 90.7e3,
        16: 97.0e3,
        32: 96.6e3,
        64: 101.6e3,
        128: 98.5e3,
        256: 100.0e3,
    },
}
"""Table 2: by number of partitions, parameter servers."""

TABLE4: Mapping[str, Mapping[str, float]] = {
    "lm": {"AR": 45.5e3, "naive PS": 98.9e3, "optimised PS": 250e3, "hybrid": 274e3},
    "nmt": {"AR": 68.3e3, "naive PS": 102e3, "optimised PS": 116e3, "hybrid": 204e3},
}
"""Table 4 of EuroSys 2019."""

LADDER = ("BASE", "+HYB", "+LA", "+OPAU", "+OPSW")
"""The steps of the arXiv version's table 4, each of which adds something. Its cells are not at hand: only the order is compared."""

TABLE6: Mapping[int, tuple[float, float, float]] = {
    120: (1.0, 437e3, 214e3),
    60: (0.52, 511e3, 219e3),
    30: (0.28, 536e3, 221e3),
    15: (0.16, 557e3, 193e3),
    8: (0.1, 480e3, 159e3),
    4: (0.07, 285e3, 94e3),
    1: (0.04, 82e3, 24e3),
}
"""Table 6: by words of a sequence, the alpha of the model, and words a second of hybrid and of PS."""

NORMALISED: Mapping[str, Mapping[str, float]] = {
    "resnet": {"hybrid": 39.8, "PS": 30.4, "AR": 39.8},
    "inception": {"hybrid": 43.6, "PS": 28.6, "AR": 44.4},
    "lm": {"hybrid": 9.4, "PS": 3.4, "AR": 1.6},
    "nmt": {"hybrid": 18.4, "PS": 9.1, "AR": 6.1},
}
"""Figure 9: throughput on 48 GPUs over that on one."""

TARGETS = {"resnet": "23.74 % top-1 error", "lm": "perplexity 47.5", "nmt": "BLEU 23.2"}
"""What figure 7 trains to."""


def one_gpu(model: str) -> float:
    """Words or images a second on one GPU: what figure 9 divides by."""
    return TABLE1[model]["AR"] / NORMALISED[model]["AR"]
