"""Arrays as users have them: tensors of other libraries, 64 bits, files of short floats."""

import types

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.devices.host_arrays import host_array, require_32_bits
from ampjax.errors import DataError, ParameterError


class Tensor:
    """What torch's tensors offer: a dtype of its own, memory by `__array__` or, for bfloat16, by DLPack; not while there is a gradient."""

    def __init__(self, values, requires_grad=False):
        self._values = np.asarray(values)
        self.requires_grad = requires_grad
        self.dtype = types.SimpleNamespace(is_complex=False)
        self.shape = self._values.shape

    def detach(self):
        return Tensor(self._values)

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
            )
        if self._values.dtype == ml_dtypes.bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._values

    def __dlpack__(self, **options):
        return jnp.asarray(self._values).__dlpack__(**options)

    def __dlpack_device__(self):
        return jnp.asarray(self._values).__dlpack_device__()

    def __len__(self):
        return len(self._values)

    def __getitem__(self, place):
        return Tensor(self._values[place])


class Elsewhere(Tensor):
    """A tensor in a GPU's memory."""

    def detach(self):
        return self

    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")

    __dlpack__ = None


def test_tensors_are_arrays():
    values = np.arange(6.0, dtype=np.float32).reshape(
        2,
        3,
    )
    for tensor in (Tensor(values), Tensor(values, requires_grad=True)):
        found = host_array(tensor, "leaf")
        assert isinstance(found, np.ndarray) and np.shares_memory(found, values)
    short = host_array(Tensor(values.astype(ml_dtypes.bfloat16)), "leaf")
    assert short.dtype == ml_dtypes.bfloat16 and (short == values).all()
    with pytest.raises(
        DataError, match=r"leaf: expected an array in host memory, got a tensor of .*cuda:0"
    ):
        host_array(Elsewhere(values), "leaf")


def test_torch_trains_as_numpy_does():
    torch = pytest.importorskip("torch")
    check_tensors(
        torch.tensor,
        lambda x: torch.nn.Parameter(torch.tensor(x)),
    )


def test_tensors_train_as_numpy_does():
    check_tensors(Tensor, lambda x: Tensor(x, requires_grad=True))


def check_tensors(tensor, parameter):
    def loss(params, batch):
        return jnp.mean((params["t"][batch["ids"]].sum(1) @ params["w"] - batch["y"]) ** 2)

    rng = np.random.default_rng(0)
    params = {
        "t": rng.normal(size=(40, 3)).astype(np.float32),
        "w": np.ones(3, np.float32),
    }
    batch = {
        "ids": rng.integers(0, 40, (8, 2)),
        "y": rng.normal(size=8).astype(np.float32),
    }
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:2]))
    )

    def make(params):
        return px.get_runner(
            loss,
            params,
            optax.sgd(0.1),
            machines,
            px.ParallaxConfig(alpha_threshold=1.0),
        )

    plain = make(params)
    other = make({name: parameter(value) for name, value in params.items()})
    tensors = {name: tensor(value) for name, value in batch.items()}
    assert plain.run(batch).loss == other.run(tensors).loss
    assert plain.run(px.shard(batch, machines)).loss == other.run(px.shard(tensors, machines)).loss
    jax.tree.map(np.testing.assert_array_equal, plain.params, other.params)


LOST = {
    "a large id": (
        np.array([[1, 2], [3, 2**40]]),
        r"int32 holds.* int64, got 1099511627776 at \[1, 1\]",
    ),
    "a small id": (np.array([-(2**31) - 1]), r"int32 holds.*got -2147483649 at \[0\]"),
    "a scalar": (
        np.uint64(2**32),
        r"uint32 holds.*got 4294967296\. .*`ids % n_rows`.*jax_enable_x64",
    ),
    "a float": (
        np.array([1.0, np.nan, -1e39]),
        r"float32 holds.* float64, got -1e\+39 at \[2\]\. .*exploded",
    ),
    "a complex number": (np.array([1e300j]), r"complex64 holds.*got .*1e\+300j at \[0\]"),
}


@pytest.mark.parametrize("kind", LOST)
def test_numbers_that_jax_does_not_hold_are_refused(kind):
    array, text = LOST[kind]
    with pytest.raises(DataError, match="leaf: expected numbers that " + text):
        require_32_bits(array, "leaf")


HELD = [
    np.array([2**31 - 1, -(2**31)]),
    np.array([2**32 - 1], np.uint64),
    np.array([3e38, np.inf, np.nan]),
    np.zeros((0, 3), np.int64),
    np.array([2**31 - 1], np.int32),
    np.array([True]),
]


@pytest.mark.parametrize("array", HELD, ids=repr)
def test_numbers_that_jax_holds_are_taken(array):
    require_32_bits(array, "leaf")


def hashed(params, batch):
    return jnp.mean((params["t"][batch["ids"] % 100].sum(1) @ params["w"]) ** 2)


PARAMS = {
    "t": np.ones((100, 3), np.float32),
    "w": np.ones(3, np.float32),
}


def test_a_runner_names_the_leaf():
    runner = px.get_runner(hashed, PARAMS, optax.sgd(0.1))
    ids = np.arange(8).reshape(4, 2)
    for batch in (
        {"ids": ids + 2**33},
        px.Parts(({"ids": ids + 2**33},) * len(jax.local_devices())),
    ):
        with pytest.raises(DataError, match=r"batch, leaf `ids`: .*got 8589934592 at \[0, 0\]"):
            runner.run(batch)
    with pytest.raises(
        ParameterError,
        match=r"parameter `t`: expected numbers that float32 holds.*1e\+300 at \[0, 0\]",
    ):
        px.get_runner(
            hashed,
            PARAMS | {"t": np.full((100, 3), 1e300)},
            optax.sgd(0.1),
        )


def test_64_bits_are_right_where_jax_has_them():
    with jax.enable_x64(True):
        runner = px.get_runner(hashed, PARAMS, optax.sgd(0.1))
        ids = np.random.default_rng(0).integers(
            2**40,
            2**62,
            (8, 1),
        )
        runner.run({"ids": ids})
        assert set(np.flatnonzero((runner.params["t"] != 1).any(1))) == set(
            (ids % 100).ravel().tolist()
        )


def test_short_floats_from_a_file(tmp_path):
    np.save(
        tmp_path / "t.npy",
        np.ones((100, 3), ml_dtypes.bfloat16),
    )
    read = np.load(tmp_path / "t.npy")
    with pytest.raises(
        ParameterError, match=r"parameter `t`: .*bfloat16.*`array.view\(ml_dtypes.bfloat16\)`"
    ):
        px.get_runner(
            hashed,
            PARAMS | {"t": read},
            optax.sgd(0.1),
        )
    with pytest.raises(DataError, match=r"batch, leaf `ids`: .*bfloat16"):
        px.get_runner(
            hashed,
            PARAMS,
            optax.sgd(0.1),
        ).run({"ids": read})
    px.get_runner(
        hashed,
        PARAMS | {"t": read.view(ml_dtypes.bfloat16)},
        optax.sgd(0.1),
    )


def test_a_masked_array_is_refused_as_its_mask_would_be_lost():
    with pytest.raises(
        DataError, match="batch, leaf `x`: expected an array without a mask, got a masked"
    ):
        host_array(np.ma.array([1, 2], mask=[0, 1]), "batch, leaf `x`")
