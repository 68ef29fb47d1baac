"""The list-reduction data set of AMPNet (section 6 and B.2): an operation, then 1 to 9 digits, to one digit.

The paper leaves some details open; here they are settled thus:

* Tokens 0 to 9 are the digits, 10 to 13 the operations: mean(L), mean(L[0::2]) - mean(L[1::2]), max(L) - min(L), len(L).
* "Rounded modulo 10" is `np.rint` (ties to the even number), then Python's `%`, so a label is never negative: -1 gives 9.
* The mean of an empty slice is 0: `L[1::2]` is empty where L has one digit.
* Operation, number of digits (1 to 9) and digits are uniform and independent. Short lists repeat, within a split and between
  splits: there are only 40 lists of one digit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int

from ampjax.errors import DataError
from ampjax.frontend.combinators.structures import Ragged, Stacked
from ampjax.ir.instances import Messages
from experiments.data.readers.data_checks import at_least_one

OPERATIONS = ("mean(L)", "mean(L[0::2]) - mean(L[1::2])", "max(L) - min(L)", "len(L)")
N_TOKENS = 14
N_CLASSES = 10
MAX_DIGITS = 9
MAX_LENGTH = 1 + MAX_DIGITS


@dataclass(frozen=True)
class ListReduction:
    """Token sequences with their labels, as columns.

    Args:
      tokens: `[n, 10]` int32: the operation (10 to 13), the digits, and zeros up to the end.
      lengths: `[n]` int64: tokens in each sequence, the operation included; 2 to 10.
      labels: `[n]` int32, each in `[0, 10)`.

    Raises:
      DataError: If the columns disagree in their number of sequences.
    """

    tokens: Int[np.ndarray, "n 10"]
    lengths: Int[np.ndarray, " n"]
    labels: Int[np.ndarray, " n"]

    def __post_init__(self) -> None:
        n = len(self.labels)
        if self.tokens.shape != (n, MAX_LENGTH) or self.lengths.shape != (n,):
            raise DataError(
                "ListReduction",
                f"tokens of shape ({n}, {MAX_LENGTH}) and {n} lengths for {n} labels",
                f"tokens of shape {self.tokens.shape} and lengths of shape {self.lengths.shape}",
                "Give every sequence a row of tokens, a length and a label.",
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ListReduction({len(self)} sequences)"


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
) -> ListReduction:
    """Draws sequences and labels them.

    Args:
      n: How many.
      seed: Same seed, same sequences.

    Returns:
      `n` sequences with labels.

    Raises:
      SettingsError: If `n` is below 1.

    >>> data = generate(1000, seed=0)
    >>> data.tokens.shape, int(data.lengths.min()), int(data.lengths.max())
    ((1000, 10), 2, 10)
    """
    at_least_one("generate", n=n)
    rng = np.random.default_rng(seed)
    operations = rng.integers(0, len(OPERATIONS), n)
    n_digits = rng.integers(1, MAX_DIGITS + 1, n)
    present = np.arange(MAX_DIGITS) < n_digits[:, None]
    digits = np.where(
        present,
        rng.integers(0, 10, (n, MAX_DIGITS)),
        0,
    )
    tokens = np.concatenate([10 + operations[:, None], digits], axis=1).astype(np.int32)
    return ListReduction(tokens, n_digits + 1, _label(operations, digits, n_digits, present))


def splits(
    n_train: int = 100_000, n_valid: int = 10_000, seed: int = 0
) -> tuple[ListReduction, ListReduction]:
    """The paper's training and validation sequences, from independent streams of one seed.

    Args:
      n_train: Training sequences.
      n_valid: Validation sequences.
      seed: Same seed, same sequences.

    Returns:
      `(train, valid)`.

    Raises:
      SettingsError: If a count is below 1.
    """
    train, valid = np.random.SeedSequence(seed).spawn(2)
    return generate(n_train, train), generate(n_valid, valid)


@dataclass(frozen=True)
class Sequences:
    """Instances of one sequence each (`ampjax.ir.instances.Instances`).

    Pumps: `tokens`, shape `()` int32, one message for each token, with the state fields `t` = 0 ... L - 1 and `length` = L; `h0`,
    a row of zeros `[hidden]` float32 with `t` = 0 and `length`; `label`, shape `()` int32, no fields.

    Args:
      data: The sequences.
      hidden: Features of the hidden state.
      whole: Whether the pump `tokens` is ragged, as in the paper's figure 2: one message of L rows, with `length` = L as its only field.

    Raises:
      SettingsError: If `hidden` is below 1.
    """

    data: ListReduction
    hidden: int = 128
    whole: bool = False

    def __post_init__(self) -> None:
        at_least_one("Sequences", hidden=self.hidden)

    def __len__(self) -> int:
        return len(self.data)

    def gather(self, ids: np.ndarray) -> dict[str, Messages]:
        """The messages of the sequences `ids`, by pump.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          By pump, the messages as columns; `Messages.instance` counts positions in `ids`.
        """
        ids = np.asarray(ids, dtype=np.int64)
        lengths = self.data.lengths[ids]
        instance, t = _steps(lengths)
        return {
            "tokens": _token_messages(
                self.data.tokens[ids[instance], t],
                instance,
                t,
                lengths,
                self.whole,
            ),
            "h0": _zeros((self.hidden,), lengths),
            "label": Messages(
                self.data.labels[ids],
                np.arange(len(ids)),
            ),
        }


def plain(data: ListReduction) -> Stacked:
    """Makes instances of one sequence each for `experiments.models.rnn`.

    Args:
      data: The sequences.

    Returns:
      Instances with `tokens` `[t]` and `label` `[]`, int32.
    """
    instance, t = _steps(data.lengths)
    return Stacked({"tokens": Ragged(data.tokens[instance, t], data.lengths), "label": data.labels})


@dataclass(frozen=True)
class Buckets:
    """Instances of `batch_size` sequences of one length each (`ampjax.ir.instances.Instances`).

    Pumps: `tokens`, rows `[batch_size]` int32, one message for each time step, with the state fields `t` and `length`; `h0`, a row of
    zeros `[batch_size, hidden]` float32 with `t` = 0 and `length`; `label`, a row `[batch_size]` int32, no fields.
    The last bucket of a length is filled up with sequences of its own whose label is -1, which the loss must ignore. Buckets
    are numbered by rising length, so instances should be taken in random order.

    Args:
      data: The sequences.
      batch_size: Sequences in a bucket.
      hidden: Features of the hidden state.
      whole: The pump `tokens` is ragged: one message of L rows, with `length` = L alone.
      permutation: `[n]`, the order in which sequences fill buckets; the data's own order if absent.

    Raises:
      SettingsError: If `batch_size` or `hidden` is below 1.
    """

    data: ListReduction
    batch_size: int = 100
    hidden: int = 128
    whole: bool = False
    permutation: np.ndarray | None = field(default=None, repr=False)
    _members: np.ndarray = field(init=False, repr=False)
    _lengths: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        at_least_one("Buckets", batch_size=self.batch_size, hidden=self.hidden)
        if self.permutation is None:
            order = np.arange(len(self.data))
        else:
            order = self.permutation
        members = []
        for length in np.unique(self.data.lengths):
            same = order[self.data.lengths[order] == length]
            padded = np.concatenate([same, np.full(-len(same) % self.batch_size, -1)])
            members.append(padded.reshape(-1, self.batch_size))
        object.__setattr__(self, "_members", np.concatenate(members))
        object.__setattr__(
            self,
            "_lengths",
            self.data.lengths[self._members[:, 0]],
        )

    def __len__(self) -> int:
        return len(self._members)

    @property
    def n_examples(self) -> int:
        """The number of real sequences in all instances, for throughput."""
        return len(self.data)

    def reshuffle(self, rng: np.random.Generator) -> Buckets:
        """Puts the same sequences into newly drawn buckets; this object, which may still be in use, does not change.

        Args:
          rng: Draws.

        Returns:
          A data set of buckets.
        """
        return replace(self, permutation=rng.permutation(len(self.data)))

    def gather(self, ids: np.ndarray) -> dict[str, Messages]:
        """The messages of the buckets `ids`, by pump.

        Args:
          ids: `[n]`, each in `[0, len(self))`.

        Returns:
          By pump, the messages as columns; `Messages.instance` counts positions in `ids`.
        """
        ids = np.asarray(ids, dtype=np.int64)
        lengths = self._lengths[ids]
        instance, t = _steps(lengths)
        tokens, labels = self._rows(ids, instance, t)
        return {
            "tokens": _token_messages(tokens, instance, t, lengths, self.whole),
            "h0": _zeros((self.batch_size, self.hidden), lengths),
            "label": Messages(labels, np.arange(len(ids))),
        }

    def plain(self) -> Stacked:
        """Makes the instances of `experiments.models.rnn`: buckets.

        Returns:
          Instances with `tokens` `[t, batch_size]` and `label` `[batch_size]`, int32.
        """
        tokens, labels = self._rows(
            np.arange(len(self)),
            *_steps(self._lengths),
        )
        return Stacked({"tokens": Ragged(tokens, self._lengths), "label": labels})

    def _rows(
        self, ids: np.ndarray, instance: np.ndarray, t: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all steps of some buckets, and their labels."""
        members = self._members[ids]
        # Padding repeats a real sequence of the same length; only its label says that it does not count.
        real = np.where(members < 0, members[:, :1], members)
        labels = np.where(
            members < 0,
            np.int32(-1),
            self.data.labels[real],
        )
        return self.data.tokens[real[instance], t[:, None]], labels


def _label(
    operations: np.ndarray,
    digits: np.ndarray,
    n_digits: np.ndarray,
    present: np.ndarray,
) -> np.ndarray:
    """The results of all four operations for all lists, then the one asked for. `digits` is zero where not `present`."""
    n_even = (n_digits + 1) // 2
    n_odd = n_digits // 2
    even = digits[:, 0::2].sum(axis=1) / n_even
    odd = digits[:, 1::2].sum(axis=1) / np.maximum(n_odd, 1)
    span = digits.max(axis=1) - np.where(present, digits, 9).min(axis=1)
    results = np.stack(
        [digits.sum(axis=1) / n_digits, even - odd, span, n_digits],
        axis=1,
    )
    chosen = np.take_along_axis(results, operations[:, None], axis=1)[:, 0]
    return (np.rint(chosen) % 10).astype(np.int32)


def _steps(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each token of each sequence, in order: the sequence's position and the time step, each `[sum(lengths)]`."""
    return np.nonzero(np.arange(MAX_LENGTH) < lengths[:, None])  # type: ignore[return-value]


def _token_messages(
    rows: np.ndarray,
    instance: np.ndarray,
    t: np.ndarray,
    lengths: np.ndarray,
    whole: bool,
) -> Messages:
    if whole:
        return Messages(
            rows,
            np.arange(len(lengths)),
            {"length": lengths},
            sizes=lengths,
        )
    return Messages(rows, instance, {"t": t, "length": lengths[instance]})


def _zeros(
    shape: tuple[int, ...],
    lengths: np.ndarray,
) -> Messages:
    rows = np.zeros((len(lengths), *shape), np.float32)
    return Messages(
        rows,
        np.arange(len(lengths)),
        {"t": 0, "length": lengths},
    )
