"""Where a device rounds what it multiplies, comparisons say so and what to do."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import NumericsError
from ampjax.numerics import product_precision
from ampjax.numerics.product_precision import advice_on_rounded_products

ADVICE = "On this GPU, JAX rounds what it multiplies to fewer bits than float32 has. To compare, call `jax.config.update('jax_default_matmul_precision', 'highest')` before anything is compiled."


def on(monkeypatch, backend, precision=None):
    config = SimpleNamespace(jax_default_matmul_precision=precision)
    monkeypatch.setattr(
        product_precision, "jax", SimpleNamespace(default_backend=lambda: backend, config=config)
    )


@pytest.mark.parametrize(
    ("backend", "precision", "advice"),
    [
        ("cpu", None, ""),
        ("gpu", None, ADVICE),
        ("gpu", "tensorfloat32", ADVICE),
        ("gpu", "highest", ""),
        ("tpu", "float32", ""),
        ("tpu", None, ADVICE.replace("GPU", "TPU")),
    ],
)
def test_the_advice_depends_on_the_device_and_on_what_jax_was_told(
    backend, precision, advice, monkeypatch
):
    on(monkeypatch, backend, precision)
    assert advice_on_rounded_products() == advice


def test_both_comparisons_give_it_only_where_numbers_differ(monkeypatch):
    calls = []

    def drifting(p, s):
        calls.append(s)
        return p["w"] * s["x"] * (1 if len(calls) == 1 else 2)

    on(monkeypatch, "gpu")
    examples = [{"x": np.float32(0.3)}]
    with pytest.raises(
        NumericsError, match=r"fewer bits than float32 has\. To compare, call .* All differences:"
    ):
        amp.compile(
            drifting,
            {"w": jnp.float32(1.5)},
            {"x": "float32[]"},
        ).verify(examples, progress=False)
    with ag.Graph() as g:
        ag.loss("loss", lambda x: x * x)(ag.pump("x"))
    assert "fewer bits" not in amp.verify(g, examples, quick=True, progress=False).report
    with ag.Graph() as g:
        ag.loss(
            "loss",
            lambda x: jnp.log(x),
        )(ag.pump("x"))
    not_finite = amp.verify(
        g,
        [{"x": np.float32(-1)}],
        quick=True,
        progress=False,
    )
    assert ADVICE in not_finite.report.splitlines()[0]
    assert jax.default_backend() == "cpu"
