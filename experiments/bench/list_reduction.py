"""List reduction: ours against the same model in one `jax.jit`, padded, and compiled once for each length."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from experiments.bench.common import Entry, Result, compare

HERE = "experiments.bench"


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """List reduction in buckets of 100: training and inference throughput, medians, programs in turn.

    Args:
      passes: Measured passes of each program.
      n_train: Training sequences in a pass.
      n_valid: Validation sequences in a pass.
      max_active_keys: Ours: buckets in flight; one program for each number.
      min_update_interval: Ours: gradient rows before an update; by default the experiment's choice.
      workers: Ours: workers.
      to_target: Train each program up to this validation accuracy first (13 passes at most), and measure the time.
      json: File to which a JSON object is appended for each program.
    """

    passes: int = 5
    n_train: int = 20_000
    n_valid: int = 10_000
    max_active_keys: tuple[int, ...] = (16, 4, 1)
    min_update_interval: int | None = None
    workers: int = 1
    to_target: float | None = None
    json: Path | None = None


def main(options: BenchOptions, console: Console | None = None) -> list[Result]:
    """Prints the comparison.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    epochs = 13
    data = {"n_train": options.n_train, "n_valid": options.n_valid, "epochs": epochs}
    ours = [
        Entry(
            "ampjax",
            f"max_active_keys {keys}",
            f"{HERE}.ours:Ours",
            {
                **data,
                "experiment": "list-reduction",
                "policy": "largest",
                "max_dispatch_size": 8,
                "max_active_keys": keys,
                "min_update_interval": options.min_update_interval,
                "workers": options.workers,
            },
            {"NPROC": None, "JAX_NUM_CPU_DEVICES": str(options.workers)},
        )
        for keys in options.max_active_keys
    ]
    peers = [
        Entry(f"jax jit {name}", "batch 100", f"{HERE}.peers.list_reduction_jax:{function}", data, {"NPROC": None})
        for name, function in (("padded", "padded"), ("per length", "per_length"))
    ]
    return compare("list-reduction", [*ours, *peers], options.passes, options.to_target, epochs, options.json, console)
