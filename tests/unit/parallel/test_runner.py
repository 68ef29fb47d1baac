import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.calls import one_call

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import HostDiedError, SettingsError
from ampjax.parallel.homes.column_reads import Readings
from ampjax.parallel.planning import variable_plan
from ampjax.parallel.planning.compiled_collectives import Collective, collectives
from ampjax.parallel.runner_model import BuiltModel
from ampjax.sparse.rewrite.pulled_step import rewrite
from ampjax.sparse.rows.partition_layout import PartitionLayout

pytestmark = pytest.mark.slow

CLIPPED = optax.chain(optax.clip_by_global_norm(0.1), optax.adagrad(0.1))


def machines(*sizes):
    devices = iter(jax.local_devices())
    return Resources(
        tuple(Machine(f"m{i}", tuple(next(devices) for _ in range(n))) for i, n in enumerate(sizes))
    )


def loss(params, batch):
    return jnp.mean((params["table"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)


def parameters():
    return {
        "table": np.ones((64, 4), np.float32),
        "w": np.full(4, 0.5, np.float32),
    }


def a_batch(ids):
    return {
        "ids": np.array(ids),
        "y": np.zeros(len(ids), np.float32),
    }


def make(
    sizes=(1, 1),
    tx=CLIPPED,
    function=loss,
    clock=None,
    partitioners=(),
    **options,
):
    more = {} if clock is None else {"clock": clock}
    return px.get_runner(
        function,
        parameters(),
        tx,
        machines(*sizes),
        px.ParallaxConfig(**options),
        partitioners,
        **more,
    )


def test_a_model_without_tables_has_the_collectives_of_plain_pmap_and_no_server():
    def dense_loss(params, batch):
        return jnp.mean((batch["x"] @ params["m"] + params["b"]) ** 2)

    params = {
        "m": np.ones((3, 2), np.float32),
        "b": np.zeros(2, np.float32),
    }
    batch = {"x": np.ones((4, 3), np.float32)}
    runner = px.get_runner(
        dense_loss,
        params,
        optax.adam(0.1),
        machines(1, 1),
    )
    runner.run(batch)
    assert runner.explain().servers == 0
    assert repr(runner) == "Runner(2 machines, 2 replicas, 1 step)"
    ours = runner.step.program().lower(*runner.step.last_shapes).compile().as_text()

    def plain(params, batch):
        value, grads = jax.value_and_grad(dense_loss)(params, batch)
        return jax.lax.pmean((value, grads), "i")

    def stack(tree, n):
        return jax.tree.map(
            lambda leaf: np.stack([leaf] * n),
            tree,
        )

    mapped = jax.pmap(
        plain,
        axis_name="i",
        devices=jax.local_devices()[:2],
    )
    theirs = (
        mapped.lower(
            stack(params, 2),
            stack({"x": batch["x"][:2]}, 2),
        )
        .compile()
        .as_text()
    )
    assert collectives(ours) == collectives(theirs)
    assert [c.shape for c in collectives(ours)] == [(), (2,), (3, 2)]


def test_collectives_of_asynchronous_and_quantised_programs():
    text = "%g = (f32[2]{0}, f32[4,2]{1,0}) all-gather-start(%x), channel_id=1\n  ROOT %r = bf16[8]{0} all-reduce-start(%y)"
    assert collectives(text) == [
        Collective("all-gather", "f32", (4, 2)),
        Collective("all-reduce", "bf16", (8,)),
    ]
    assert Collective("all-reduce", "bf16", (8,)).nbytes == 16
    assert Collective("all-gather", "f32", (4, 2)).ring_bytes(4) == 2 * 8 * 3
    assert Collective("all-to-all", "pred", (4,)).ring_bytes(4) == 0


@pytest.mark.first_case
@pytest.mark.parametrize("run_option", ["hybrid", "ps"])
def test_any_number_of_dense_variables(run_option):
    """With two matrices and SGD, the update has as many leaves as arguments."""

    def two(params, batch):
        return jnp.mean((params["table"][batch["ids"]] @ params["a"] @ params["b"]) ** 2)

    params = {
        "table": np.ones((20, 3), np.float32),
        "a": np.ones((3, 2), np.float32),
        "b": np.ones((2, 5), np.float32),
    }
    runner = px.get_runner(
        two,
        params,
        optax.sgd(0.01),
        machines(1, 1),
        px.ParallaxConfig(run_option=run_option),
    )
    runner.run({"ids": np.arange(4)})
    grads = jax.grad(two)(
        params,
        {"ids": np.arange(4)},
    )
    expected = jax.tree.map(
        lambda p, g: p - 0.01 * g,
        params,
        grads,
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        runner.params,
        expected,
    )


def test_alpha_decides_what_stays_dense():
    runner = make(alpha_threshold=0.5, average_dense="mean")
    runner.run(a_batch(range(64)))
    report = runner.explain()["table"]
    assert (report.sparse, report.choice) == (True, "allreduce: alpha 0.5 is at least 0.5")
    assert runner.explain().servers == 0
    with pytest.raises(SettingsError, match=r"explain: expected one of .*table.*, got 'tables'"):
        runner.explain()["tables"]
    below = make(alpha_threshold=0.51)
    below.run(a_batch(range(64)))
    assert below.explain()["table"].choice == "table at servers"


def test_what_does_not_fit_a_device_is_a_table(monkeypatch):
    monkeypatch.setattr(variable_plan, "device_bytes", lambda devices: 2000)
    runner = make(alpha_threshold=0.5)
    runner.run(a_batch(range(64)))
    assert (
        runner.explain()["table"].choice
        == "table at servers: 2,048 bytes do not fit into a device's 2,000"
    ), "64 rows of four numbers, and their gradient"


def test_double_precision_trains_without_tables():
    with jax.enable_x64(True):
        params = jax.tree.map(np.float64, parameters())
        runner = px.get_runner(
            loss,
            params,
            optax.sgd(0.1),
            machines(1, 1),
        )
        runner.run(a_batch([0, 1, 2, 3]))
        grads = jax.grad(loss)(
            params,
            a_batch([0, 1, 2, 3]),
        )
        table = runner.explain(compiled=False).variables[0]
        assert (table.sparse, table.choice) == (True, "allreduce: tables hold no rows of float64")
        want = jax.tree.map(
            lambda p, g: p - 0.1 * np.asarray(g),
            params,
            grads,
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12),
            runner.params,
            want,
        )


def test_the_explanation_tells_reads_alpha_bytes_and_places():
    runner = make(partitions=4)
    runner.run(a_batch([0, 1, 1, 1, 2, 3, 0, 1]))
    runner.run(a_batch([0, 0, 0, 0, 1, 1, 1, 1]))
    explained = runner.explain()
    table = explained["table"]
    w = explained["w"]
    assert table.alpha == pytest.approx((2 + 4 + 1 + 1) / 2 / 2 / 64)
    assert table.placement == (0, 1, 0, 1)
    # Rows 0 and 2 are at machine 0: in step 1 machine 0 pulls row 1 and machine 1 rows 0 and 2, in step 2 neither needs the other.
    assert table.measured == 2 * 2 * 16 * 3 / 2 / 2
    assert table.predicted.ps == 4 * table.alpha * 1024 / 2
    assert w.measured == 4 * 16 / 2
    assert w.predicted.ar == 4 * 16 / 2
    assert w.choice == "allreduce"
    assert "gather" in str(explained) and "2 machines, 2 replicas, 2 servers" in str(explained)


def test_local_aggregation_lets_a_row_travel_once():
    traffic = {}
    for together in (True, False):
        runner = make(
            (2, 2),
            tx=optax.sgd(0.1),
            local_aggregation=together,
        )
        metrics = runner.run(a_batch([1] * 8))  # row 1 is at machine 1: machine 0 needs it
        traffic[together] = metrics.traffic.per_machine("['table']")
        assert metrics.traffic.balanced
    assert traffic == {
        True: 2 * 2 * 16 / 2,
        False: 2 * 2 * 2 * 16 / 2,
    }


def test_scalars_travel_between_servers_in_place_of_gradients():
    sent = {}
    for among in (True, False):
        metrics = make(
            boundary_among_servers=among,
            partitions=2,
        ).run(a_batch([0, 1, 2, 3]))
        sent[among] = {what: metrics.traffic.per_machine(what) for what in ("scalars", "['table']")}
    pulled_and_pushed = sent[True]["['table']"]
    # Rows 1 and 3 are at machine 1; the chief is machine 0. Their gradients go there and come back.
    assert sent[False]["['table']"] == pulled_and_pushed + 2 * 2 * 2 * 16 / 2
    assert 0 < sent[True]["scalars"] < 16


def test_rows_are_cast_where_fewer_bytes_travel():
    def half(params, batch):
        rows = params["table"].astype(jnp.bfloat16)[batch["ids"]].astype(jnp.float32)
        return jnp.mean((rows @ params["w"] - batch["y"]) ** 2)

    batch = a_batch([0, 1, 2, 3])
    results = {}
    for at_server in (True, False):
        runner = make(function=half, boundary_between_workers_and_servers=at_server)
        traffic = runner.run(batch).traffic.per_machine("['table']")
        results[at_server] = traffic, runner.params["table"]
    assert results[True][0] == 0.75 * results[False][0]  # pulls are halved, pushes are not
    np.testing.assert_array_equal(
        results[True][1],
        results[False][1],
    )


@pytest.mark.parametrize(
    "sizes",
    [(1, 1), (2,)],
)
def test_rows_are_cut_where_fewer_bytes_travel(sizes):
    def part(params, batch):
        rows = params["table"][batch["ids"]]
        # Longer batches read one column more.
        return jnp.mean(
            (rows[:, 1:2] + rows[:, -2 if len(rows) < 3 else -1, None] - batch["y"][:, None]) ** 2
        )

    few = a_batch([0, 1, 2, 3])
    more = a_batch([0, 1, 2, 3, 4, 5])
    results = {}
    for at_server in (True, False):
        ways = {
            "boundary_between_workers_and_servers": at_server,
            "check_equivalence": "off",
        }  # what is read depends on the size
        runner = make(sizes, function=part, **ways)
        traffic = []
        for batch in (few, more, few):
            traffic.append(runner.run(batch).traffic.per_machine("['table']"))
        results[at_server] = traffic, runner.params["table"]
    cut, table = results[True]
    whole, same = results[False]
    assert [4 * n for n in cut] == [
        2 * whole[0],
        3 * whole[1],
        2 * whole[2],
    ]  # of 4 columns, both ways
    np.testing.assert_array_equal(table, same)


BF16 = jnp.bfloat16


@pytest.mark.parametrize(
    ("read", "dtype", "columns"),
    [
        (lambda t, i: t[i].astype(BF16).sum(), BF16, None),
        (lambda t, i: jnp.take(t, i, axis=0).astype(BF16).sum(), BF16, None),
        (lambda t, i: t[i].astype(BF16).sum() + t[i].sum().astype(BF16), None, None),
        (lambda t, i: t[i].sum(), None, None),
        (lambda t, i: t[i].astype(jnp.float8_e4m3fn).astype(jnp.float32).sum(), None, None),
        (lambda t, i: t[i].astype(jnp.int8).sum(), None, None),
        (lambda t, i: t[i][:, 1:3].sum(), None, (1, 3)),
        (lambda t, i: t[:, 2:][i].sum() + t[i, None][..., 1:][..., 2:4].sum(), None, (2, 5)),
        (lambda t, i: t[i].astype(BF16)[:, ::2].sum() + t[i][:, 2:].astype(BF16).sum(), BF16, None),
        (lambda t, i: jax.jit(lambda rows: rows[:, :2])(t[i])[0].astype(BF16).sum(), BF16, (0, 2)),
        (lambda t, i: one_call(lambda rows: rows[:, :2])(t[i])[0].astype(BF16).sum(), BF16, (0, 2)),
        (lambda t, i: jax.checkpoint(lambda rows: rows[:, 1:3])(t[i]).sum(), None, (1, 3)),
        (lambda t, i: t[i][:, :2].sum() + t[i].reshape(5, 3)[:, :1].sum(), None, None),
        (lambda t, i: t.T[:, i][:, :2].sum(), None, None),
        (lambda t, i: t[i[0]][3:].sum(), None, (3, 5)),
    ],
)
def test_what_of_rows_is_read(read, dtype, columns):
    def function(params, ids):
        return read(params["t"], ids).astype(jnp.float32)

    ids = np.arange(3)
    program = rewrite(
        function,
        {"t": np.ones((20, 5), np.float32)},
        ids,
    )
    assert tuple(Readings(program, narrow=True).for_batch(ids)["['t']"]) == (
        dtype and np.dtype(dtype),
        columns,
    )
    assert Readings(program, narrow=False).for_batch(ids)["['t']"] == (None, None)


@pytest.mark.parametrize(
    "scale",
    [jnp.asarray(1.5), np.float32(1.5)],
)
def test_rows_are_cut_as_the_program_reads_them_which_gets_no_weak_types(scale):
    def loss(params, batch):
        factor = params["w"] * batch["scale"]  # float32, or bfloat16 if the scale's type is weak
        return jnp.mean(params["t"][batch["ids"]].astype(factor.dtype) * factor)

    params = {
        "t": np.full(
            (64, 4),
            1 + 2**-10,
            np.float32,
        ),
        "w": np.ones(4, jnp.bfloat16),
    }
    runner = px.get_runner(
        loss,
        params,
        optax.sgd(0.1),
        machines(1),
        px.ParallaxConfig(alpha_threshold=2),
    )
    metrics = runner.run({"ids": np.arange(4), "scale": scale})
    assert np.asarray(metrics.losses[0]) == 1.5 * (1 + 2**-10)


def test_half_precision_on_the_wire():
    wide, narrow = (
        make(wire_dtype=dtype).run(a_batch([0, 1, 2, 3])) for dtype in ("float32", "bfloat16")
    )
    assert 2 * narrow.traffic.per_machine("['table']") == wide.traffic.per_machine("['table']")


def test_aggregated_gradients_can_be_read():
    runner = make(tx=optax.sgd(0.1))
    fetched = runner.run(
        a_batch([5, 5, 9, 5]),
        fetch=("gradients", "norms", "global_norm"),
    ).fetched
    grads = jax.grad(loss)(
        parameters(),
        a_batch([5, 5, 9, 5]),
    )
    rows = fetched["gradients"]["table"]
    order = np.argsort(rows.ids)
    assert rows.ids[order].tolist() == [5, 9]
    np.testing.assert_allclose(
        rows.values[order],
        grads["table"][np.array([5, 9])],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        fetched["gradients"]["w"],
        grads["w"],
        rtol=1e-6,
    )
    assert fetched["norms"]["w"] == pytest.approx(
        float(jnp.linalg.norm(grads["w"])),
        rel=1e-6,
    )
    assert fetched["global_norm"] == pytest.approx(
        float(optax.tree.norm(grads)),
        rel=1e-6,
    )


def test_the_search_runs_while_training_and_settles():
    """A clock of a machine on which three partitions are best; three steps for each sample, of which one is discarded."""
    times = [0.0]

    def clock():
        count = runner.step.tables["['table']"][0].n_partitions
        times.append(times[-1] + 9 / count + count)
        return times[-1]

    sample = px.SampleTimes(iterations=3, discarded=1)
    runner = make(
        clock=clock,
        search_partitions=True,
        sample=sample,
        partitioners=["table"],
    )
    for _ in range(14):
        runner.run(a_batch([0, 1, 2, 3]))
    (found,) = runner.searches
    assert list(found.samples) == [2, 4, 8]
    assert found.partitions == runner.explain(compiled=False)["table"].partitions == 3
    assert "table: 3 partitions" in str(runner.explain(compiled=False))


def test_a_process_lost_while_tables_are_split_as_found_repeats_no_step(monkeypatch):
    sample = px.SampleTimes(iterations=1, discarded=0)
    clock = itertools.count()
    runner = make(
        clock=lambda: next(clock),
        search_partitions=True,
        sample=sample,
    )
    resplit = BuiltModel.resplit
    losses = []

    def lost(model, group, count):
        if runner.searches and not losses:
            losses.append(count)
            raise HostDiedError("worker-0", "a process that goes on", "its end", "Restore.")
        resplit(model, group, count)

    monkeypatch.setattr(BuiltModel, "resplit", lost)
    monkeypatch.setattr(
        runner._training, "_recover", lambda error, step: None
    )  # nothing was lost, so there is nothing to take again
    n = 0
    while not runner.searches:
        runner.run(a_batch([0, 1, 2, 3]))
        n += 1
    assert len(losses) == 1 and runner.steps == n
    assert runner.step.tables["['table']"][0].n_partitions == runner.searches[0].partitions


def test_a_search_that_has_ended_is_not_made_again(tmp_path):
    sample = px.SampleTimes(iterations=1, discarded=0)
    clock = (
        itertools.count()
    )  # all steps take as long: the first number of partitions is as good as any
    options = {"clock": lambda: next(clock), "search_partitions": True, "sample": sample}
    first = make(partitioners=["table"], **options)
    while not first.searches:
        first.run(a_batch([0, 1, 2, 3]))
    first.save(tmp_path / "c")
    for sizes, searches in ((1, 1), first.searches), ((2,), []):
        again = make(
            sizes,
            partitioners=["table"],
            partitions=7,
            **options,
        )
        again.restore(tmp_path / "c")
        again.build(a_batch([0, 1, 2, 3]))
        assert again.searches == searches
        assert again.step.tables["['table']"][0].n_partitions == (
            searches[0].partitions if searches else 7
        )


def test_what_was_saved_goes_on(tmp_path):
    config = {"checkpoint": px.Checkpoints(tmp_path, every_steps=2), "seed": 3}
    first = make(tx=optax.adam(0.1), **config)
    batches = []
    for i in range(4):
        batches.append(a_batch([i, i + 1, i, 7]))
    for batch in batches[:3]:
        first.run(batch)
    second = make(
        (2,),
        tx=optax.adam(0.1),
        partitions=5,
        seed=3,
    )  # other machines, another split
    second.restore(tmp_path / "step-2")
    for batch in batches[2:3]:
        second.run(batch)
    assert second.steps == 3
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        first.params,
        second.params,
    )
    assert (jax.random.key_data(first.keys()) == jax.random.key_data(second.keys())).all()
    first.save(tmp_path / "again")
    first.run(batches[3])
    first.restore(tmp_path / "again")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        first.params,
        second.params,
    )


def test_parts_and_random_keys_reach_their_replicas():
    def noisy(params, batch):
        noise = jax.random.uniform(batch["key"][0], ())
        return loss(params, batch), {"noise": noise, "ids": batch["ids"]}

    runner = make(function=noisy)
    keys = runner.keys()
    metrics = runner.run(a_batch([0, 1, 2, 3]) | {"key": keys})
    assert metrics.aux["ids"].tolist() == [[0, 1], [2, 3]]
    assert metrics.aux["noise"].tolist() == [float(jax.random.uniform(key, ())) for key in keys]
    parts = px.shard(
        [a_batch([0, 1]), a_batch([2, 3])],
        machines(1, 1),
    )
    assert [p.batches[1]["ids"].tolist() for p in parts] == [[2, 3]]


def test_a_number_of_python_in_the_batch_reaches_all_replicas():
    runner = make(
        function=lambda params, batch: batch["scale"] * loss(params, batch),
        tx=optax.sgd(0.1),
    )
    batch = a_batch([0, 1, 2, 3])
    assert [runner.run(batch | {"scale": scale}).loss for scale in (0.5, 0.0)] == [
        0.5 * float(loss(parameters(), batch)),
        0,
    ]


def test_parameters_in_double_precision_are_held_as_jax_holds_them():
    wide = jax.tree.map(np.float64, parameters())
    runner = px.get_runner(
        loss,
        wide,
        optax.sgd(0.1),
        machines(1, 1),
    )
    runner.run(a_batch([0, 1, 2, 3]))
    runner.reset(wide)
    jax.tree.map(np.testing.assert_array_equal, runner.params, parameters())
    assert {leaf.dtype for leaf in jax.tree.leaves(runner.params)} == {np.dtype(np.float32)}


def test_a_model_that_is_only_a_table_trains():
    """Nothing dense is left, and SGD keeps nothing: there is no array to map an update over."""
    runner = px.get_runner(
        lambda params, batch: jnp.sum(params["table"][batch] ** 2),
        {"table": np.ones((6, 2), np.float32)},
        optax.sgd(0.25),
        machines(1, 1),
        px.ParallaxConfig(average_dense="sum", average_sparse="sum"),
    )
    runner.run(np.array([1, 4], np.int32))
    runner.wait()
    np.testing.assert_array_equal(
        runner.params["table"][:, 0],
        [1, 0.5, 1, 1, 0.5, 1],
    )


def test_a_new_split_of_one_table_keeps_servers_balanced():
    def two(params, batch):
        return jnp.mean((params["a"][batch] + params["b"][batch]) @ params["w"])

    params = {
        "a": np.ones((60, 4), np.float32),
        "b": np.ones((40, 4), np.float32),
        "w": np.ones((4, 50), np.float32),
    }
    runner = px.get_runner(
        two,
        params,
        optax.sgd(0.1),
        machines(1, 1),
        px.ParallaxConfig(run_option="ps"),
    )
    homes = runner.build(np.arange(4)).step.homes
    for counts in {"['a']": 1}, {"['a']": 3}, {"['a']": 5, "['b']": 1}:
        homes.resplit(counts)
        load = [0, 0]
        load[runner.plan.servers["['w']"][0]] = params["w"].nbytes
        for home in homes.rows.values():
            layout = PartitionLayout(home.table.n_rows, home.table.n_partitions)
            for partition, server in enumerate(home.table.placement):
                load[server] += 16 * layout.size(partition)
        assert (
            abs(load[0] - load[1]) <= 16 * 10
        )  # bytes, of 2400: ten rows, fewer than most partitions have


@pytest.mark.nightly
def test_tables_are_split_anew_between_steps():
    runner = make()
    batch = a_batch(np.arange(4))
    runner.run(batch)
    before = runner.params
    runner.resplit(3)
    assert {own[0].n_partitions for own in runner.step.tables.values()} == {3}
    jax.tree.map(np.testing.assert_array_equal, runner.params, before)
    runner.run(batch)
    with pytest.raises(SettingsError, match="partitions"):
        runner.resplit(0)
