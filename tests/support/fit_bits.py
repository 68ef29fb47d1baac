"""Bits of short fits in every mode, of two checkouts: `python support/fit_bits.py OTHER`, run in `tests/`, says which fits end with other parameters or losses.

Bits differ between processors and versions of JAX, so none are kept: both checkouts fit here, one after the other, each in a process of its own. `--only WORD` compares those whose names
have the word. Takes some minutes.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[2]
MARK = "digests: "

GRAPHS: dict[str, dict[str, Any]] = {
    "sequences": {"min_update_interval": 4},
    "sequences in replicas": {
        "min_update_interval": 3,
        "workers": 2,
        "replica_sync": ("every_k", 2),
    },
    "buckets": {"min_update_interval": 2, "policy": "wavefront", "min_admission": 4},
    "trees": {"min_update_interval": 5, "weights": "stashed"},
    "trees in replicas": {
        "min_update_interval": 5,
        "workers": 3,
        "policy": "one_forward_one_backward",
    },
    "tagger": {"min_update_interval": 6, "policy": "largest", "workers": 2},
    "molecules": {"mode": "pipeline"},
    "molecules, gates apart": {"min_update_interval": 8, "fuse": False},
    "molecules, edge by edge": {"mode": "sync"},
    "questions": {"min_update_interval": 3, "max_staleness": 1},
    "questions, edge by edge": {"min_update_interval": 3, "weights": "estimated"},
    "perceptron": {"min_update_interval": 2, "drop_staler_than": 1},
    "perceptron in copies": {"mode": "pipeline", "workers": 2},
    "permutations": {"min_update_interval": 2, "exact_staleness": 1},
    "pondering": {"min_update_interval": 2, "policy": "backward_first"},
    "experts": {"mode": "sync"},
}
"""By the name of a model that is built by hand: the settings of its fit."""

FUNCTIONS: dict[str, dict[str, Any]] = {
    "listops": {"min_update_interval": 4},
    "stochastic-depth": {"mode": "pipeline"},
    "child-sum-tree-lstm": {"min_update_interval": 4, "gradient": "sum", "group_by_size": 2},
    "hierarchical-rnn": {"mode": "sync"},
}
"""By the name of a model that is a function: the settings of its fit."""

RUNNERS: dict[str, dict[str, Any]] = {
    "rows on servers": {"run_option": "ps"},
    "gathered rows": {"run_option": "ar"},
    "hybrid": {"run_option": "hybrid"},
    "hybrid, without a barrier": {"run_option": "hybrid", "sync": False},
}
"""By name: the configuration of a data-parallel runner."""


def cost(plan: Any) -> Callable[[Any], int]:
    """A machine on which a dispatch takes as long as its rows say, so that schedules are the same everywhere."""
    del plan
    return lambda dispatch: 100 + 7 * dispatch.n_rows


def digest(*trees: Any) -> str:
    """A digest of arrays and numbers, bit for bit.

    Args:
      *trees: Pytrees of them.
    """
    import jax
    import numpy as np

    found = hashlib.sha256()
    for leaf in jax.tree.leaves(trees):
        array = np.asarray(leaf)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:16]


def fit(
    graph: Any,
    data: Any,
    epochs: int,
    **options: Any,
) -> str:
    """Trains in virtual time.

    Args:
      graph: The graph.
      data: Its instances.
      epochs: How often they are trained on.
      **options: Settings.

    Returns:
      The digest of the parameters and losses.
    """
    import optax

    import ampjax as amp

    settings = {"max_active_keys": 5, "max_dispatch_size": 8, "seed": 3, **options}
    trainer = amp.Trainer(
        graph,
        optax.adam(0.01),
        cost=cost,
        **settings,
    )
    history = trainer.fit(data, epochs=epochs, progress=False)
    losses = [epoch.train["loss"] for epoch in history.epochs]
    return digest(trainer.params, losses)


def fit_by_hand(name: str, options: dict[str, Any]) -> str:
    """Trains a model that is built by hand."""
    from support.models import model

    graph, data = model(name)
    return fit(graph, data, 2, **options)


def fit_function(name: str, options: dict[str, Any]) -> str:
    """Trains a model that is a function."""
    import jax

    import ampjax as amp
    from experiments.functions import RECIPES

    module = import_module(f"experiments.models.functions.zoo.{name.replace('-', '_')}")
    generate = import_module(f"experiments.data.generated.{RECIPES[name].data}").generate
    function = getattr(module, name.replace("-", "_"))
    compiled = amp.compile(
        function,
        module.init(jax.random.key(0), 6),
        module.SPEC,
    )
    return fit(
        compiled.graph,
        compiled.data(generate(8, seed=3)),
        1,
        **options,
    )


def run_data_parallel(options: dict[str, Any]) -> str:
    """Makes steps of a loss that reads rows of a table, on two machines."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import ampjax.parallel as px
    from ampjax.cluster.hosts.resources import Machine, Resources

    def loss(params: Any, batch: Any) -> Any:
        rows = params["table"][batch["ids"]]
        return jnp.mean((jnp.tanh(rows @ params["w"]) - batch["y"]) ** 2)

    rng = np.random.default_rng(0)
    table = rng.normal(size=(64, 4)).astype(np.float32)
    params = {
        "table": table,
        "w": np.full(4, 0.5, np.float32),
    }
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:2]))
    )
    losses = []
    with px.get_runner(
        loss, params, optax.adam(0.1), machines, px.ParallaxConfig(**options)
    ) as runner:
        for _ in range(4):
            ids = rng.integers(0, 64, 8)
            outcome = runner.run(
                {
                    "ids": ids,
                    "y": np.ones(8, np.float32),
                }
            )
            losses.append(outcome.loss)
        return digest(runner.params, losses)


def cases() -> dict[str, Callable[[], str]]:
    """By name: makes a fit and gives its digest."""
    found: dict[str, Callable[[], str]] = {}
    for name, options in GRAPHS.items():
        found[f"by hand, {name}"] = functools.partial(fit_by_hand, name, options)
    for name, options in FUNCTIONS.items():
        found[f"function, {name}"] = functools.partial(fit_function, name, options)
    for name, options in RUNNERS.items():
        found[f"data-parallel, {name}"] = functools.partial(run_data_parallel, options)
    return found


def digests_of(checkout: Path, only: str) -> dict[str, str]:
    """The digests of a checkout's fits, made in a process of its own.

    Args:
      checkout: Its folder.
      only: What the names of the fits have.
    """
    path = os.pathsep.join(
        [
            str(checkout),
            str(checkout / "tests"),
        ]
    )
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, __file__, str(checkout), "--digests", "--only", only]
    done = subprocess.run(
        command,
        env=environment,
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    return json.loads(line.removeprefix(MARK))


def main() -> None:
    """Compares this checkout with another one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("other", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--digests", action="store_true", help="print digests of the checkout that is on the path"
    )
    options = parser.parse_args()
    if options.digests:
        import ampjax

        assert Path(ampjax.__file__).is_relative_to(options.other), ampjax.__file__
        found = {}
        for name, run in cases().items():
            if options.only in name:
                found[name] = run()
                print(name, found[name], file=sys.stderr)
        print(MARK + json.dumps(found))
        return
    ours = digests_of(HERE, options.only)
    theirs = digests_of(options.other.resolve(), options.only)
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    print("\n".join([f"{len(ours)} fits, {len(differing)} of them with other bits", *differing]))
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
