"""What a run has come to: two runs that did the same have the same outcome, bit for bit."""

from __future__ import annotations

from typing import Any

import ampjax as amp
from ampjax.trace.journal import digest
from ampjax.train.history import History


def outcome(
    trainer: amp.Trainer,
    history: History,
) -> dict[str, Any]:
    """A digest of what nodes have, what control has counted, and what the history tells but for real time.

    Args:
      trainer: The trainer, after its run.
      history: The run's.
    """
    session = trainer.session
    store = session.executor.store
    told = []
    for e in history.epochs:
        told.append(
            [
                e.epoch,
                dict(e.train),
                dict(e.valid),
                e.updates,
                e.dispatches,
                e.messages,
                e.staleness_mean,
            ]
        )
    return {
        "nodes": digest((store.params, store.opt_state, store.accumulators)).hex(),
        "control": session.scheduler.updates.state(),
        "clock": session.position.virtual_ns,
        "epochs": told,
    }
