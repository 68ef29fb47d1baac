"""The mixture of experts against a dense implementation written directly in JAX, which computes every expert for every row."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import parity

import ampjax as amp
from ampjax.errors import SettingsError
from experiments.models.mixture import Experts, init, mixture_of_experts, spec

pytestmark = pytest.mark.slow

NEVER = 1 << 40


def batches(n, rng, features=6, classes=3):
    """Instances of 1 to 5 rows whose label is where the first entries are largest."""
    rows = []
    for _ in range(n):
        rows.append(
            rng.normal(
                size=(
                    int(
                        rng.integers(
                            1,
                            6,
                        )
                    ),
                    features,
                )
            ).astype(np.float32)
        )
    result = []
    for x in rows:
        result.append(
            {
                "x": x,
                "label": np.argmax(
                    x[:, :classes],
                    1,
                ).astype(np.int32),
            }
        )
    return result


def model(experts, replicas=1):
    params = init(jax.random.key(0), experts)
    return amp.compile(mixture_of_experts(experts, replicas), params, spec(experts))


def direct_loss(params, data, experts):
    total = 0.0
    for instance in data:
        x = instance["x"]
        labels = instance["label"]
        h = x @ params["gate"]["gate"]
        if experts.top == 1:
            masked = jax.nn.softmax(h) * (h == h.max(1, keepdims=True))
        else:
            kept = h >= jnp.sort(h, axis=1)[:, -2:-1]
            masked = jax.nn.softmax(
                jnp.where(kept, h, -jnp.inf),
                axis=1,
            )
        each = []
        for e in range(experts.n):
            first, second = params[f"expert{e}"]
            each.append(jnp.maximum(x @ first["w"] + first["b"], 0) @ second["w"] + second["b"])
        logits = jnp.einsum("ne,eno->no", masked, jnp.stack(each))
        total += jnp.sum(jax.nn.logsumexp(logits, axis=1) - logits[np.arange(len(x)), labels])
        importance = masked.sum(0)
        total += (
            experts.balance
            * ((importance - importance.mean()) ** 2).mean()
            / importance.mean() ** 2
        )
    return total


@pytest.mark.parametrize(
    ("workers", "replicas", "top"),
    [
        pytest.param(2, 2, 2, marks=pytest.mark.users),
        *(
            pytest.param(*rest, marks=pytest.mark.nightly)
            for rest in ((1, 1, 1), (2, 2, 1), (1, 1, 2))
        ),
    ],
)
def test_gradients_are_those_of_a_dense_implementation(top, workers, replicas):
    """Replicas start equal, and their gradients add up to those of one."""
    experts = Experts(
        6,
        8,
        3,
        n=4,
        top=top,
        noisy=False,
    )
    rng = np.random.default_rng(top)
    data = batches(6, rng)
    compiled = model(experts, replicas)
    trainer = amp.Trainer(
        compiled.graph,
        min_update_interval=NEVER,
        max_active_keys=4,
        max_dispatch_size=2,
        workers=workers,
        check=True,
    )
    params = parity.alike(
        trainer,
        lambda x: rng.normal(size=x.shape),
    )
    got = trainer.accumulate(compiled.data(data))
    loss, want = jax.jit(jax.value_and_grad(lambda p: direct_loss(p, data, experts)))(params)
    assert got["loss_sum"] == pytest.approx(float(loss), rel=1e-5)
    for node, (grad, _) in parity.joined(trainer.gradients).items():
        for a, b in zip(
            jax.tree.leaves(grad),
            jax.tree.leaves(want[node]),
            strict=True,
        ):
            assert np.abs(a - b).max() <= 1e-5 * max(np.abs(b).max(), 1e-6), node


@pytest.mark.nightly
def test_it_learns_and_uses_all_experts():
    rng = np.random.default_rng(0)
    compiled = model(Experts(6, 16, 3, top=1))
    trainer = amp.Trainer(
        compiled.graph,
        optax.adam(1e-2),
        max_active_keys=4,
        max_dispatch_size=8,
    )
    sets = (compiled.data(batches(n, rng)) for n in (300, 60))
    history = trainer.fit(*sets, epochs=4, progress=False)
    assert history.best() > 0.75
    assert all(
        s.infer > 0
        for name, s in trainer.inference_statistics.stages.items()
        if name.startswith("expert")
    )


def test_impossible_sizes_are_refused():
    with pytest.raises(SettingsError, match="top 1 or 2"):
        Experts(4, 4, 2, n=1, top=2)
