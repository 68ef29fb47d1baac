"""The formulas of layers and cells in NumPy, written from the papers and the docstrings: the oracle of `unit/experiments/models/test_cells.py`.

Nothing of JAX is used here, so that no compiler is shared with what is tested. Rows come first: `[n, features]`.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def relu(x):
    return np.maximum(x, 0)


def log_sum_exp(x):
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]


def softmax(x):
    return np.exp(x - log_sum_exp(x)[..., None])


def cross_entropy(logits, labels):
    """In nats, for each row."""
    return log_sum_exp(logits) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]


def hits(logits, labels):
    return (logits.argmax(-1) == labels).astype(float)


def labelled_cross_entropy(logits, labels):
    """The mean over the labels that are not -1, and how many are hit, and how many there are."""
    real = labels >= 0
    nats = np.where(
        real,
        cross_entropy(
            logits,
            np.maximum(labels, 0),
        ),
        0,
    ).sum() / max(real.sum(), 1)
    return nats, (hits(logits, labels) * real).sum(), real.sum() * 1.0


def linear(p, *inputs):
    return np.concatenate(inputs, -1) @ p["w"] + p.get("b", 0)


def embed(table, ids):
    """Ids outside are clamped."""
    return table[np.clip(ids, 0, len(table) - 1)]


# Recurrent cells


def lstm(p, c, m, x, forget_bias=1.0):
    """Hochreiter and Schmidhuber with a forget gate; gates i, j, f, o; a projection (Sak et al.) where there is one."""
    i, j, f, o = np.split(
        np.concatenate([x, m], -1) @ p["kernel"] + p["bias"],
        4,
        -1,
    )
    c = sigmoid(f + forget_bias) * c + sigmoid(i) * np.tanh(j)
    m = sigmoid(o) * np.tanh(c)
    return c, m @ p["projection"] if "projection" in p else m


def lstm_run(p, c, m, xs, lengths=None):
    """Steps beyond a row's length leave its state and give zeros."""
    outputs = []
    for t in range(xs.shape[1]):
        after = lstm(p, c, m, xs[:, t])
        if lengths is None:
            runs = np.full((len(xs), 1), True)
        else:
            runs = (t < lengths)[:, None]
        c, m = (np.where(runs, new, old) for new, old in zip(after, (c, m), strict=True))
        outputs.append(np.where(runs, after[1], 0))
    return c, m, np.stack(outputs, 1)


def reverse(xs, lengths):
    return np.stack(
        [np.concatenate([x[:n][::-1], x[n:]]) for x, n in zip(xs, lengths, strict=True)]
    )


def tree_leaf(p, x, kind):
    """A leaf of Tai et al. (no input gate), or of TensorFlow Fold."""
    if kind == "tai":
        c, o = np.split(linear(p, x), 2, -1)
    else:
        i, j, o = np.split(
            linear(p, x),
            3,
            -1,
        )
        c = sigmoid(i) * np.tanh(j)
    return np.concatenate(
        [sigmoid(o) * np.tanh(c), c],
        -1,
    )


def tree_branch(p, left, right, kind, mask=1.0):
    """A binary Tree-LSTM, equations 9 to 14 of Tai et al.; Fold's has forget bias 1 and dropout on the candidate."""
    (h_l, c_l), (h_r, c_r) = (np.split(child, 2, -1) for child in (left, right))
    i, j, f_l, f_r, o = np.split(
        linear(p, h_l, h_r),
        5,
        -1,
    )
    bias = 1 if kind == "fold" else 0
    c = sigmoid(i) * np.tanh(j) * mask + sigmoid(f_l + bias) * c_l + sigmoid(f_r + bias) * c_r
    return np.concatenate(
        [sigmoid(o) * np.tanh(c), c],
        -1,
    )


def tagger_cell(w, gates, state):
    """DyNet's LSTM: gates i, f, o, g, forget bias 1; the state holds h and c."""
    h, c = np.split(state, 2, -1)
    i, f, o, g = np.split(
        gates + h @ w,
        4,
        -1,
    )
    c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
    return np.concatenate(
        [sigmoid(o) * np.tanh(c), c],
        -1,
    )


def gated_unit(p, a, h):
    """Li et al., equations 3 to 6."""
    z, r = np.split(
        sigmoid(linear(p["gates"], a, h)),
        2,
        -1,
    )
    return (1 - z) * h + z * np.tanh(
        linear(
            p["candidate"],
            a,
            r * h,
        )
    )


def readout(p, h, x):
    """Li et al., equation 7, without tanh."""
    i, j = np.split(
        relu(linear(p["hidden"], h, x)),
        2,
        -1,
    )
    return sigmoid(linear(p["gate"], i)) * linear(p["value"], j)


def score(p, h, x):
    return linear(
        p["out"],
        np.tanh(
            linear(
                p["hidden"],
                h,
                x,
            )
        ),
    ) * sigmoid(
        linear(
            p["gate"],
            h,
            x,
        )
    )


def segment_cross_entropy(rows, segments, n):
    """Rows of score and answer to each segment's cross entropy, and whether its answer is above all others."""
    result = []
    for k in range(n):
        scores, answers = rows[segments == k].T
        chosen = scores @ answers
        others = scores[answers <= 0]
        result.append(
            [
                log_sum_exp(scores) - chosen,
                float((chosen > others).all()),
            ]
        )
    return np.array(result)


def ponder(p, row, sizes):
    """A step of Graves' adaptive computation time on a row of input, state, mean state, sum of h and steps; and whether to go on."""
    x, s, mean, total, steps = np.split(
        row,
        np.cumsum([sizes.n_in, sizes.hidden, sizes.hidden, 1]),
        -1,
    )
    s = np.tanh(np.concatenate([x, steps == 0, s], -1) @ p["w"] + p["b"])
    h = sigmoid(s @ p["halt"] + p["halt_b"])[:, None]
    last = (total + h >= 1 - sizes.epsilon) | (steps + 1 >= sizes.max_steps)
    mean = mean + np.where(last, 1 - total, h) * s
    return np.concatenate(
        [
            x,
            s,
            mean,
            np.where(last, total, total + h),
            steps + 1,
        ],
        -1,
    ), 1.0 - last[:, 0]


def gate(p, x, top, noise):
    """Shazeer et al., equations 3 to 5; of a single expert, its share in the softmax over all (Fedus et al.)."""
    h = x @ p["gate"] + noise * softplus(x @ p["noise"])
    chosen = np.argsort(-h, -1)[:, :top]
    best = np.take_along_axis(h, chosen, -1)
    if top > 1:
        weights = softmax(best)
    else:
        weights = np.take_along_axis(softmax(h), chosen, -1)
    everywhere = np.zeros_like(h)
    np.put_along_axis(everywhere, chosen, weights, -1)
    return weights, chosen * 1.0 if top > 1 else chosen[:, 0] * 1.0, everywhere


def expert(p, x):
    return linear(
        p[1],
        relu(linear(p[0], x)),
    )


# Language models


def attention(p, query, values, present):
    """Normed additive attention: Bahdanau et al., with the norm of Salimans and Kingma."""
    v = p["g"] * p["v"] / np.sqrt((p["v"] ** 2).sum())
    energies = np.tanh(values @ p["memory"] + (query @ p["query"])[:, None] + p["b"]) @ v
    weights = softmax(np.where(present, energies, -1e9))
    return (weights[..., None] * values).sum(1)


def log_uniform(ids, n):
    return np.log((ids + 2) / (ids + 1)) / np.log(n + 1)


def expected_count(ids, n_draws, n):
    return 1 - (1 - log_uniform(ids, n)) ** n_draws


def sampled_loss(hidden, w, b, sw, sb, ids, counts):
    """Jean et al.: targets among themselves and samples other than themselves, corrected by the logarithm of expected counts."""
    targets, samples = ids
    hit = (hidden * w).sum(-1) + b - np.log(counts[0])
    others = hidden @ sw.T + sb - np.log(counts[1])
    others = np.where(
        targets[:, None] == samples,
        -np.inf,
        others,
    )
    return (
        log_sum_exp(
            np.concatenate(
                [hit[:, None], others],
                -1,
            )
        )
        - hit
    )


def encoder(p, x, lengths, hidden):
    """GNMT's first layer in both directions, more above (residual from the second); or, without these, all in both directions."""
    ahead = x
    behind = reverse(x, lengths)
    states = []
    zeros = np.zeros((len(x), hidden))
    for right, left in zip(
        p["forward"].values(),
        p["backward"].values(),
        strict=True,
    ):
        c, m, ahead = lstm_run(right, zeros, zeros, ahead, lengths)
        c2, m2, behind = lstm_run(left, zeros, zeros, behind, lengths)
        states += [c, m, c2, m2]
    y = np.concatenate([ahead, reverse(behind, lengths)], -1)
    upper = p.get("upper", {})
    if upper:
        states = states[-2:]
    for i, layer in enumerate(upper.values()):
        c, m, out = lstm_run(layer, zeros, zeros, y, lengths)
        y = out + (y if i else 0)
        states += [c, m]
    return y, states


def decoder(p, values, present, states, fed, xs):
    """GNMT: attention asked by the lowest layer, context into all, residual from the third layer on. With `join` (bi): asked by the top, and fed back."""
    outputs = []
    for t in range(xs.shape[1]):
        y = xs[:, t]
        after = []
        if "join" in p:
            y = np.concatenate([y, fed], -1)
        for i, cell in enumerate(p["cells"].values()):
            c, m = states[2 * i : 2 * i + 2]
            c, m = lstm(
                cell,
                c,
                m,
                y if "join" in p else np.concatenate([y, fed], -1),
            )
            after += [c, m]
            y = m if i < 2 or "join" in p else m + y
            if i == 0 and "join" not in p:
                fed = attention(p["attention"], y, values, present)
        if "join" in p:
            y = fed = (
                np.concatenate(
                    [y, attention(p["attention"], y, values, present)],
                    -1,
                )
                @ p["join"]
            )
        states = after
        outputs.append(y)
    return np.stack(outputs, 1)


# Random numbers


def threefry(key, x, y):
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): two words of 32 bits from a key of two and a counter of two."""
    mask = np.uint64(0xFFFFFFFF)
    words = [np.uint64(k) for k in key]
    words.append(words[0] ^ words[1] ^ np.uint64(0x1BD11BDA))
    x, y = (np.asarray(a).astype(np.uint64) + k & mask for a, k in zip((x, y), words, strict=False))
    for i in range(20):
        by = np.uint64((13, 15, 26, 6, 17, 29, 16, 24)[i % 8])
        x = x + y & mask
        y = ((y << by | y >> np.uint64(32) - by) & mask) ^ x
        if i % 4 == 3:
            j = i // 4 + 1
            x = x + words[j % 3] & mask
            y = y + words[(j + 1) % 3] + np.uint64(j) & mask
    return x, y


def fold_in(key, data):
    """JAX's key of a key and an integer."""
    return [int(word) for word in threefry(key, 0, data)]


def bernoulli(key, p, shape):
    """JAX's draws: of the two words of each place's block, one on the other, the first 23 bits are a fraction."""
    x, y = threefry(
        key,
        0,
        np.arange(np.prod(shape, dtype=int)),
    )
    return ((x ^ y) >> np.uint64(9)).reshape(shape) / 2.0**23 < np.float32(p)


def dropout(key, x, keep):
    return np.where(
        bernoulli(key, keep, x.shape),
        x / keep,
        0,
    )
