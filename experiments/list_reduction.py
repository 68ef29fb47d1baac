"""List reduction with a variable-length RNN (AMPNet, section 6 and B.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import optax

from ampjax.frontend.compile_model import Compiled
from ampjax.sparse import Table
from ampjax.train.history import History
from experiments.common import Options, Task, require_positive, run
from experiments.data.list_reduction import Buckets, ListReduction, plain, splits
from experiments.intervals import cosine, set_options, updates_per_instance
from experiments.models.rnn import list_reduction_rnn

MEAN_LENGTH = 6
"""Tokens of an average sequence: `linear1` and `embed` get a gradient row for each, `linear2` one for a sequence."""


@dataclass(frozen=True, kw_only=True)
class ListReductionOptions(Options):
    """List reduction: buckets of 100 sequences of one length, 100,000 for training, Adam with cosine decay.

    A gradient row is a message: one token of a whole bucket, so a bucket gives 2 to 10 rows. `linear2` sees one message for each
    bucket, so its interval is a sixth of the others', and all nodes update about equally often.

    Args:
      single: Single sequences in place of buckets.
      batch_size: Sequences in a bucket.
      n_train: Training sequences.
      n_valid: Validation sequences.
      hidden: Features of embedding and hidden state.
      table: Keep the embedding in a table in host memory, where it is updated, and not in a node's parameters on a device.
      learning_rate: The initial learning rate of Adam; it falls to 0 along a cosine over all epochs.
      epochs: The most epochs; the learning rate decays over as many.
      policy: The policy by which a worker chooses its next messages. `backward_first` with small dispatches of the oldest instances keeps staleness near 2 updates even with 16 buckets in flight; larger dispatches train more examples a second, but need more epochs.
      max_dispatch_size: The most messages in one dispatch.
      replica_sync: How replicas are kept together: `epoch`, `none`, `every_k:K`, `message:K`, or `auto`: at the end of each epoch for two
        replicas, every 10 updates for more, which drift apart within an epoch otherwise.
    """

    single: bool = False
    batch_size: int = 100
    n_train: int = 100_000
    n_valid: int = 10_000
    hidden: int = 128
    table: bool = False
    learning_rate: float | None = None
    epochs: int = 13
    policy: str = "backward_first"
    max_dispatch_size: int = 4
    replica_sync: str = "auto"


def main(options: ListReductionOptions) -> list[History]:
    """Trains; one history per seed.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    return run("list-reduction", options, tasks(options))


def tasks(options: ListReductionOptions) -> Callable[[int], Task]:
    """A function from a seed to model, data, settings and optimizer.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    if options.learning_rate is not None:
        require_positive("Adam's default here is 2e-3.", learning_rate=options.learning_rate)
    if options.replica_sync == "auto":
        apart = most_copies(options) > 2 and options.mode != "batch"
        options = replace(options, replica_sync="every_k:10" if apart else "epoch")
    interval, peak = defaults(options)

    def task(seed: int) -> Task:
        settings = options.settings(seed, interval)
        train, valid = (
            instances(options, part) for part in splits(options.n_train, options.n_valid, seed)
        )
        batch = None if options.single else options.batch_size
        several = min(2, options.copies)
        shares = {
            "embed": several,
            "linear1": min(2, most_copies(options)),
            "linear2": MEAN_LENGTH * several,
        }

        def model(table: Table | None = None) -> Compiled:
            several = {"replicas": options.replicas, "copies": options.copies}
            made = list_reduction_rnn(
                options.hidden,
                batch,
                **several,
                table=table,
                seed=seed,
            )
            at_least = settings.min_update_interval
            set_options(
                made.graph,
                lambda node: {
                    "min_update_interval": max(1, at_least // shares[node.split("/")[0]])
                },
            )
            return made

        compiled = model()
        updates = updates_per_instance(compiled.graph, compiled.data(train), settings)
        rate = options.learning_rate or peak
        total = len(train) * options.epochs
        transforms = {node: optax.adam(cosine(rate, own * total)) for node, own in updates.items()}
        if options.table:
            tx = next(tx for node, tx in transforms.items() if node.startswith("embed"))
            compiled = model(Table(np.asarray(compiled.initial_params["embed"]), tx))
            transforms = {
                node: tx for node, tx in transforms.items() if not node.startswith("embed")
            }
        set_options(
            compiled.graph,
            lambda node: {"tx": transforms[node]} if node in transforms else {},
        )
        return Task(
            compiled.graph,
            compiled.data(train),
            compiled.data(valid),
            settings,
        )

    return task


def instances(options: ListReductionOptions, data: ListReduction) -> Any:
    """Buckets, or single sequences, as the model takes them."""
    return plain(data) if options.single else Buckets(data, options.batch_size)


def defaults(options: ListReductionOptions) -> tuple[int, float]:
    """The interval and the learning rate where the user gives none.

    An update should see about as many sequences as a synchronous step: the interval is a bucket's worth of rows, and a few of them
    where many buckets are in flight, since each gradient is then as stale as there are updates in the time that a bucket takes.
    """
    rows = MEAN_LENGTH * (100 if options.single else 1)
    return rows, 3e-3 if most_copies(options) > 2 else 2e-3


def most_copies(options: ListReductionOptions) -> int:
    """Copies of `linear1`, the node that has most."""
    return options.replicas * options.copies
