"""Boolean circuits: directed acyclic graphs of gates, of which each has several inputs and may feed several gates."""

from __future__ import annotations

from typing import Any

import numpy as np

import ampjax as amp
from experiments.data.readers.data_checks import at_least_one

FALSE, TRUE, AND, OR, XOR, NOR = range(6)
"""Gates; the first two are constants without inputs."""
N_GATES = 6
MOST_NODES = 10
MOST_INPUTS = 3


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
) -> list[dict[str, Any]]:
    """Draws circuits of four to ten nodes in topological order: three constants first, then gates of one to three earlier nodes.

    Args:
      n: How many.
      seed: Same seed, same circuits.

    Returns:
      Instances: `gate` and `number` `[nodes]` int32; `parents` `[nodes, inputs]` int32, ragged: numbers of the nodes that feed each;
      `label` `[nodes]` int32: 0 or 1, what each node gives.

    Raises:
      SettingsError: If `n` is below 1.
    """
    at_least_one("generate", n=n)
    rng = np.random.default_rng(seed)
    return [_draw(rng) for _ in range(n)]


def _draw(rng: np.random.Generator) -> dict[str, Any]:
    gates = []
    parents = []
    values = []
    for number in range(int(rng.integers(4, MOST_NODES + 1))):
        if number > 2:
            above = rng.permutation(number)[: rng.integers(1, MOST_INPUTS + 1)].tolist()
        else:
            above = []
        if above:
            gate = int(rng.integers(AND, N_GATES))
        else:
            gate = int(rng.integers(FALSE, TRUE + 1))
        gates.append(gate)
        parents.append(above)
        values.append(output(gate, [values[parent] for parent in above]))
    numbers = np.arange(len(gates), dtype=np.int32)
    columns = {
        "gate": np.array(gates, np.int32),
        "number": numbers,
        "label": np.array(values, np.int32),
    }
    return {**columns, "parents": amp.Ragged.of(parents, np.int32)}


def output(gate: int, inputs: list[int]) -> int:
    """What a gate gives: 0 or 1.

    Args:
      gate: The gate.
      inputs: What feeds it.
    """
    results = {
        FALSE: 0,
        TRUE: 1,
        AND: all(inputs),
        OR: any(inputs),
        XOR: sum(inputs) % 2,
        NOR: not any(inputs),
    }
    return int(results[gate])
