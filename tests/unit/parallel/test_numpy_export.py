"""All parameters in one file of NumPy's."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.errors import SettingsError
from ampjax.sparse.rows import row_blocks

PARAMS = {
    "words": np.random.default_rng(0).normal(size=(70, 3)).astype(np.float32),
    "columns": np.random.default_rng(1).normal(size=(3, 50)).astype(np.float32),
    "layers": [
        {
            "w": np.ones(
                (3, 2),
                np.float32,
            )
        },
        {"w": jnp.ones((2,), jnp.bfloat16)},
    ],
    "half": np.ones((40, 2), jnp.bfloat16),
}


def loss(params, batch):
    rows = params["words"][batch["ids"]] + params["columns"].T[batch["ids"]]
    out = (
        (rows @ params["layers"][0]["w"]) * params["layers"][1]["w"] * params["half"][batch["ids"]]
    )
    return jnp.mean((out - 1) ** 2)


def make():
    config = px.ParallaxConfig(
        alpha_threshold=2.0,
        check_equivalence="off",
    )
    return px.get_runner(
        loss,
        PARAMS,
        optax.sgd(0.1),
        config=config,
    )


@pytest.mark.parametrize("is_built", [False, True])
def test_every_parameter_is_in_the_file(is_built, tmp_path, monkeypatch):
    monkeypatch.setattr(
        row_blocks,
        "BLOCK_BYTES",
        100,
    )  # several blocks a table
    runner = make()
    if is_built:
        runner.run({"ids": np.arange(8)})
    runner.export(tmp_path / "new" / "model.npz")
    with np.load(tmp_path / "new" / "model.npz") as found:
        assert set(found) == {"words", "columns", "layers/0/w", "layers/1/w", "half"}
        params = runner.params
        np.testing.assert_array_equal(
            found["words"],
            params["words"],
        )
        np.testing.assert_array_equal(
            found["columns"],
            params["columns"],
        )
        np.testing.assert_array_equal(
            found["layers/0/w"],
            params["layers"][0]["w"],
        )
        assert found["half"].dtype == np.float32
        np.testing.assert_array_equal(
            found["half"],
            params["half"].astype(np.float32),
        )
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.npz"]


def test_a_file_that_is_there_stays_if_writing_fails(tmp_path, monkeypatch):
    runner = make()
    runner.export(tmp_path / "model.npz")
    before = (tmp_path / "model.npz").read_bytes()
    runner.run({"ids": np.arange(8)})
    monkeypatch.setattr(
        row_blocks,
        "ranges",
        lambda *args: 1 / 0,
    )
    with pytest.raises(ZeroDivisionError):
        runner.export(tmp_path / "model.npz")
    assert (tmp_path / "model.npz").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(
        SettingsError,
        match=r"ends in `.npz`, got `model.npy`",
    ):
        make().export(tmp_path / "model.npy")
