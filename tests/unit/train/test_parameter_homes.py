"""What a trainer says of its parameters: where they live, how copies are kept together, how stale gradients were."""

from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs
from support import table_models as models

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError


def trainer(graph, **options):
    options = {
        "workers": 2,
        "devices": jax.devices()[:1],
        "max_dispatch_size": 2,
        **options,
    }
    return amp.Trainer(
        graph,
        optax.sgd(0.1),
        cost=lambda plan: lambda d: 1 + d.n_rows,
        **options,
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_copies_share_a_table_and_average_their_layers():
    graph, table = models.with_table(optax.sgd(0.1), copies=2)
    ours = trainer(graph, max_active_keys=4, min_update_interval=2)
    assert ours.explain().run == ""
    assert "updates of" not in str(ours.explain())
    ours.fit(models.data(12, length=3), progress=False)
    found = ours.explain()
    embed = found["embed"]
    output = found["output"]
    assert embed.nodes == ("embed/0", "embed/1")
    assert embed.copies == 1
    assert embed.shape == table.shape
    assert embed.in_host_memory and embed.n_bytes == models.VALUES.nbytes
    assert output.nodes == ("output/0", "output/1")
    assert output.copies == 2
    assert output.workers == (0, 1)
    assert not output.in_host_memory and output.shape is None
    assert output.n_bytes == 4 * (models.FEATURES * models.PIECES * 3 + 3)
    counts = ours.statistics.nodes
    assert embed.updates == counts["embed/0"].updates == table.version
    assert output.updates == counts["output/0"].updates + counts["output/1"].updates
    assert embed.staleness_mean == counts["embed/0"].staleness_mean > 0
    assert embed.staleness_max == counts["embed/0"].staleness_max
    text = str(found)
    assert "host memory" in text and "updates of epoch 1" in text
    assert "embed: one for embed/0, embed/1; their gradients add up to one update" in text
    assert "output: copies are averaged after each epoch" in found._repr_html_()


@pytest.mark.parametrize(
    ("rule", "together"),
    [
        ("none", "copies are not averaged"),
        (("every_k", 3), "copies are averaged when one has made 3 updates"),
        (("message", 1), "copies take a mean after 1 update, without waiting"),
    ],
)
def test_rules_for_copies(rule, together):
    found = trainer(models.dense(2), replica_sync=rule).explain()
    assert found["output"].together == together


def test_a_single_node_says_nothing_of_copies():
    found = trainer(models.dense()).explain()
    assert [p.name for p in found.parameters] == ["embed", "output"]
    assert all(p.copies == 1 and not p.together and p.updates == 0 for p in found.parameters)
    assert found["embed"].shape == models.VALUES.shape


def test_what_is_no_node_can_not_be_explained():
    told = amp.Trainer(graphs.replicated_chain()).explain()
    assert told["copied"].copies == 3
    with pytest.raises(
        SettingsError,
        match=r"expected one of \['copied', 'after'\], got 'copied/0'\. Did you mean `copied`",
    ):
        told["copied/0"]


@pytest.mark.nightly
@pytest.mark.slow
def test_hosts_send_parameters_when_they_are_asked_for_and_once():
    with ag.Graph() as graph:
        wire = ag.pump("x", shape=(1000,))
        for name in "abc":
            wire = ag.ppt(
                name,
                graphs.times,
                params=np.ones(1000, np.float32),
            )(wire)
        ag.loss("loss", lambda v: v.sum())(wire)
    with closing(
        amp.Trainer(
            graph,
            hosts=amp.Hosts(2, "threads"),
        )
    ) as there:

        def received():
            return sum(host.bytes_received for host in there.hosts)

        before = received()
        there.fit(
            [{"x": np.ones(1000, np.float32)}],
            epochs=2,
            progress=False,
        )
        told = received()
        assert told - before < 4000, "losses and acknowledgements, no parameters"
        assert [report.n_bytes for report in there.explain().parameters] == [4000] * 3
        assert 12_000 < received() - told < 14_000


@pytest.mark.nightly
@pytest.mark.parametrize(
    "rule",
    ["epoch", ("every_k", 1), ("message", 1)],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_frozen_copies_stay_what_they_are_to_the_bit(rule, workers):
    """Three times a number, divided by three, is not always that number."""
    rng = np.random.default_rng(0)
    with ag.Graph() as g:
        x = ag.pump("x", (4,))
        body = ag.ppt(
            "w",
            lambda p, x: jnp.tanh(x @ p),
            params=rng.normal(size=(4, 4)).astype(np.float32),
            tx=optax.set_to_zero(),
        )
        ag.loss(
            "loss",
            lambda y: jnp.sum(y**2),
        )(ag.replicate(body, 3)(x))
    trainer = amp.Trainer(
        g,
        optax.sgd(0.1),
        replica_sync=rule,
        workers=workers,
    )
    before = trainer.params
    trainer.fit(
        [{"x": rng.normal(size=4).astype(np.float32)} for _ in range(7)],
        epochs=2,
        progress=False,
    )
    for name, param in trainer.params.items():
        assert param.tobytes() == before[name].tobytes()


@pytest.mark.nightly
def test_the_models_own_parameters_of_equal_copies_are_these_to_the_bit():
    params = {
        "w": np.random.default_rng(1).normal(size=40).astype(np.float32),
    }
    compiled = amp.compile(
        lambda p, s: jnp.sum(p["w"] * s),
        params,
        "float32[]",
        copies=3,
    )
    assert (
        compiled.params(amp.Trainer(compiled.graph).params)["w"].tobytes() == params["w"].tobytes()
    )
