"""The tiled linear layer against the whole matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from experiments.models.tiled import tiled_linear

pytestmark = pytest.mark.slow

NEVER = 1 << 40
N_IN = 7
N_OUT = 5


def build(rows, columns, workers):
    with ag.Graph() as graph:
        x = ag.pump("x", (N_IN,))
        y = ag.pump("y", (N_OUT,))
        ag.loss(
            "loss",
            lambda a, b: jnp.sum((jnp.tanh(a) - b) ** 2),
        )(
            tiled_linear("layer", x, N_IN, N_OUT, rows, columns, workers=workers),
            y,
        )
    return graph


def whole(trees, rows, columns):
    """The matrix and the bias that the tiles make up."""
    blocks = []
    for r in range(rows):
        blocks.append([np.asarray(trees[f"layer/{r},{c}"]["w"]) for c in range(columns)])
    return np.block(blocks), np.concatenate(
        [np.asarray(trees[f"layer/0,{c}"]["b"]) for c in range(columns)]
    )


@pytest.mark.users
@pytest.mark.parametrize(
    ("rows", "columns", "workers"),
    [
        (1, 1, 1),
        (2, 3, 2),
        (3, 1, 2),
        (1, 2, None),
    ],
)
def test_tiles_have_the_gradients_of_the_whole_matrix(rows, columns, workers):
    rng = np.random.default_rng(0)
    data = []
    for _ in range(5):
        data.append(
            {
                "x": rng.normal(size=N_IN),
                "y": rng.normal(size=N_OUT),
            }
        )
    data = [{name: value.astype(np.float32) for name, value in one.items()} for one in data]
    trainer = amp.Trainer(
        build(rows, columns, workers=workers),
        min_update_interval=NEVER,
        workers=workers or 1,
        max_dispatch_size=4,
    )
    w, b = whole(trainer.params, rows, columns)
    assert w.shape == (N_IN, N_OUT) and b.shape == (N_OUT,)
    got = trainer.accumulate(data)
    x, y = (jnp.stack([one[name] for one in data]) for name in ("x", "y"))
    loss, (dw, db) = jax.value_and_grad(
        lambda w, b: jnp.sum((jnp.tanh(x @ w + b) - y) ** 2),
        (0, 1),
    )(w, b)
    assert got["loss_sum"] == pytest.approx(float(loss), rel=1e-5)
    got_w, got_b = whole(
        {node: grad for node, (grad, _) in trainer.gradients.items()},
        rows,
        columns,
    )
    assert np.abs(got_w - dw).max() <= 1e-5 * np.abs(dw).max()
    assert np.abs(got_b - db).max() <= 1e-5 * np.abs(db).max()


def test_tiles_run_on_their_workers():
    plan = amp.Trainer(build(2, 2, 4), workers=4).plan
    assert {plan.worker_of[f"layer/{r},{c}"] for r in range(2) for c in range(2)} == {0, 1, 2, 3}


def test_more_tiles_than_features_are_refused():
    with pytest.raises(
        SettingsError, match="tiled_linear `layer`: expected 1 to 7 rows and 1 to 5 columns"
    ):
        build(8, 1, None)
