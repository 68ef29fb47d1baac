import gzip
import os
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import DataError, SettingsError
from ampjax.ir.instances import Instances
from experiments.data import mnist


def write(
    folder,
    n=5,
    labels=None,
    n_valid=None,
    seed=0,
):
    """Four small files in MNIST's names; the pixels of both splits."""
    rng = np.random.default_rng(seed)
    pixels = {}
    for stem, m in (("train", n), ("t10k", n_valid or n)):
        pixels[stem] = rng.integers(
            0,
            256,
            (m, 784),
            dtype=np.uint8,
        )
        values = bytes(labels if labels is not None else [i % 10 for i in range(m)])
        head = struct.pack(">IIII", 2051, m, 28, 28)
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(head + pixels[stem].tobytes())
        )
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(struct.pack(">II", 2049, len(values)) + values)
        )
    return pixels


def digits(n, seed=0):
    return mnist.synthetic(n, 1, seed)[0]


def test_load_standardises(tmp_path):
    pixels = write(tmp_path, n=12, n_valid=4)
    train, valid = mnist.load(tmp_path)
    assert (len(train), len(valid)) == (12, 4)
    assert train.images.dtype == np.float32 and train.labels.dtype == np.int32
    np.testing.assert_allclose(
        train.images,
        (pixels["train"] / 255 - 0.1307) / 0.3081,
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        valid.images,
        (pixels["t10k"] / 255 - 0.1307) / 0.3081,
        rtol=1e-6,
    )
    assert train.labels.tolist() == [*range(10), 0, 1]


def test_a_label_above_nine_is_refused(tmp_path):
    write(tmp_path, labels=[0, 9, 10, 3, 11])
    with pytest.raises(
        DataError,
        match=r"train-labels-idx1-ubyte\.gz, byte 10: expected a label from 0 to 9, got 10\.",
    ):
        mnist.load(tmp_path)


def test_images_and_labels_must_be_as_many(tmp_path):
    write(tmp_path, n=5, labels=[1, 2])
    with pytest.raises(
        DataError,
        match=r"images.* and .*labels.*: expected as many images as labels, got 5 images and 2 labels\. Take both",
    ):
        mnist.load(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        DataError,
        match=r"data set `mnist`: expected the file t10k-labels-idx1-ubyte\.gz or t10k-labels-idx1-ubyte, got",
    ):
        mnist.load(tmp_path)


def test_synthetic_is_like_the_real_one():
    train, valid = mnist.synthetic(600, 300, seed=3)
    for data, n in ((train, 600), (valid, 300)):
        assert data.images.shape == (n, 784)
        assert data.images.dtype == np.float32
        assert data.labels.shape == (n,)
        assert data.labels.dtype == np.int32
        assert set(data.labels) == set(range(10))
    low = (0 - mnist.MEAN) / mnist.STD
    high = (1 - mnist.MEAN) / mnist.STD
    assert train.images.min() >= low - 1e-6
    assert train.images.max() <= high + 1e-6
    assert repr(train) == "Digits(600 images)"


def test_synthetic_can_be_learned_and_repeats():
    train, valid = mnist.synthetic(600, 300, seed=3)
    means = np.stack([train.images[train.labels == c].mean(0) for c in range(10)])
    nearest = ((valid.images[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == valid.labels).mean() > 0.97
    again, _ = mnist.synthetic(600, 300, seed=3)
    assert np.array_equal(again.images, train.images) and not np.array_equal(
        digits(600, 4).images, train.images
    )


@given(
    st.integers(1, 30),
    st.integers(1, 12),
    st.integers(0, 5),
)
def test_every_image_is_in_one_batch(n, batch_size, seed):
    data = digits(n)
    batches = mnist.Batches(data, batch_size).reshuffle(np.random.default_rng(seed))
    assert isinstance(batches, Instances) and len(batches) == -(-n // batch_size)
    messages = batches.gather(np.arange(len(batches)))
    image = messages["image"]
    label = messages["label"]
    assert (
        image.payload.shape == (len(batches), batch_size, 784) and image.payload.dtype == np.float32
    )
    assert label.payload.shape == (len(batches), batch_size)
    assert label.payload.dtype == np.int32
    assert image.instance.tolist() == label.instance.tolist() == list(range(len(batches)))
    assert not image.fields and not label.fields
    counted = label.payload >= 0
    got = sorted(
        (*row.tolist(), int(c))
        for row, c in zip(image.payload[counted], label.payload[counted], strict=True)
    )
    assert got == sorted(
        (*row.tolist(), int(c)) for row, c in zip(data.images, data.labels, strict=True)
    )


def test_the_tail_is_padded_with_real_images_that_do_not_count():
    data = digits(5)
    tail = mnist.Batches(data, 3).gather(np.array([1]))
    assert tail["label"].payload.tolist() == [[*data.labels[3:].tolist(), -1]]
    assert np.array_equal(
        tail["image"].payload[0],
        data.images[[3, 4, 3]],
    )


def test_instances_come_in_the_order_asked_for():
    data = digits(6)
    messages = mnist.Batches(data, 2).gather(np.array([2, 0, 2]))
    assert np.array_equal(
        messages["label"].payload,
        data.labels[[[4, 5], [0, 1], [4, 5]]],
    )
    assert messages["label"].instance.tolist() == [0, 1, 2]


def test_reshuffling_leaves_the_old_batches_as_they_are():
    batches = mnist.Batches(digits(50), 10)
    before = batches.gather(np.arange(5))["label"].payload
    after = batches.reshuffle(np.random.default_rng(0)).gather(np.arange(5))["label"].payload
    assert np.array_equal(
        batches.gather(np.arange(5))["label"].payload, before
    ) and not np.array_equal(before, after)
    assert repr(batches) == "Batches(data=Digits(50 images), batch_size=10)"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: mnist.Batches(digits(3), 0),
            r"Batches, `batch_size`: expected at least 1, got 0\. Give a positive number\.",
        ),
        (lambda: mnist.synthetic(0, 1), r"synthetic, `n_train`: expected at least 1, got 0\."),
        (lambda: mnist.synthetic(1, -2), r"synthetic, `n_valid`: expected at least 1, got -2\."),
    ],
)
def test_settings_are_checked(call, text):
    with pytest.raises(SettingsError, match=text):
        call()


@pytest.mark.skipif(
    "AMPJAX_DATA" not in os.environ,
    reason="the real files are only read where AMPJAX_DATA names their folder",
)
@pytest.mark.slow
def test_the_real_files():
    train, valid = mnist.load()
    assert (len(train), len(valid)) == (60_000, 10_000)
    assert abs(train.images.mean()) < 1e-3
    assert abs(train.images.std() - 1) < 1e-3
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert valid.labels[:5].tolist() == [
        7,
        2,
        1,
        0,
        4,
    ]
    assert np.bincount(train.labels).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
