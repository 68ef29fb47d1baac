"""The formulas of convolutional blocks in NumPy: the oracle of `unit/experiments/models/test_cells.py`. Images are `[n, height, width, channels]`."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from support.formulas import relu


def windows(x, height, width, stride, pad, fill=0.0):
    """Every window `[n, h, w, c, height, width]`; `pad` is `SAME`, `VALID`, or the pixels on each side."""
    if isinstance(pad, str):
        sides = {
            "SAME": (height - 1, width - 1),
            "VALID": (0, 0),
        }.get(pad)
    else:
        sides = (2 * pad, 2 * pad)
    around = [
        (0, 0),
        *((n // 2, n - n // 2) for n in sides),
        (0, 0),
    ]
    x = np.pad(x, around, constant_values=fill)
    return sliding_window_view(
        x,
        (height, width),
        (1, 2),
    )[:, ::stride, ::stride]


def conv_norm(
    p,
    x,
    *,
    stride=1,
    pad="VALID",
    epsilon=1e-5,
    rectified=True,
    averages=None,
):
    """A convolution, BatchNorm with the batch's own statistics (Ioffe and Szegedy) or with given ones, and a ReLU."""
    kernel = p["conv"]["kernel"]
    y = np.tensordot(
        windows(x, *kernel.shape[:2], stride, pad),
        kernel,
        ((4, 5, 3), (0, 1, 2)),
    )
    if averages:
        mean = averages["mean"]
        variance = averages["var"]
    else:
        mean = y.mean((0, 1, 2))
        variance = y.var((0, 1, 2))
    y = (y - mean) / np.sqrt(variance + epsilon) * p["norm"]["scale"] + p["norm"]["bias"]
    return relu(y) if rectified else y


def max_pool(x, pad="VALID"):
    """3 by 3, every second place."""
    return windows(
        x,
        3,
        3,
        2,
        pad,
        -np.inf,
    ).max((-1, -2))


def bottleneck(p, x, stride):
    """He et al.: 1 by 1, 3 by 3 with the stride, 1 by 1; beside a shortcut."""
    y = conv_norm(
        p["middle"],
        conv_norm(p["reduce"], x),
        stride=stride,
        pad=1,
    )
    y = conv_norm(p["expand"], y, rectified=False)
    return relu(
        y + (conv_norm(p["shortcut"], x, stride=stride, rectified=False) if "shortcut" in p else x)
    )


def resnet(p, x, strides):
    """The stem (7 by 7, halved twice), bottlenecks, the mean over the grid, a matrix."""
    x = max_pool(
        conv_norm(p["stem"], x, stride=2, pad=3),
        1,
    )
    for block, stride in zip(
        p["blocks"].values(),
        strides,
        strict=True,
    ):
        x = bottleneck(block, x, stride)
    return x.mean((1, 2)) @ p["head"]["kernel"] + p["head"]["bias"]


def inception_block(p, x, branches):
    """Szegedy et al., figures 5 to 7 and 10: branches beside each other, as the tables of `inception_blocks` list them."""
    return np.concatenate(
        [_branch(p["branches"].get(i, {}), x, branch) for i, branch in enumerate(branches)],
        -1,
    )


def _branch(p, x, branch):
    rows = iter(p.get("row", {}).values())
    for part in branch:
        if part == "max":
            x = max_pool(x)
        elif part == "mean":
            x = windows(
                x,
                3,
                3,
                1,
                "SAME",
            ).mean((-1, -2))
        elif isinstance(part, list):
            pairs = zip(part, p["side_by_side"].values(), strict=True)
            x = np.concatenate(
                [_inception_conv(q, x, conv.stride) for conv, q in pairs],
                -1,
            )
        else:
            x = _inception_conv(next(rows), x, part.stride)
    return x


def _inception_conv(p, x, stride, pad=None):
    return conv_norm(
        p,
        x,
        stride=stride,
        pad=pad or ("SAME" if stride == 1 else "VALID"),
        epsilon=1e-3,
    )


def auxiliary(p, x):
    """Mean pooling 5 by 5 (or the whole, smaller grid) in steps of 3, 1 by 1, one over what is left, a matrix."""
    size = min(5, x.shape[1])
    x = _inception_conv(
        p["reduce"],
        windows(
            x,
            size,
            size,
            3,
            "VALID",
        ).mean((-1, -2)),
        1,
    )
    return (
        _inception_conv(p["whole"], x, 1, "VALID")[:, 0, 0] @ p["head"]["kernel"]
        + p["head"]["bias"]
    )
