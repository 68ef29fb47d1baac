"""The text of the results page around its tables."""

START = """# Results

`python -m experiments results` measures all figures of this page, each command in a process of its own, one after the other, while nothing else runs; then it writes the page from [the records](measurements/results.jsonl). Nobody edits a figure by hand. [How to run it](project/contributing.md#set-up)

Times are medians. Where "times as fast" is above 1, ampjax is faster. The tables hold the slower cases, too, and [a list](#where-ampjax-is-slower) repeats them. Epochs, losses and simulated times come out alike on any machine, or nearly so; compare seconds only within a table. The papers' figures come from their own machines: AMPNet's had 16 cores, Parallax's cluster 8 machines with 6 GPUs each. [All measurements](measurements/index.md) has more tables, which other commits made: longer runs, several hosts, a GPU, tuning."""

ELSEWHERE = """Measured by other commands, at other commits, as the pages say:

* If tables fit on a device and there is no network between replicas, a dense AllReduce is the fastest (one machine can't reproduce Parallax's table 6 and figure 7).
* For a two-tower model on one machine whose memory holds the tables, ampjax is 1.08 and 1.23 times as fast on one replica, and 0.72 and 0.95 times on two (Adagrad and Adam), as plain JAX with rows updated by hand and the same (lazy) optimizer; at least 1.0 was the goal. With four cores, which XLA uses better, it is 0.60 times on one replica and 0.46 and 0.54 on two. [On two replicas, ampjax needs half the memory](measurements/parallax.md).
* A Parallax step that computes nothing takes 11 ms over processes, 4 ms in one; 3 ms was the goal. With six cores for its five processes it takes 6.7 ms, and 4.0 in one process there ([decision 30](decisions/0030-workers-are-processes.md)).
* Translation as a graph takes 3.6 times the processor time of padded batches: its attention is a message for each pair of words ([where the time goes](measurements/parallax.md#the-same-models-as-graphs-of-single-sentences)).
* Two workers on two cores help only if each has a whole copy of the network (1.6 times). A small network is slower when its layers are spread over workers ([two hosts](measurements/hosts.md)).
* Knowing the next batch (`run(batch, following=...)`) brings nothing where workers and servers share one machine's cores: 0.85 to 1.04 times the rate.
* On a GPU (one H200), list reduction in buckets trains 2.7 to 3.1 times slower than plain JAX on padded batches: the network is so small that control takes the time ([on a GPU](measurements/rates.md#on-a-gpu)).

There are no numbers from several machines.

## What is measured elsewhere

These figures take hours, or another machine; each page names its commands and commits.

* [Epochs to a target](measurements/epochs.md) with more seeds, with replicas, in all modes, and of molecules of QM9, which take 16 epochs of 17,020.
* [Rates of all programs](measurements/rates.md), on a GPU too, and seconds to a target of plain JAX and PyTorch.
* [Late gradients](measurements/staleness.md): a language model, trees and lists, with all remedies. [Asynchronous local SGD](measurements/local_sgd.md) beside a published study.
* [Automatic tuning](measurements/tuning.md) beside a grid search: a choice that trains about as fast, for 0.05 to 0.08 times the grid's processor seconds.
* [Two hosts](measurements/hosts.md), a core each: 1.5 to 1.6 times the rate of one process on one core.
* [Killed and stopped processes](measurements/faults.md): hundreds of faults, of hosts, workers, servers and drivers; every run ended with the bits of an undisturbed one.
* [Parallax](measurements/parallax.md): its other tables and figures, two towers, servers and workers as processes, graphs of single sentences.
* [Simulated machines](measurements/virtual_time.md) of several hosts, and how well they predict this one.
* [Tables of n-grams beside a language model](measurements/engram.md): loss at equal time, and the time of a step."""
