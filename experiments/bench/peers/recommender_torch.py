"""DLRM in PyTorch: bags of embeddings with sparse gradients, under torch's Adagrad or the row-wise one of DLRM's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from experiments.bench.peers.torch_program import Tensor, tensors

EPS = 1e-8


class RecommenderTorch:
    """A `measure.Program`.

    Args:
      params: Tables by name, `[rows, features]`, and `layers`, lists of weights and biases.
      tables: Names of tables; a batch has the ids of each under this name, `[n, ids]`.
      learning_rate: Of all parameters.
      is_rowwise: Whether a row of a table has one accumulator, or each number of it.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        tables: Sequence[str],
        learning_rate: float,
        is_rowwise: bool,
    ):
        self.names = tables
        self.rate = learning_rate
        self.bags = {}
        for name in tables:
            weight = torch.tensor(np.array(params[name]))
            self.bags[name] = torch.nn.EmbeddingBag.from_pretrained(
                weight,
                freeze=False,
                mode="sum",
                sparse=True,
            )
        self.layers = tensors(params["layers"])
        own = [each for layers in self.layers.values() for layer in layers for each in layer]
        weights = [bag.weight for bag in self.bags.values()]
        self.sums = [torch.zeros(len(weight)) for weight in weights] if is_rowwise else []
        dense = own if is_rowwise else own + weights
        self.optimizer = torch.optim.Adagrad(
            dense,
            lr=learning_rate,
            eps=EPS,
        )

    def step(self, batch: Mapping[str, np.ndarray]) -> Tensor:
        """One step."""
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        for bag in self.bags.values():
            bag.weight.grad = None
        loss.backward()
        self.optimizer.step()
        for bag, total in zip(
            self.bags.values(),
            self.sums,
            strict=False,
        ):
            self._step_of_rows(bag.weight, total)
        return loss.detach()

    def _step_of_rows(self, weight: Tensor, total: Tensor) -> None:
        """Row-wise Adagrad as in `optim/rwsadagrad.py` of DLRM."""
        with torch.no_grad():
            grads = weight.grad.coalesce()
            ids = grads.indices()[0]
            rows = grads.values()
            total.index_add_(0, ids, rows.square().mean(1))
            roots = total[ids].sqrt() + EPS
            weight.index_add_(
                0,
                ids,
                rows / roots[:, None],
                alpha=-self.rate,
            )

    def loss(self, batch: Mapping[str, np.ndarray]) -> Tensor:
        """The mean logistic loss."""
        bottom = self._network(
            "bottom",
            torch.from_numpy(batch["dense"]),
        )
        features = [torch.relu(bottom)]
        for name in self.names:
            features.append(self.bags[name](torch.from_numpy(batch[name])))
        stacked = torch.stack(features, 1)
        products = stacked @ stacked.transpose(1, 2)
        n = len(features)
        first, second = torch.tril_indices(n, n, -1)
        joined = torch.cat(
            [features[0], products[:, first, second]],
            1,
        )
        scores = self._network("top", joined)[:, 0]
        labels = torch.from_numpy(batch["label"])
        return F.binary_cross_entropy_with_logits(
            scores,
            labels,
        )

    def _network(self, name: str, x: Tensor) -> Tensor:
        for number, (weight, bias) in enumerate(self.layers[name]):
            x = (torch.relu(x) if number else x) @ weight + bias
        return x

    def wait(self) -> None:
        """Returns at once: a step of torch has ended when the call returns."""
