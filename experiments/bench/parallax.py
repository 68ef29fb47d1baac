"""Hybrid data parallelism beside what plain JAX does: a large language model, one large table, and models without sparse variables."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import ampjax.parallel as px
from ampjax.parallel.planning.compiled_collectives import Collective, collectives
from ampjax.parallel.steps.synchronous_steps import DenseStep
from ampjax.utils.text_tables import compact
from experiments.bench import towers
from experiments.data import zipf
from experiments.models import lm
from experiments.parallax.measure import Program, Turns, seconds_of, write_json
from experiments.parallax.programs import Ours, Plain, machines, make, processes
from experiments.parallax.workloads import Sizes, Workload, workload

TURN = 10
"""Steps of a program on the table before the other has its turn."""

What = Literal[
    "lm",
    "table",
    "towers",
    "processes",
    "workers",
    "workers-lm",
    "ahead",
    "ahead-lm",
    "resnet",
    "inception",
]


@dataclass(frozen=True, kw_only=True)
class ParallaxBench:
    """Compares the time of a step with plain JAX.

    `lm`: hybrid over a dense AllReduce by pmap, an LSTM language model with a full embedding table, SGD; one program after the other, for
    they need 10 GB each. `table`: a step on some rows of a table over a dense step, one device. `towers`: a step on two tables beside plain
    JAX that updates touched rows by hand (`by hand` in place of `plain`), with the memory that either needs. `processes`: the same step with servers in
    processes of their own over one with servers in this process, which stands in the place of plain JAX. `workers`, `workers-lm`: replicas
    and as many servers in processes of their own over all in this one, for the table and for lm; `ahead`, `ahead-lm`: such processes that get the
    next batch while they compute this one (`run(batch, following=...)`) over such that do not, in turns of ten steps. Name these four, they are
    not among the usual ones. `resnet`, `inception`: full depth, small images, in turn; and whether both programs hold the same collectives.

    Args:
      what: Which comparisons.
      vocabulary: Rows of lm's embedding.
      classes: Rows of its softmax matrix.
      units: Features of its embedding and LSTM.
      samples: Classes drawn for its softmax.
      batch: Sequences of a replica's part of a batch.
      words: Of a sequence.
      rows: Of the table.
      width: Numbers in a row of the table.
      ids: That a step on the table reads.
      tower_rows: Rows of each of the two tables of `towers`, `width` numbers each.
      tower_ids: Ids of an example in each of them.
      tower_batch: Examples of a step.
      servers: Server processes.
      pixels: Height and width of images; Inception takes 75 at least.
      images: Images of a replica's part of a batch.
      replicas: Replicas, on one machine.
      steps: Steps of each program that are timed; a tenth of them for dense steps of lm, a third as many turns of ten for table and `ahead`.
      json: File to which a JSON object is appended for each comparison.
    """

    what: tuple[What, ...] = (
        "lm",
        "table",
        "towers",
        "processes",
        "resnet",
        "inception",
    )
    vocabulary: int = 793_470
    classes: int = 50_000
    units: int = 512
    samples: int = 1024
    batch: int = 32
    words: int = 20
    rows: int = 1_000_000
    width: int = 64
    ids: int = 800
    tower_rows: int = 500_000
    tower_ids: int = 64
    tower_batch: int = 512
    servers: int = 2
    pixels: int = 32
    images: int = 8
    replicas: int = 2
    steps: int = 30
    json: Path | None = None

    @property
    def workers(self) -> int:
        """Devices that are needed."""
        return self.replicas


@dataclass(frozen=True)
class Result:
    """A comparison.

    Args:
      what: Of what.
      ours: Seconds of our step, median.
      plain: Seconds of the plain step.
      same_collectives: Whether both compiled programs hold the same collectives; None where that is no question.
      wanted: The ratio that is wanted at least; 0 where none is.
      peaks: Bytes of resident memory that a process with our program needs at most, and one with the plain one; None where not measured.
    """

    what: str
    ours: float
    plain: float
    wanted: float
    same_collectives: bool | None = None
    peaks: tuple[int, int] | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast ours is."""
        return self.plain / self.ours


def main(
    options: ParallaxBench,
    console: Console | None = None,
) -> list[Result]:
    """Prints the table; gives its rows.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    make_results: Mapping[str, Callable[[ParallaxBench], Iterable[Result]]] = {
        "lm": lambda options: [language_model(options)],
        "table": lambda options: [large_table(options)],
        "towers": two_towers,
        "processes": lambda options: [server_processes(options)],
        "workers": lambda options: [workers(options)],
        "workers-lm": lambda options: [workers_lm(options)],
        "ahead": lambda options: [
            ahead(f"{options.ids} of {options.rows} rows", _table(options, 4 * TURN), options)
        ],
        "ahead-lm": lambda options: [ahead("lm", _language_model(options), options)],
        "resnet": lambda options: [images("resnet", options)],
        "inception": lambda options: [images("inception", options)],
    }
    results = []
    for what in options.what:
        for result in make_results[what](options):
            results.append(result)
    table = compact(
        "what",
        "ours\nms",
        "plain\nms",
        "times\nas fast",
        "wanted",
        "same\ncollectives",
        "peak, MB\nours, plain",
    )
    for r in results:
        if r.same_collectives is None:
            same = ""
        elif r.same_collectives:
            same = "yes"
        else:
            same = "NO"
        table.add_row(
            r.what,
            f"{1e3 * r.ours:.3g}",
            f"{1e3 * r.plain:.3g}",
            f"{r.ratio:.2f}",
            f"{r.wanted:g}" if r.wanted else "",
            same,
            ", ".join(f"{peak / 1e6:,.0f}" for peak in r.peaks or ()),
        )
    (console or Console(highlight=False)).print(table)
    write_json(
        options.json,
        "bench-parallax",
        [vars(r) | {"ratio": r.ratio} for r in results],
    )
    return results


def language_model(options: ParallaxBench) -> Result:
    """Hybrid over a dense AllReduce."""
    resources = machines(1, options.replicas)

    def run(way: str, n: int) -> float:
        # Parameters of gigabytes: a program has its own, and the first ones go.
        work = _language_model(options)
        batches = work.batches
        program = make(work, way, resources)
        seconds_of(
            program, batches[: len(batches) if way == "hybrid" else 1]
        )  # as many shapes as there are
        return statistics.median(seconds_of(program, [batches[i % len(batches)]]) for i in range(n))

    plain = run("pmap", max(1, options.steps // 10))
    gc.collect()
    return Result(f"lm, {options.replicas} replicas", run("hybrid", options.steps), plain, 6.0)


def large_table(options: ParallaxBench) -> Result:
    """A step that reads some rows of a table, by a runner on one device, over a jitted dense step with donated parameters.

    Several steps a turn, on rows that the turn before has driven from the caches: nobody trains one step this way and the next one the other.
    """
    work = _table(options, 4 * TURN)
    sparse = Ours(
        px.get_runner(
            work.loss,
            work.params,
            work.tx,
            machines(1, 1),
        )
    )
    programs = {
        "ours": sparse,
        "plain": Jitted(work.loss, work.params, work.tx),
    }
    timings = Turns(programs, work.batches).run(
        max(1, options.steps // 3),
        TURN,
    )
    return Result(
        f"{options.ids} of {options.rows} rows",
        timings["ours"].median,
        timings["plain"].median,
        40.0,
    )


def two_towers(options: ParallaxBench) -> Iterable[Result]:
    """A step on two tables beside plain JAX that updates touched rows by hand, for two optimizers, on one device and on all replicas."""
    rows = options.tower_rows
    ids = options.tower_ids
    size = options.tower_batch
    data = towers.batches(8, size, ids, rows)
    for optimizer in towers.OPTIMIZERS:
        for devices in sorted({1, options.replicas}):
            model = towers.Model(optimizer, rows, options.width, devices)
            programs: dict[str, Program] = {way: towers.make(way, model) for way in towers.WAYS}
            timings = Turns(programs, data).run(
                max(1, options.steps // 4),
                4,
            )
            del programs  # before others need as much memory
            gc.collect()
            peaks = {}
            for way in towers.WAYS:
                peaks[way] = towers.peak_bytes(way, model, size, ids)
            for way in towers.WAYS[:-1]:
                yield Result(
                    f"towers, {optimizer}, {way}, {devices} {'replicas' if devices > 1 else 'replica'}",
                    timings[way].median, timings["by hand"].median, 1.0, peaks=(peaks[way], peaks["by hand"]),
                )  # fmt: skip


def server_processes(options: ParallaxBench) -> Result:
    """A step that reads some rows of a table, one device: servers in processes of their own over servers in this one."""
    work = _table(options)
    resources = px.Resources((px.Machine("here", machines(1, 1).devices, options.servers),))
    runners = {
        name: px.get_runner(
            work.loss, work.params, work.tx, resources,
            px.ParallaxConfig(server_processes=name == "ours", partitions=options.servers),
        )
        for name in ("ours", "plain")
    }  # fmt: skip
    with runners["ours"]:
        timings = Turns({name: Ours(own) for name, own in runners.items()}, work.batches).run(
            options.steps, 1
        )
        both = runners["ours"].params["table"], runners["plain"].params["table"]
    assert (both[0] == both[1]).all()  # the same bits
    what = f"processes: {options.servers}, {options.ids} of {options.rows} rows"
    return Result(
        what,
        timings["ours"].median,
        timings["plain"].median,
        0.0,
    )


def workers(options: ParallaxBench) -> Result:
    """A step that reads some rows of a table: replicas and servers in processes of their own over all in this process."""
    what = f"workers: {options.replicas}, {options.ids} of {options.rows} rows"
    return _in_processes(what, _table(options), options)


def workers_lm(options: ParallaxBench) -> Result:
    """A step of the language model, likewise."""
    return _in_processes(f"workers: {options.replicas}, lm", _language_model(options), options)


def _in_processes(what: str, work: Workload, options: ParallaxBench) -> Result:
    """As many machines as replicas, each with a server, in processes over in this process; in turn."""
    there = make(work, "+HYB", processes(options.replicas, 1))
    here = make(work, "+HYB", machines(options.replicas, 1))
    assert isinstance(there, Ours)
    with there.runner:
        timings = Turns({"ours": there, "plain": here}, work.batches).run(
            options.steps,
            1,
        )
        same = jax.tree.map(np.array_equal, there.params, here.params)
        assert options.replicas > 2 or all(
            jax.tree.leaves(same)
        )  # of more than two, sums go in another order
    return Result(
        what,
        timings["ours"].median,
        timings["plain"].median,
        0.0,
    )


def ahead(what: str, work: Workload, options: ParallaxBench) -> Result:
    """Steps that know the next batch over steps that do not; each program has processes of its own."""
    without, knowing = (
        make(work, "+HYB", processes(options.replicas, 1), table_mode="lazy") for _ in range(2)
    )
    assert isinstance(without, Ours) and isinstance(knowing, Ours)
    programs = {"ours": Knowing(knowing, work.batches), "plain": without}
    with without.runner, knowing.runner:
        timings = Turns(programs, work.batches).run(
            max(1, options.steps // 3),
            TURN,
        )
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, knowing.params, without.params)))
    return Result(
        f"ahead: {options.replicas}, {what}", timings["ours"].median, timings["plain"].median, 0.0
    )


class Knowing:
    """A program that takes batches in a circle, and so knows the next one.

    Args:
      program: The program.
      batches: The circle.
    """

    def __init__(self, program: Ours, batches: Sequence[Any]):
        self._program = program
        self._next = dict(
            zip(
                map(id, batches),
                (*batches[1:], batches[0]),
                strict=True,
            )
        )

    def step(self, batch: Any) -> Any:
        """One step."""
        return self._program.step(batch, self._next[id(batch)])

    def wait(self) -> None:
        """Until the last step has ended."""
        self._program.wait()


def _language_model(options: ParallaxBench) -> Workload:
    config = lm.Config(
        options.vocabulary, options.classes, options.units, options.units, None, options.samples, options.batch,
        options.words, dropout=0.0,
    )  # fmt: skip
    batches = []
    for seed in range(4):
        batches.append(
            _batch(
                config,
                options.replicas * config.batch,
                seed,
            )
        )
    return Workload(
        "lm",
        lm.make_loss(config),
        lm.init(config),
        optax.sgd(0.1),
        batches,
    )


def _table(options: ParallaxBench, n_batches: int = 4) -> Workload:
    """A large table of which a step reads some rows."""
    rng = np.random.default_rng(0)
    params = {"table": rng.normal(size=(options.rows, options.width)).astype(np.float32)}
    batches = []
    for _ in range(n_batches):
        batches.append({"ids": rng.integers(0, options.rows, options.ids, np.int32)})

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.square(params["table"][batch["ids"]]).sum()

    return Workload("table", loss, params, optax.sgd(0.1), batches)


def images(model: Literal["resnet", "inception"], options: ParallaxBench) -> Result:
    """A model without sparse variables: the same collectives, and steps in turn."""
    sizes = Sizes(images=options.images, pixels=options.pixels)
    work = workload(model, options.replicas, sizes, 2)
    resources = machines(1, options.replicas)
    ours = make(work, "hybrid", resources)
    plain = make(work, "pmap", resources)
    assert isinstance(ours, Ours) and isinstance(plain, Plain)
    timings = Turns({"ours": ours, "plain": plain}, work.batches).run(
        options.steps,
        1,
    )
    step = ours.runner.step
    assert isinstance(step, DenseStep)  # no variable is sparse
    same = of_program(step.program(), step.last_shapes) == of_program(
        plain.program, plain.arguments(work.batches[0])
    )
    return Result(
        f"{model}, {options.replicas} replicas",
        timings["ours"].median,
        timings["plain"].median,
        0.95,
        same,
    )


class Jitted:
    """A step on one device as one writes it by hand; parameters are donated."""

    def __init__(
        self,
        loss: Callable[[Any, Any], jax.Array],
        params: Any,
        tx: optax.GradientTransformation,
    ):
        def step(
            params: Any,
            state: Any,
            batch: Any,
        ) -> tuple[Any, Any, jax.Array]:
            value, grads = jax.value_and_grad(loss)(params, batch)
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state, value

        self._step = jax.jit(step, donate_argnums=(0, 1))
        self._params = jax.tree.map(jnp.array, params)
        self._state = tx.init(self._params)

    def step(self, batch: Any) -> jax.Array:
        """One step; gives the loss."""
        self._params, self._state, loss = self._step(
            self._params,
            self._state,
            batch,
        )
        return loss

    def wait(self) -> None:
        """Until the parameters are there."""
        jax.block_until_ready(self._params)


def of_program(program: Any, arguments: Any) -> list[Collective]:
    """The collectives of a pmapped program, compiled."""
    return collectives(program.lower(*arguments).compile().as_text())


def _batch(
    config: lm.Config,
    rows: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Inputs from the whole vocabulary, targets from the classes."""
    size = rows * config.steps
    shape = (rows, config.steps)
    return {
        "inputs": zipf.tokens(size, config.vocabulary, seed=seed).reshape(shape),
        "targets": zipf.tokens(size, config.n_classes, seed=seed).reshape(shape),
        "sample_seed": np.full(rows, seed, np.uint32),
    }
