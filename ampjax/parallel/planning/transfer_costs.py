"""Bytes that a machine sends and receives in a step (Parallax, Table 3), predicted.

N machines have one worker each and a server beside it; w is a variable's bytes, α the share of it that a worker touches. Rows
alone are counted, not their ids. Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass


def all_reduce_bytes(w: float, n: int) -> float:
    """Bytes of a dense variable in a ring AllReduce: 4·w·(N-1)/N. Each of 2(N-1) rounds sends and receives w/N.

    Args:
      w: The variable's bytes.
      n: Machines.

    Returns:
      Bytes that each machine sends and receives.

    >>> all_reduce_bytes(100, 4)
    300.0
    """
    return 4 * w * (n - 1) / n


def all_gather_bytes(w: float, alpha: float, n: int) -> float:
    """Bytes of a sparse variable in an AllGatherv of its touched rows: 2·α·w·(N-1).

    Args:
      w: The variable's bytes.
      alpha: The share of its rows that a worker touches.
      n: Machines.

    >>> all_gather_bytes(100, 0.5, 3)
    200.0
    """
    return 2 * alpha * w * (n - 1)


def server_bytes(w: float, alpha: float, n: int) -> float:
    """Bytes of a variable at servers, the mean over machines: 4·α·w·(N-1)/N.

    Each of N workers pulls and pushes α·w, of which (N-1)/N goes to other machines; both ends count. The mean is what each
    machine has if the variable's partitions, or many variables, are spread evenly.

    Args:
      w: The variable's bytes.
      alpha: The share of its rows that a worker touches; 1 if it is dense.
      n: Machines.

    Returns:
      Bytes that a machine sends and receives, on average.

    >>> server_bytes(100, 0.5, 2)
    100.0
    """
    return 4 * alpha * w * (n - 1) / n


def busiest_server_bytes(w: float, alpha: float, n: int) -> float:
    """Bytes that the server of a variable in one partition sends and receives: 2·α·w·(N-1).

    Args:
      w: The variable's bytes.
      alpha: The share of its rows that a worker touches; 1 if it is dense.
      n: Machines.
    """
    return 2 * alpha * w * (n - 1)


@dataclass(frozen=True)
class PredictedBytes:
    """Bytes per machine and step of one variable in both architectures.

    Args:
      ar: AllReduce if the variable is dense, AllGatherv if it is sparse.
      ps: Servers.
    """

    ar: float
    ps: float


def predict_bytes(nbytes: int, alpha: float | None, n: int) -> PredictedBytes:
    """Table 3 for one variable.

    Args:
      nbytes: The variable's bytes, w.
      alpha: Share of its rows that a worker touches in a step; None for a dense variable.
      n: Machines.

    Returns:
      Bytes per machine and step, for both architectures.
    """
    if alpha is None:
        return PredictedBytes(all_reduce_bytes(nbytes, n), server_bytes(nbytes, 1.0, n))
    return PredictedBytes(
        all_gather_bytes(nbytes, alpha, n),
        server_bytes(nbytes, alpha, n),
    )
