"""What freed memory costs: programs of whole batches, and the engine, with ampjax's settings of glibc's allocator and without."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import ampjax as amp
import ampjax.parallel as px
from ampjax.errors import SettingsError
from ampjax.utils.freed_memory import SWITCH
from ampjax.utils.text_tables import compact
from experiments.bench.children import in_a_process
from experiments.bench.memory import resident_bytes
from experiments.common import cache_compilations
from experiments.records import append

H = 256
WORDS = 5000
STEPS = 60
BATCH = 64
FIGURES = ("seconds", "processor seconds", "page faults", "resident MB")
"""The medians of what is measured of a pass; the last one at the end."""


@dataclass(frozen=True, kw_only=True)
class PagesBench:
    """Seconds, page faults and resident memory with freed memory kept and without, by processes in turn.

    Args:
      passes: Measured passes of each process.
      processes: Processes of each kind.
      json: File to which a JSON object is appended for each process.
    """

    passes: int = 8
    processes: int = 3
    json: Path | None = None


def main(
    options: PagesBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives what was measured.

    Raises:
      SettingsError: If an option is below 1.
      RuntimeError: If a measured process fails; its errors are on the terminal.
    """
    if min(options.passes, options.processes) < 1:
        raise SettingsError(
            "bench pages, options", "numbers of at least 1", f"{options}", "Change the option."
        )
    console = console or Console(highlight=False)
    rows = []
    for program in PROGRAMS:
        table = compact("kept", "not kept", "ratio", title=program)
        of_program: dict[bool, list[dict[str, Any]]] = {
            True: [],
            False: [],
        }
        for turn in range(2 * options.processes):
            kept = turn % 4 in (0, 3)
            environment = {SWITCH: None if kept else "0"}
            row = in_a_process(
                measured, {"program": program, "passes": options.passes}, environment
            )
            of_program[kept].append(row)
            rows.append({"bench": "pages", "program": program, "kept": kept, **row})
        for name in FIGURES:
            with_it, without = (
                statistics.median(row[name] for row in of_program[kept]) for kept in (True, False)
            )
            ratio = f"{with_it / without:.2f}" if without else "-"
            table.add_row(name, f"{with_it:.3g}", f"{without:.3g}", ratio)
        console.print(table)
    append(options.json, rows)
    return rows


def measured(program: str, passes: int) -> dict[str, float]:
    """Runs a program here."""
    cache_compilations()
    run = PROGRAMS[program]()
    for _ in range(3):
        run()
    each = []
    for _ in range(passes):
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        each.append((seconds, spent, after.ru_minflt - before.ru_minflt))
    medians = (statistics.median(values) for values in zip(*each, strict=True))
    return dict(
        zip(
            FIGURES,
            (*medians, resident_bytes() / 1e6),
            strict=True,
        )
    )


def whole_batch() -> Callable[[], Any]:
    """A language model in plain JAX: 64 sentences of 60 words a step, 77 MB of logits; four steps a pass."""
    params = _params()
    ids = _rng().integers(0, WORDS, (STEPS + 1, BATCH))
    tx = optax.sgd(1e-3)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        grads = jax.grad(_loss)(params, {"ids": ids})
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    held = [(params, tx.init(params))]

    def run() -> None:
        for _ in range(4):
            held[0] = step(*held[0])
        jax.block_until_ready(held[0])

    return run


def runner() -> Callable[[], Any]:
    """The same model by `px.get_runner`, its embedding a table."""
    batches = []
    for seed in range(4):
        batches.append({"ids": _rng(seed).integers(0, WORDS, (BATCH, STEPS + 1))})

    def loss(params, batch):
        return _loss(params, {"ids": batch["ids"].T})

    runner = px.get_runner(loss, _params(), optax.sgd(1e-3))

    def run() -> None:
        for batch in batches:
            runner.run(batch)

    return run


def engine() -> Callable[[], Any]:
    """List reduction's RNN as messages: 2,000 sequences a pass, 256 in flight."""

    def model(params: Any, example: Any) -> jax.Array:
        def step(
            h: jax.Array,
            token: jax.Array,
        ) -> tuple[jax.Array, None]:
            return jnp.tanh(jnp.concatenate([params["embed"][token], h]) @ params["cell"]), None

        h, _ = amp.scan(
            step,
            jnp.zeros(128),
            example["tokens"],
        )
        return optax.softmax_cross_entropy_with_integer_labels(
            h @ params["output"], example["label"]
        )

    rng = _rng()
    shapes = {
        "embed": (14, 128),
        "cell": (256, 128),
        "output": (128, 10),
    }
    params = {}
    for name, shape in shapes.items():
        params[name] = 0.1 * rng.normal(size=shape).astype(np.float32)
    tokens = []
    for _ in range(2000):
        tokens.append(rng.integers(0, 14, rng.integers(2, 12)).astype(np.int32))
    compiled = amp.compile(
        model,
        params,
        {"tokens": "int32[t]", "label": "int32[]"},
    )
    data = compiled.data([{"tokens": each, "label": each[0] % 10} for each in tokens])
    trainer = amp.Trainer(
        compiled.graph, optax.adam(1e-3), max_active_keys=256, min_update_interval=100
    )
    return lambda: trainer.fit(data, progress=False)


PROGRAMS = {
    "whole batches in plain JAX": whole_batch,
    "whole batches by a runner": runner,
    "messages": engine,
}


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _params() -> dict[str, np.ndarray]:
    shapes = {
        "embed": (WORDS, H),
        "cell": (2 * H, 4 * H),
        "output": (H, WORDS),
    }
    result = {}
    for name, shape in shapes.items():
        result[name] = 0.1 * _rng().normal(size=shape).astype(np.float32)
    return result


def _loss(params: Any, batch: Any) -> jax.Array:
    """The mean loss of the next word, `ids` being `[words, batch]`."""

    def step(carry: Any, x: jax.Array) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(
            jnp.concatenate([x, h], -1) @ params["cell"],
            4,
            -1,
        )
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    ids = batch["ids"]
    start = jnp.zeros((ids.shape[1], H))
    _, hidden = jax.lax.scan(
        step,
        (start, start),
        params["embed"][ids[:-1]],
    )
    return optax.softmax_cross_entropy_with_integer_labels(
        hidden @ params["output"], ids[1:]
    ).mean()
