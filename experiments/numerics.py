"""Whether compiled float32 computes what float64 does operation by operation, model by model, with XLA's fusions for CPUs and without.

On CPUs some jaxlibs compile reductions into kernels of YNNPACK that give wrong numbers; a flag switches these fusions off. It is read when JAX
starts, so each of its values gets a process of its own.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.numerics.differences import compare
from ampjax.utils.text_tables import compact
from experiments.bench.children import in_a_process
from experiments.fusions import VALUES, Fusions, flags_of
from experiments.records import append
from experiments.subjects import NAMES, Found, subject


@dataclass(frozen=True, kw_only=True)
class NumericsOptions:
    """Loss and gradients of every model: compiled in float32, against operation by operation in float64.

    A row tells the largest difference, relative to the largest number of each parameter's gradient. Rounding makes some 1e-7 to 1e-5 of it; more for
    networks with many ReLUs, of which a few inputs lie within rounding of 0.

    Args:
      models: Which models; all by default.
      fusions: Which of XLA's fusions of the kind YNN: jaxlib's own choice (`unguarded`), without those of reductions (`no-reduce`), none, or
        products alone (`individual-dot`). Each in a process of its own.
      small: Few features: seconds, for a test.
      seed: Of parameters and data.
      json: File to which a JSON object is appended for each model and choice.
    """

    models: tuple[str, ...] = tuple(NAMES)
    fusions: tuple[Fusions, ...] = tuple(VALUES)
    small: bool = False
    seed: int = 0
    json: Path | None = None


def main(
    options: NumericsOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives a record for each model and choice of fusions.

    Raises:
      SettingsError: If there is no such model.
    """
    for name in options.models:
        if name not in NAMES:
            raise SettingsError(
                "--models", f"some of {list(NAMES)}", f"`{name}`", "Choose among these."
            )
    records = []
    with TemporaryDirectory() as folder:
        given = {
            "models": options.models,
            "small": options.small,
            "seed": options.seed,
            "folder": folder,
        }
        in_a_process(keep_exact, given, {"XLA_FLAGS": flags_of("none")})
        for fusions in options.fusions:
            found = in_a_process(measure, given, {"XLA_FLAGS": flags_of(fusions)})
            found = [{"experiment": "numerics", "fusions": fusions, **record} for record in found]
            append(options.json, found)
            records += found
    (console or Console(highlight=False)).print(_table(options, records))
    return records


def keep_exact(
    models: Sequence[str],
    small: bool,
    seed: int,
    folder: str,
) -> None:
    """Computes each model operation by operation in float64, and leaves the results as files for `measure`; arguments as there."""
    for name in models:
        exact = subject(name, small, seed).exact()
        (Path(folder) / name).write_bytes(pickle.dumps(exact))


def measure(
    models: Sequence[str],
    small: bool,
    seed: int,
    folder: str,
) -> list[dict[str, Any]]:
    """A record for each model, compiled with the fusions of this process.

    Args:
      models: Names of `subjects.NAMES`.
      small: Few features.
      seed: Of parameters and data.
      folder: Where `keep_exact` has left what is right.

    Returns:
      Records with `model`, `loss` and `gradient` (relative differences), `parameter` (whose gradient differs most), and `jax`.
    """
    records = []
    for name in models:
        right = pickle.loads((Path(folder) / name).read_bytes())
        loss, gradient, parameter = difference(
            subject(name, small, seed).compiled(),
            right,
        )
        found = {"model": name, "loss": loss, "gradient": gradient, "parameter": parameter}
        records.append({**found, "jax": jax.__version__})
    return records


def difference(
    got: Found,
    want: Found,
) -> tuple[float, float, str]:
    """The relative difference of losses, the largest one of gradients, and whose gradient that is; what is not finite counts as infinite."""
    apart = abs(got[0] - want[0]) / abs(want[0])
    node, path, worst = max(
        compare(got[1], want[1]),
        key=lambda found: found[2],
    )
    return apart if apart < float("inf") else float("inf"), worst, f"{node}{path}"


def _table(
    options: NumericsOptions,
    records: Sequence[Mapping[str, Any]],
) -> Any:
    """A row for each model: the larger difference, of loss and gradients, by choice of fusions."""
    table = compact("model", *options.fusions)
    by = {}
    for record in records:
        by[(record["model"], record["fusions"])] = max(
            record["loss"],
            record["gradient"],
        )
    for name in options.models:
        table.add_row(name, *(f"{by[name, fusions]:.1e}" for fusions in options.fusions))
    return table
