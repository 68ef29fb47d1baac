"""ampjax: asynchronous, model-parallel training of dynamic neural networks in JAX (AMPNet), and hybrid data parallelism (Parallax)."""

from ampjax import nn
from ampjax.ir.build import (
    bcast,
    collect,
    concat,
    cond,
    distribute,
    flatmap,
    group,
    isu,
    loss,
    npt,
    phi,
    ppt,
    pump,
    reduce,
    repeat,
    replicate,
    sink,
    split,
    topology,
    ungroup,
)
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Instances, Messages, Topology, messages
from ampjax.ir.state import State
from ampjax.sched.policy import backward_first, balanced, largest
from ampjax.settings import Settings
from ampjax.testing.verify import Verification, verify
from ampjax.train import Trainer
