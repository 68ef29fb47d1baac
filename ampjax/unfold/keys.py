"""Keys of instances: what is pumped for two instances is the same if their keys are, and so are their programs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from ampjax.ir.graph import Graph
from ampjax.ir.instances import Messages, Topology
from ampjax.ir.state import INSTANCE, SLOT
from ampjax.unfold.assemble import starts
from ampjax.unfold.pumped import PumpedStates

DIGEST = 16
"""Bytes of a key: that two of a million differing ones are equal is as likely as that a memory error goes unnoticed."""


def keys_of(graph: Graph, batch: Mapping[str, Messages], ids: np.ndarray, salt: bytes) -> list[bytes]:
    """A key for each instance: of the states, rows and topologies that are pumped for it, in order. Payloads are not looked at.

    Topologies are told apart as objects; who keeps a key keeps `topologies_of` too, so that no other object takes their place.

    Args:
      graph: The graph.
      batch: The instances' messages.
      ids: `[k]`: the instances' numbers.
      salt: What must be the same beside.

    Raises:
      MessageError: If a pump is unknown, or a state field is missing or not known.
    """
    pumped, width, columns, instances = (
        PumpedStates(graph, ids),
        graph.layout.width,
        list[np.ndarray](),
        list[np.ndarray](),
    )
    for name, messages in batch.items():
        number, wire = pumped.find(name)
        instances.append(messages.instance)
        if wire.topology:
            own = np.zeros((len(messages.instance), width), np.int64)
            own[:, SLOT] = [id(topology) for topology in messages.payload]
        else:
            own = pumped.states(name, messages)
            own[:, SLOT] = messages.sizes if wire.ragged else 1
        own[:, INSTANCE] = number
        columns.append(own)
    if not instances:
        return [salt] * len(ids)  # nothing is pumped for any of them
    of = np.concatenate(instances)
    lines = np.concatenate(columns)
    if len(instances) > 1 or (of[1:] < of[:-1]).any():
        lines = lines[np.argsort(of, kind="stable")]
    ends = starts(np.bincount(of, minlength=len(ids))).tolist()
    parts = [lines[start:end] for start, end in pairwise(ends)]
    return [hashlib.blake2b(part.tobytes(), digest_size=DIGEST, key=salt).digest() for part in parts]


def topologies_of(batch: Mapping[str, Messages], k: int) -> list[list[Topology]]:
    """The topologies that are pumped for each of `k` instances."""
    found: list[list[Topology]] = [[] for _ in range(k)]
    for messages in batch.values():
        if isinstance(messages.payload, list):
            for place, one in zip(messages.instance.tolist(), messages.payload, strict=True):
                if isinstance(one, Topology):
                    found[place].append(one)
    return found
