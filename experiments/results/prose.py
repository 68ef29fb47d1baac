"""The text of the results page around its tables."""

START = """# Results

`python -m experiments results` measures all figures of this page, each command in a process of its own, one after the other, while nothing else runs; then it writes the page from [the records](measurements/results.jsonl). Nobody edits a figure by hand. [How to run it](project/contributing.md#results)

Times are medians. Above 1, "times as fast" says that ampjax is faster; what is slower stands in the same tables, and [once more below](#where-ampjax-is-slower). Epochs, losses and simulated times come out alike on any machine, or nearly so; compare seconds only within a table. The papers' figures come from their own machines: AMPNet's had 16 cores, Parallax's cluster 8 machines with 6 GPUs each. [All measurements](measurements/index.md) has more tables, which other commits made: longer runs, several hosts, a GPU, tuning."""

ELSEWHERE = """## What is measured elsewhere

These figures take hours, or a machine that is not this one; each page names its commands and commits.

* [Epochs to a target with more seeds](measurements/epochs.md), with several replicas, in all modes, and molecules of QM9, which take 16 epochs of 17,020.
* [Rates of all programs](measurements/rates.md), on a GPU too, and seconds to a target of PyTorch and plain JAX.
* [Late gradients](measurements/staleness.md): a language model, trees and lists with all remedies; [asynchronous local SGD](measurements/local_sgd.md) beside a published study, ten seeds.
* [Automatic tuning](measurements/tuning.md) beside a grid search: 0.05 to 0.08 times its processor seconds for a choice that trains about as fast.
* [Two hosts](measurements/hosts.md) on a core each: 1.5 to 1.6 times the rate of one process on one core.
* [Killed and stopped processes](measurements/faults.md): hundreds of faults, of which every run ended with the bits of an undisturbed one.
* [Parallax](measurements/parallax.md): a language model with a table of 793,470 × 512, two towers, graphs of single sentences, recovery of workers and servers.
* [Tables of n-grams beside a language model](measurements/engram.md).

There are no numbers from several machines."""
