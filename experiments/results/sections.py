"""The sections of the results page, in the page's order, each with its commands and sentences."""

from __future__ import annotations

from pathlib import Path

from experiments.bench.lanes.works import WORKS as LOOPS
from experiments.results import batch_tables, machine_tables, training_tables
from experiments.results.section import Command, Records, Section
from experiments.results.summaries import fields, to_target

SEEDS = "--seed", "0", "1", "2"

FROM_FILES = "trees", "tagger", "molecules-20", "molecules-64"
"""Works of `bench batch` on real data."""

GENERATED = tuple(name for name in batch_tables.WORKS if name not in FROM_FILES)

PLAIN_LOOPS = tuple(LOOPS)[:10]
OF_LIBRARIES = tuple(LOOPS)[10:]
"""Works of `bench lanes`: in plain JAX, and with other packages."""


def _batch(path: Path) -> Records:
    return fields(
        "work",
        "ours_ms",
        "plain_ms",
        "ratio",
        "spread",
        "first_s",
        "temporary_bytes",
    )(path)


def _loops(path: Path) -> Records:
    return fields(
        "work",
        "elements",
        "vmap_ms",
        "map_ms",
        "lanes_ms",
        "chosen_ms",
        "to_vmap",
        "to_best",
        "by_hand_ms",
        "to_hand",
        "rows",
        "rows_vmap",
        "rows_lanes",
    )(path)


def _bench(name: str, minutes: float, *arguments: str) -> Command:
    """A comparison of programs that train a workload."""
    return Command(
        f"rates-{name}",
        ("bench", name, "--passes", "3", *arguments),
        minutes,
        fields("bench", "program", "setting", "train_per_s"),
    )


def _training(name: str, minutes: float, *arguments: str) -> Command:
    """A workload that is trained to its target, with three seeds."""
    return Command(
        name,
        (*arguments, *SEEDS),
        minutes,
        to_target,
        draws=True,
    )


def _function(name: str, minutes: float) -> Command:
    """A model of the zoo by batches."""
    return _training(
        f"functions-{name}",
        minutes,
        "functions",
        name,
        "--mode",
        "batch",
        "--max-active-keys",
        "32",
    )


BATCHES = "Batches as one function"
LOOPS_PART = "Loops of unequal length"
TRAINING = "Accuracy and epochs"
MESSAGES = "Asynchronous training"
TABLES = "Sparse tables"
MACHINES = "Simulated machines, and machines that fail"

SECTIONS = (
    Section(
        "batch",
        BATCHES,
        "An update beside plain JAX by hand",
        "An update (forward, backward, Adam) of [`amp.vmap`](guides/batches.md), beside the same model in plain JAX as its users write it by hand: jitted, the same loss and gradients (checked first), the same settings of XLA and of the allocator. Both in turn in one process; in brackets are the least and the largest ratio of a round. First updates include tracing and compiling, without a cache.",
        (
            Command(
                "batch-files",
                ("bench", "batch", "--work", *FROM_FILES, "--rounds", "7"),
                2.5,
                _batch,
            ),
            Command(
                "batch-generated",
                ("bench", "batch", "--work", *GENERATED, "--rounds", "7"),
                3.5,
                _batch,
            ),
        ),
        batch_tables.batches,
        "Where structure differs much from example to example, as in trees and in sentences with rare words, a batch as one function is faster than code by hand, with less memory. Where the code by hand has nothing to pad, such as one matrix of attention, a chain, or segment sums over edges, it is as fast or faster. [More on these workloads](measurements/batches.md)",
    ),
    Section(
        "attention",
        BATCHES,
        "Attention in any form",
        "The same attention, written in thirteen ways, is one batch in each of them ([the forms](guides/attention.md)). Beside it is the same form in plain JAX, padded.",
        (
            Command(
                "attention-forms",
                ("bench", "batch", "--work", "attention-forms", "--rounds", "3"),
                1.7,
                _batch,
            ),
        ),
        batch_tables.attention,
    ),
    Section(
        "lanes",
        LOOPS_PART,
        "A call beside `jax.vmap` and `lax.map`",
        "`amp.vmap(f)` of a plain JAX function with loops, which chooses between lanes, `jax.vmap` and one element after another by measuring; the choice itself is not in the times. Then: how many times as fast the chosen form is as `jax.vmap`, and as the better of `jax.vmap` and `lax.map`; and how many rows of loops are computed for each useful one. [Loops of unequal length](guides/lanes.md)",
        (
            Command(
                "lanes",
                ("bench", "lanes", "--work", *PLAIN_LOOPS, "--rounds", "3"),
                2.2,
                _loops,
            ),
            Command(
                "lanes-libraries",
                ("bench", "lanes", "--work", *OF_LIBRARIES, "--rounds", "3"),
                5.0,
                _loops,
            ),
        ),
        batch_tables.loops,
    ),
    Section(
        "epochs",
        TRAINING,
        "AMPNet's workloads: epochs to a target",
        "Three seeds each, 0, 1 and 2; a dash says that the target was not reached. By batches (`--mode batch`), a round of examples is one compiled call without messages. Seconds are those of training and validation until the target; start and, of messages, compilation are not in them.",
        (
            _training(
                "list-reduction-batch",
                2.2,
                "list-reduction",
                "--mode",
                "batch",
                "--single",
                "--max-active-keys",
                "100",
            ),
            _training(
                "list-reduction-async",
                1.3,
                "list-reduction",
                "--max-active-keys",
                "16",
            ),
            _training(
                "sentiment-batch",
                1.6,
                "sentiment",
                "--mode",
                "batch",
                "--max-active-keys",
                "16",
                "--epochs",
                "3",
            ),
            _training(
                "sentiment-async",
                2.4,
                "sentiment",
                "--max-active-keys",
                "16",
                "--epochs",
                "3",
            ),
            _training(
                "wikiner-batch",
                2.2,
                "wikiner",
                "--full",
                "--mode",
                "batch",
                "--max-active-keys",
                "16",
                "--learning-rate",
                "2e-3",
                "--epochs",
                "4",
            ),
            _training(
                "wikiner-async",
                4.5,
                "wikiner",
                "--full",
                "--max-active-keys",
                "32",
                "--epochs",
                "4",
            ),
            _training(
                "babi15-batch",
                0.3,
                "babi15",
                "--mode",
                "batch",
                "--max-active-keys",
                "10",
            ),
            _training("babi15-async", 0.6, "babi15", "--max-active-keys", "16"),
            _training("mnist-async", 1.1, "mnist", "--mode", "async", "--max-active-keys", "4"),
        ),
        training_tables.epochs,
        "By batches, list reduction takes single sequences of all lengths; asynchronously, buckets of one length, which is less work for each sequence. Learning rates are the experiments' own, but for WikiNER's by batches (2e-3). [More seeds, replicas and modes](measurements/epochs.md)",
    ),
    Section(
        "functions",
        TRAINING,
        "Models of other kinds",
        "Functions of one example ([the models](reference/small_models.md)), trained by batches on generated data. [As messages](measurements/epochs.md#models-of-many-kinds-as-functions)",
        (
            _function("attention-classifier", 0.3),
            _function("hierarchical-rnn", 0.3),
            _function("dag-lstm", 0.4),
            _function("stochastic-depth", 0.3),
            _function("memory-network", 0.3),
            _function("child-sum-tree-lstm", 0.5),
            _function("listops", 0.6),
        ),
        training_tables.functions,
    ),
    Section(
        "rates",
        MESSAGES,
        "Examples a second beside other programs",
        "Training throughput of messages on two cores. Each program runs in a process of its own, in turn with the others; of each kind the table has the fastest, with its setting. [All programs](measurements/rates.md)",
        (
            _bench(
                "sentiment",
                1.2,
                *("--max-active-keys", "64", "--batch", "25", "64"),
                *("--programs", "jax levels", "torch levels"),
            ),
            _bench(
                "wikiner",
                1.5,
                *("--n-train", "1280", "--max-active-keys", "64", "--batch", "32"),
                *("--programs", "jax jit bucketed", "torch packed"),
            ),
            _bench(
                "permutation",
                0.8,
                *("--max-active-keys", "8192", "--batch", "512"),
                *("--programs", "jax", "torch by op"),
            ),
            _bench(
                "list-reduction",
                0.7,
                *("--n-train", "10000", "--n-valid", "2000", "--max-active-keys", "16"),
                *("--programs", "jax jit", "torch padded"),
            ),
            _bench(
                "qm9",
                1.0,
                *("--n-train", "2000", "--n-valid", "500", "--max-active-keys", "128"),
                *("--programs", "jax jraph", "jax jit", "torch side"),
            ),
            _bench(
                "mnist",
                1.0,
                *("--max-active-keys", "4", "--programs", "jax", "torch eager"),
            ),
        ),
        training_tables.rates,
        "Messages gain where control flow is dynamic. For a network without dynamic control flow, one jitted function is as fast or faster.",
    ),
    Section(
        "late",
        MESSAGES,
        "Late gradients",
        "The loss of a quadratic of 20 rows, turned by 45°, after 400 updates whose gradients arrive τ updates late; the learning rate is tuned for each cell, and numbers are medians of three seeds. [Other workloads and remedies](measurements/staleness.md)",
        (
            Command(
                "late-quadratic",
                (
                    "staleness",
                    "--workload",
                    "quadratic",
                    "--angle",
                    "45",
                    "--delay",
                    "0",
                    "1",
                    "4",
                    "16",
                    "--remedy",
                    "adam",
                    "adam+prediction",
                    "nadam-0.99",
                    "rotation",
                    "muon",
                ),
                1.5,
                fields("remedy", "delay", "seed", "rate", "loss"),
                draws=True,
            ),
        ),
        training_tables.late,
        "On a small language model Muon, Adam in a rotated basis, NAdam with β1 = 0.99 and Adam with weight prediction lose less to delays than Adam ([the table](measurements/staleness.md#a-small-language-model)).",
    ),
    Section(
        "local-sgd",
        MESSAGES,
        "Local SGD",
        "Four workers of different speed in virtual time, 20 steps between two meetings, beside a published study ([more](measurements/local_sgd.md)).",
        (
            Command(
                "local-sgd",
                (
                    "local-sgd",
                    "--rows",
                    "synchronous",
                    "--seed",
                    "0",
                    "--moments",
                    "1",
                ),
                1.5,
                fields("name", "seed", "losses", "accuracies", "seconds"),
                draws=True,
            ),
        ),
        machine_tables.local_sgd,
    ),
    Section(
        "tables",
        TABLES,
        "Recommenders",
        "A step of training with tables in host memory, on one device, beside PyTorch's `EmbeddingBag` with sparse gradients, and beside plain JAX that scatters updated rows by hand. The last lines compare many tables with one that has as many rows.",
        (
            Command(
                "recommender",
                ("bench", "recommender"),
                0.8,
                fields("what", "program", "seconds", "times"),
            ),
        ),
        machine_tables.recommender,
    ),
    Section(
        "replicas",
        TABLES,
        "Data parallelism beside plain JAX",
        "Two replicas on two cores, as in Parallax, beside `jax.pmap` with a dense AllReduce; and a step on some rows of a table beside a dense step, on one device. [Parallax's tables](measurements/parallax.md)",
        (
            Command(
                "parallax-lm",
                ("bench", "parallax", "--what", "lm"),
                2.0,
                fields("what", "ours", "plain", "ratio"),
            ),
            Command(
                "parallax-steps",
                ("bench", "parallax", "--what", "table", "resnet", "inception", "--steps", "12"),
                2.5,
                fields("what", "ours", "plain", "ratio"),
            ),
        ),
        machine_tables.replicas,
    ),
    Section(
        "cluster",
        TABLES,
        "Throughput on Parallax's cluster",
        "From the bytes that our servers count, and a transfer model with four rates that were fitted once to the paper's cells. So the model explains the table and does not predict it. Some of the paper's figures are quoted from memory; [Parallax](measurements/parallax.md) marks which.",
        (
            Command(
                "parallax-table1",
                ("parallax-table1", "--models"),
                0.2,
                fields("where", "model", "way", "per_s", "paper"),
            ),
            Command(
                "parallax-table4",
                ("parallax-table4", "--models"),
                0.2,
                fields("where", "model", "way", "per_s", "paper"),
            ),
        ),
        machine_tables.cluster,
    ),
    Section(
        "bytes",
        TABLES,
        "Bytes between machines",
        "What a machine sends and receives in a step, counted, beside Parallax's formulas (table 3).",
        (
            Command(
                "parallax-table3",
                ("parallax-table3",),
                0.4,
                fields("kind", "architecture", "machines", "formula", "measured"),
            ),
        ),
        machine_tables.transferred,
    ),
    Section(
        "simulated",
        MACHINES,
        "Simulated machines",
        "In virtual time: each worker has a device of 10¹² operations a second ([more](measurements/virtual_time.md)).",
        (
            Command(
                "table3",
                (
                    "table3",
                    "--workloads",
                    "list-reduction",
                    "--rest",
                    "none",
                ),
                1.5,
                fields("workload", "rest", "train_per_s"),
                draws=True,
            ),
            Command(
                "appendix-c",
                ("appendix-c",),
                0.4,
                fields("source", "graphs_per_s"),
            ),
            Command(
                "scaling-1024",
                (
                    *("scaling", "--models", "list-reduction"),
                    *("--workers", "1", "64", "1024", "--max-active-keys", "256"),
                ),
                0.7,
                fields("model", "workers", "speed_up"),
                draws=True,
            ),
            Command(
                "scaling-64",
                (
                    *("scaling", "--models", "tree-lstm", "perceptron", "ggnn"),
                    *("--workers", "1", "64", "--max-active-keys", "256"),
                ),
                0.8,
                fields("model", "workers", "speed_up"),
                draws=True,
            ),
        ),
        machine_tables.simulated,
    ),
    Section(
        "faults",
        MACHINES,
        "Killed and stopped processes",
        "Hosts are killed (`SIGKILL`) or stopped (`SIGSTOP`) at random moments while they train. All of a run's processes are started anew after a fault, which takes most of the time. [Hundreds of faults, of workers, servers and drivers too](measurements/faults.md)",
        (
            Command(
                "faults",
                ("chaos-hosts", "--kills", "4", "--hangs", "2", "--seed", "61"),
                2.5,
                fields("model", "exact", "kill", "hang"),
            ),
        ),
        machine_tables.kills,
    ),
)
"""All sections."""
