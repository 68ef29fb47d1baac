"""A function of a batch under JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh, PartitionSpec

import ampjax as amp
from ampjax.errors import DataError, GraphError

SPEC = {"x": "float32[n,2]", "parent": "int32[n]", "k": "int32[]"}
PARAMS = {
    "w": np.array(
        [[0.5, -0.3], [0.2, 0.7]],
        np.float32,
    )
}


def example(seed, n):
    rng = np.random.default_rng(seed)
    parent = []
    for i in range(n):
        parent.append(int(rng.integers(-1, i)) if i else -1)
    return {
        "x": rng.normal(size=(n, 2)).astype(np.float32),
        "parent": np.array(parent, np.int32),
        "k": np.int32(seed % 2),
    }


EXAMPLES = [example(seed, n) for seed, n in enumerate((3, 0, 6, 1))]


def model(p, s):
    h, _ = amp.scan(
        lambda h, x: (
            jnp.tanh(h @ p["w"] + x),
            None,
        ),
        jnp.zeros(2, p["w"].dtype),
        s["x"],
    )
    above = amp.recurse(
        lambda recur, i, x: jnp.sin(recur(i) @ p["w"] + x),
        h,
        s["parent"],
        s["x"],
    )
    chosen = amp.cond(
        s["k"] == 0,
        lambda: amp.sum(above),
        lambda: h,
    )
    chosen = jax.nn.softplus(chosen) - jax.nn.relu(h)
    return jnp.sum(
        amp.cond(
            amp.read(chosen[0] > 0),
            lambda: chosen @ p["w"],
            lambda: chosen * 2,
        )
    )


BATCHED = amp.vmap(model, SPEC, params=PARAMS)
BATCH = BATCHED.pack(EXAMPLES)


def loss(p, batch):
    return jnp.sum(BATCHED(p, batch) * batch.weights)


def compare(one, other, tolerance=1e-5):
    for a, b in zip(
        jax.tree.leaves(one),
        jax.tree.leaves(other),
        strict=True,
    ):
        np.testing.assert_allclose(
            np.asarray(a, np.float64),
            np.asarray(b, np.float64),
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.fixture(scope="module")
def gradient():
    return jax.grad(lambda p: sum(model(p, each) for each in EXAMPLES))(PARAMS)


@pytest.mark.nightly
def test_checkpoint(gradient):
    compare(
        jax.grad(lambda p: jax.checkpoint(loss)(p, BATCH))(PARAMS),
        gradient,
    )


@pytest.mark.nightly
def test_donated_parameters(gradient):
    step = jax.jit(
        lambda p, batch: jax.tree.map(
            jnp.subtract,
            p,
            jax.grad(loss)(p, batch),
        ),
        donate_argnums=0,
    )
    compare(
        step(jax.tree.map(jnp.array, PARAMS), BATCH),
        jax.tree.map(np.subtract, PARAMS, gradient),
    )


def test_an_ensemble(gradient):
    several = jax.tree.map(
        lambda x: jnp.stack([0.1 * x, x]),
        PARAMS,
    )
    compare(
        jax.tree.map(
            lambda x: x[1],
            jax.vmap(jax.grad(loss), in_axes=(0, None))(
                several,
                BATCH,
            ),
        ),
        gradient,
    )


@pytest.mark.nightly
def test_a_forward_derivative(gradient):
    direction = jax.tree.map(np.ones_like, PARAMS)
    _, change = jax.jvp(
        lambda p: loss(p, BATCH),
        (PARAMS,),
        (direction,),
    )
    compare(
        change,
        sum(np.sum(leaf) for leaf in jax.tree.leaves(gradient)),
    )


@pytest.mark.nightly
def test_several_devices(gradient):
    """Each device has a part; gradients are summed over devices."""
    parts = BATCHED.pack(EXAMPLES, parts=2)
    assert parts.weights.shape == (2, 2)
    mesh = Mesh(
        np.array(jax.devices()[:2]),
        ("device",),
    )

    def own(p, batch):
        return jax.lax.psum(
            jax.grad(loss)(
                p,
                jax.tree.map(lambda x: x[0], batch),
            ),
            "device",
        )

    specs = PartitionSpec(), PartitionSpec("device")
    every = jax.shard_map(
        own, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )
    compare(jax.jit(every)(PARAMS, parts), gradient)


def test_parts_have_equal_shapes_and_uneven_ones_are_filled_up():
    parts = BATCHED.pack(EXAMPLES[:3], parts=2)
    assert parts.weights.tolist() == [[1, 1], [1, 0]]
    each = [jax.tree.map(lambda x, i=i: x[i], parts) for i in range(2)]
    compare(
        sum(loss(PARAMS, part) for part in each),
        sum(model(PARAMS, each) for each in EXAMPLES[:3]),
    )
    uneven = BATCHED.pack([*EXAMPLES, EXAMPLES[0]], parts=4)
    assert uneven.weights.tolist() == [[1, 1], [1, 0], [1, 0], [1, 0]]
    with pytest.raises(DataError, match="at least one example for each of 3 parts, got 2"):
        BATCHED.pack(EXAMPLES[:2], parts=3)


@pytest.mark.parametrize(
    "seed",
    [
        8,
        11,
        pytest.param(12, marks=pytest.mark.nightly),
    ],
)
def test_parts_with_levels_of_different_width_have_equal_shapes(seed):
    """Levels as wide as in the widest part need more rows together than any part alone."""

    def ancestors(p, s):
        above = amp.recurse(
            lambda recur, i, x: jnp.sin(recur(i) @ p["w"] + x),
            jnp.zeros(2),
            s["parent"],
            s["x"],
        )
        return amp.sum(above).sum()

    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 80, 30)
    examples = []
    for number, n in enumerate(sizes):
        of_example = np.random.default_rng(number)
        parent = np.full(n, -1, np.int32)
        for i in range(1, n):
            parent[i] = of_example.integers(
                max(-1, i - 6),
                i,
            )
        x = of_example.normal(size=(n, 2)).astype(np.float32)
        examples.append({"x": x, "parent": parent})
    spec = {"x": "float32[n,2]", "parent": "int32[n]"}
    batched = amp.vmap(ancestors, spec, params=PARAMS)
    parts = batched.pack(examples, parts=5)
    whole = batched(PARAMS, examples)
    for number in range(5):
        part = jax.tree.map(
            lambda x, number=number: x[number],
            parts,
        )
        compare(
            batched(PARAMS, part),
            whole[6 * number : 6 * number + 6],
        )


@pytest.mark.nightly
def test_export():
    exported = export.export(jax.jit(loss))(PARAMS, BATCH)
    compare(exported.call(PARAMS, BATCH), loss(PARAMS, BATCH))


@pytest.mark.nightly
def test_bfloat16():
    half = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.bfloat16),
        PARAMS,
    )
    examples = []
    for each in EXAMPLES:
        examples.append(
            {
                **each,
                "x": jnp.asarray(each["x"], jnp.bfloat16),
            }
        )
    batched = amp.vmap(
        model,
        {**SPEC, "x": "bfloat16[n,2]"},
        params=half,
    )
    found = batched(half, examples)
    assert found.dtype == jnp.bfloat16
    compare(
        found,
        jnp.stack([model(half, each) for each in examples]),
        0.05,
    )  # bfloat16 has 8 bits


@pytest.mark.nightly
def test_float64():
    with jax.enable_x64(True):
        double = jax.tree.map(
            lambda x: jnp.asarray(x, jnp.float64),
            PARAMS,
        )
        examples = []
        for each in EXAMPLES:
            examples.append(
                {
                    **each,
                    "x": np.asarray(each["x"], np.float64),
                }
            )
        found = amp.vmap(
            model,
            {**SPEC, "x": "float64[n,2]"},
            params=double,
        )(
            double,
            examples,
        )
        compare(
            found,
            jnp.stack([model(double, each) for each in examples]),
            1e-12,
        )


def test_what_is_not_taken_has_an_error():
    with pytest.raises(GraphError, match="operations on one element"):
        amp.vmap(
            lambda p, s: jnp.fft.fft(s["x"], axis=0).real,
            SPEC,
        )(
            PARAMS,
            EXAMPLES,
        )
