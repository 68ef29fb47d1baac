"""What a stage keeps for its adjoint: how often bodies are traced, and that adjoints are those of `jax.vjp`."""

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine.kernels.residuals import find_residuals, row_vjp, shapes_of
from ampjax.engine.kernels.stage_program import make_program

FEATURES = 3


def program_of(body):
    """The program of a stage with parameters that computes a body, and its parameters."""
    with ag.Graph() as g:
        layer = ag.ppt(
            "layer",
            body,
            params=lambda key: {"w": np.full(FEATURES, 0.5, np.float32)},
        )
        y = layer(ag.pump("x", (FEATURES,)))
        ag.loss(
            "loss",
            lambda y: (y**2).sum(),
        )(y)
    trainer = amp.Trainer(g, fuse=False)
    return make_program(next(s for s in trainer.plan.stages if s.params)), (
        trainer.params["layer"],
    )


def test_a_forward_pass_and_its_adjoint_trace_a_body_once_for_each_number_of_rows():
    traced = []

    def body(params, x):
        traced.append(x.shape)
        return jnp.tanh(jnp.sin(x * params["w"]) * params["w"])

    program, params = program_of(body)
    residuals = find_residuals(
        program,
        (((FEATURES,), "float32"),),
        shapes_of(params),
    )
    assert residuals.leaves
    for k in (2, 7):
        x = jnp.arange(k * FEATURES, dtype=jnp.float32).reshape(
            k,
            FEATURES,
        )
        before = len(traced)

        @jax.jit
        def forward(params, x):
            return residuals.forward(program, params, (x,), None)

        @jax.jit
        def adjoint(params, x, recorded):
            outs, pull = residuals.backward(
                program,
                params,
                (x,),
                None,
                recorded,
            )
            return outs, pull(jax.tree.map(jnp.ones_like, outs))

        outs, recorded = forward(params, x)
        again, grads = adjoint(params, x, recorded)
        assert len(traced) == before + 1
        np.testing.assert_array_equal(
            jax.tree.leaves(outs)[0],
            jax.tree.leaves(again)[0],
        )
        expected = row_vjp(program, params, (x,), None)[1](
            jax.tree.map(
                jnp.ones_like,
                outs,
            )
        )
        assert jax.tree.structure(grads) == jax.tree.structure(expected)
        for got, want in zip(
            jax.tree.leaves(grads),
            jax.tree.leaves(expected),
            strict=True,
        ):
            np.testing.assert_allclose(got, want, rtol=1e-6)
