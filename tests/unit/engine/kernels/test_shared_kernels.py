"""Kernels are shared by equal graphs; those that nobody holds are kept up to a bound."""

import gc
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine.kernels import segment_kernels
from ampjax.engine.kernels.kernel import Kernel, jitted
from ampjax.engine.kernels.segment_kernels import SegmentReduction
from ampjax.engine.kernels.shared_kernels import KERNELS, SharedKernels
from ampjax.engine.kernels.wiring import Wiring
from ampjax.engine.timing.compilation_count import compilations

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_objects")]

WIRING = Wiring((0,), (0,))


def adding(n: int) -> Kernel:
    @jitted()
    def add(x: Any) -> Any:
        return x + n

    return add


def compiled(cache: SharedKernels, n: int) -> Kernel:
    """A kernel that has compiled something."""
    found = cache.find(n, lambda: adding(n))
    found.once(np.float32(1))
    return found


def test_a_kernel_is_shared_while_somebody_holds_it() -> None:
    cache = SharedKernels(most_idle=0)
    first = compiled(cache, 1)
    assert cache.find(1, lambda: pytest.fail("made again")) is first
    assert (cache.n_held, cache.n_idle) == (1, 0)
    assert repr(cache) == "SharedKernels: 1 held; 0 of 0 executables idle"
    del first
    assert (cache.n_held, cache.n_idle) == (0, 0)


def test_what_nobody_holds_is_kept_up_to_the_bound_the_latest_first() -> None:
    cache = SharedKernels(most_idle=3)
    held = [compiled(cache, n) for n in range(5)]
    functions = [weakref.ref(k.once) for k in held]
    while held:
        held.pop(0)
        assert cache.n_idle <= 3
    assert cache.n_idle == 3 and cache.n_held == 0
    gc.collect()
    assert [function() is None for function in functions] == [True, True, False, False, False]
    before = compilations()
    again = compiled(cache, 4)
    assert again.once is functions[4]() and compilations() == before
    assert (cache.n_held, cache.n_idle) == (1, 2)


def test_a_kernel_that_has_compiled_nothing_counts_too() -> None:
    cache = SharedKernels(most_idle=2)
    for n in range(10):
        cache.find(n, lambda n=n: adding(n))
        assert cache.n_held == 0 and cache.n_idle == min(n + 1, 2)


def test_a_kernel_counts_for_every_size_that_it_has_compiled() -> None:
    cache = SharedKernels(most_idle=2)
    cache.find(1, lambda: adding(1))
    two = compiled(cache, 2)
    two.once(np.ones(2, np.float32))
    del two
    assert cache.n_idle == 2
    three = compiled(cache, 3)
    three.once(np.ones(2, np.float32))
    three.once(np.ones(3, np.float32))
    del three
    assert cache.n_idle == 0, "what is larger than the bound can't be kept"


def test_threads_share_kernels() -> None:
    cache = SharedKernels()
    found = []
    begin = threading.Barrier(4)

    def find() -> None:
        begin.wait()
        found.append(cache.find(1, lambda: adding(1)))

    threads = [threading.Thread(target=find) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 == cache.n_held


def test_equal_arguments_give_one_kernel_and_others_another() -> None:
    reduce = segment_kernels.forward(SegmentReduction(jnp.sum), WIRING)
    assert (
        segment_kernels.forward(
            SegmentReduction(jnp.sum),
            Wiring((0,), (0,)),
        )
        is reduce
    )
    assert segment_kernels.backward(SegmentReduction(jnp.sum), WIRING) is not reduce
    assert segment_kernels.forward(SegmentReduction(jnp.max), WIRING) is not reduce


def layer(features: int) -> ag.Graph:
    with ag.Graph() as graph:
        x = ag.ppt(
            "linear",
            amp.nn.Linear(features, 1),
        )(ag.pump("x", (features,)))
        ag.loss("loss", graphs.square)(
            ag.npt("sum", jnp.sum)(x),
            ag.pump("label"),
        )
    return graph


def trained(
    graph: ag.Graph,
    features: int,
    tx: optax.GradientTransformation,
) -> amp.Trainer:
    trainer = amp.Trainer(
        graph,
        tx,
        max_active_keys=1,
        max_dispatch_size=1,
        min_update_interval=2,
        compile_ahead=False,
    )
    data = [
        {
            "x": np.ones(features, np.float32),
            "label": np.float32(1),
        }
    ] * 2
    trainer.fit(data, epochs=1, progress=False)
    return trainer


@pytest.mark.nightly
def test_engines_and_kernels_of_dropped_graphs_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stayed for the life of the process: 50 trainers took two gigabytes, of larger graphs they took memory maps beyond what Linux allows."""
    gc.collect()
    monkeypatch.setattr(
        KERNELS, "most_idle", 2
    )  # fewer than an engine has: Python's versions let go of them in different orders
    engines = []
    functions = []
    held = KERNELS.n_held
    for features in (2, 3):
        trainer = trained(layer(features), features, optax.sgd(0.1))
        engines.append(weakref.ref(trainer.session.executor))
        functions += [weakref.ref(trainer.session.executor.fences._first.once)]
        assert KERNELS.n_held > held
        del trainer
        gc.collect()
        assert KERNELS.n_held == held and KERNELS.n_idle <= 2
    assert not any(engine() for engine in engines)
    assert not any(function() for function in functions[:-1])


@pytest.mark.parametrize("drop_first", [True, False])
def test_a_trainer_made_again_compiles_nothing(drop_first: bool) -> None:
    graph = layer(6)
    tx = optax.sgd(0.1)
    trainer = trained(graph, 6, tx)
    if drop_first:
        del trainer
        gc.collect()
    before = compilations()
    trainer = trained(graph, 6, tx)
    assert compilations() == before


def test_a_trainer_compiles_nothing_for_its_arrays() -> None:
    """JAX keeps what it compiles for an operation by itself, as `jnp.zeros` or `jnp.copy` of a new shape, for the life of the process."""
    amp.nn.Linear(7, 1).init(jax.random.key(0))
    before = compilations()
    amp.Trainer(layer(7), optax.set_to_zero())
    assert compilations() == before
