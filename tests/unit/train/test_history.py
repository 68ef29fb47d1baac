"""Histories know which way metrics are better."""

import math

import pytest

from ampjax.train.history import Epoch, History, best, falls, reaches


@pytest.mark.parametrize(
    "metric",
    [
        "loss",
        "valid_loss",
        "nll",
        "NLL",
        "nll_per_token",
        "mse",
        "mae",
        "rmse",
        "RMSE",
        "perplexity",
        "ppl",
        "wer",
        "word_error_rate",
        "error",
        "cross_entropy",
        "xent",
        "bpc",
        "kl",
        "ce",
        "valNLL",
        "tokenNll",
        "crossEntropy",
        "negative_log_likelihood",
        "neg_elbo",
        "bits_per_char",
        "hinge",
        "misclassified",
        "fid",
        "cost",
    ],
)
def test_metrics_of_which_smaller_values_are_better(metric):
    assert falls(metric)
    assert best([2.0, 1.0, 3.0], metric) == 1.0
    assert reaches(0.9, 1.0, metric) and not reaches(1.1, 1.0, metric)


@pytest.mark.parametrize(
    "metric",
    [
        "accuracy",
        "f1",
        "bleu",
        "auc",
        "recall",
        "mrr",
        "power",
        "answer",
        "r2",
        "werewolf",
        "log_likelihood",
        "elbo",
        "accuracyPerClass",
        "precision",
    ],
)
def test_metrics_of_which_larger_values_are_better(metric):
    assert not falls(metric)
    assert best([2.0, 1.0, 3.0], metric) == 3.0


def test_a_history_takes_the_users_word_for_it():
    numbers = dict.fromkeys(
        ("messages", "dispatches", "updates", "compilations", "staleness_max"), 0
    )
    rates = dict.fromkeys(("train_per_s", "valid_per_s", "seconds", "staleness_mean"), 0.0)
    epochs = []
    for i, v in enumerate([3.0, math.nan, 1.0, 2.0]):
        epochs.append(
            Epoch(
                i,
                {},
                {"score": v, "nll": v},
                **numbers,
                **rates,
            )
        )
    history = History(epochs)
    assert (
        history.best("score"),
        history.best("score", smallest=True),
    ) == (3.0, 1.0)
    assert (
        history.best("nll"),
        history.best("nll", smallest=False),
    ) == (1.0, 3.0)
    assert history.first_to(2.0, "nll").epoch == 2
    assert history.first_to(2.0, "score").epoch == 0
    assert history.first_to(1.5, "score", smallest=True).epoch == 2
