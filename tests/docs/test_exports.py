"""The public names: what users may import, from where, and that the notebooks and the README import nothing else."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PUBLIC = {
    "ampjax": """
        Graph  State  Topology  Instances  InstanceList  Subset  Messages  messages
        compile  Compiled  vmap  Batched  LaneFunction  LaneReport  Batch  RaggedRows  Reports  Ragged  Stacked  Tree  Edges
        scan  map  fori_loop  sum  max  mean  softmax  logsumexp  take  window  length  propagate  cond  switch  read  while_loop  look_up  fold_tree  scan_tree  recurse
        metric  output  node  stochastic  dropout  training
        pump  topology  ppt  npt  nn  concat  split  loss  sink  discard
        phi  isu  relabel  bcast  route_by  replicate
        flatmap  repeat  group  ungroup  distribute  collect  reduce
        Trainer  Settings  Snapshots  Hosts  Trace  read_update_log  replay  verify  check_numerics  simulate  profile  tune
        FlopsCost  ProfileCost  HostedCost  ClusterCost  LinkTimes  Stragglers
        balanced  backward_first  largest  wavefront  one_forward_one_backward
    """,
    "ampjax.parallel": """
        get_runner  Runner  ParallaxConfig  Resources  Machine  RemoteDevice  ProcessState  Recovery  Checkpoints  SampleTimes  TableSharing  partitioner  Partitioner
        shard  Parts  Bag  Metrics  Evaluation  RowGrads  Weighted  mean  average  all_gather  all_reduce_sum  all_reduce_bytes  server_bytes
        Vocabulary  VocabularyChanges  VocabularyCounts  Config  get_partitioner  parallel_run
    """,
    "ampjax.cluster": """
        spawn  Host  Hosts  HostContext  HostOptions  LocalLauncher  RayLauncher
        Message  Channel  Window  Patience  wait_any  memory_pair  Wire  Keys  new_keys
    """,
    "ampjax.nn": "Linear  Embed  TableEmbed  ChosenEmbed  choose_embed  NgramTable  ngram_hashes",
    "ampjax.sparse": "Table  TableSharing  ServerProcesses  find_sparse",
    "ampjax.optim": """
        rowwise_adagrad  rowwise_adam  rowwise_rmsprop  scale_rows  stochastic_rounding  scale_by_staleness  RowRule  RowState  Split  split_rows
        make_update  combine  trainable  averaged  parameter_average
        delayed  RandomDelay  stage_delays  anneal_by_staleness  damp_by_staleness  bounded_staleness  compensate_delay
        predict_weights  trained_params  compensate_spikes  scale_by_discounted_nadam  scale_by_rotated_adam
    """,
    "ampjax.simulation": "FlopsCost  Stragglers  Profile  ProfileCost  HostedCost  ClusterCost  LinkTimes  Simulation",
    "ampjax.tuning": "Candidate  Figures  Tried  Tuned",
    "ampjax.viz": """
        draw  to_svg  gantt  gantts  lanes  time_spent  queues  staleness  lineage  traffic  to_perfetto  zoomable
        curves  convergence  front  Point  partition_search  new_figure
    """,
    "ampjax.testing": "reference  Reference  init_params  compare  difference_table",
    "experiments.data": """
        babi15  glove  graphs  images  list_reduction  mnist  multi30k  pairs  permutation  qm9  sst  text  wikiner  zipf
    """,
    "experiments.models": """
        mlp  list_reduction_rnn  labelled_cross_entropy
        act  ggnn  inception  lm  mixture  nmt  permutation  resnet  rnn  scores  tagger  tiled  translate  tree_lstm
    """,
}
"""By package: of `experiments.data` and `.models` their modules, and of `models` the functions that the first examples need."""

MODULES = {
    "ampjax.errors",
    *(f"{p}.{m}" for p in ("experiments.data", "experiments.models") for m in PUBLIC[p].split()),
    "experiments",
    "experiments.admission",
    "experiments.data",
    *(f"experiments.local_sgd.{module}" for module in ("driver", "server", "visits")),
}
"""Modules from which users import, too."""


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names(package):
    module = importlib.import_module(package)
    names = sorted(PUBLIC[package].split())
    assert sorted(module.__all__) == names
    assert sorted(dir(module)) == names, "completion shows these and nothing else"


@pytest.mark.parametrize("package", PUBLIC)
def test_what_is_public_says_what_it_is(package):
    module = importlib.import_module(package)
    silent = [name for name in module.__all__ if not getattr(module, name).__doc__]
    assert not silent


def imports(source):
    """The modules that a program imports from ampjax or the experiments, and the names."""
    pattern = r"^\s*from ((?:ampjax|experiments)[\w.]*) import ([\w, ]+?)(?:  #.*)?$"
    found = re.findall(pattern, source, re.MULTILINE)
    result = []
    for module, names in found:
        for name in names.split(","):
            result.append((module, name.strip()))
    return result


def programs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    yield "README.md", "\n".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL))
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")  # what is not code are comments


def test_notebooks_and_readme_import_public_names_only():
    every = []
    for page, source in programs():
        for found in imports(source):
            every.append((page, *found))
    assert len(every) > 20
    wrong = []
    for page, module, name in every:
        if name not in PUBLIC.get(module, "").split() and module not in MODULES:
            wrong.append((page, module, name))
    assert not wrong
