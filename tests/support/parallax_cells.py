"""The cells of Parallax's models, as cases of `unit/experiments/models/test_cells.py`."""

from functools import partial

import jax.numpy as jnp
import numpy as np
from support import formulas as f
from support import image_formulas
from support.cells import COMPOSED, CROSS, IMAGES, Cases, Problem

from experiments.models import inception, lm, nmt, resnet
from experiments.models.layers import classifiers, inception_blocks, sampled_softmax
from experiments.models.layers.attention import Attention
from experiments.models.layers.dropout import Dropout
from experiments.models.layers.lstm import LSTM, reverse
from experiments.models.layers.seq2seq import ARCHITECTURES, Decoder, Encoder

CASES = Cases()
case = CASES.add

NOTHING = Dropout(None, 0.0)
WORDS = 3


def start(key, shape, dtype=jnp.float32):
    """An initializer of nothing: a case fills parameters in."""
    return jnp.zeros(shape, dtype)


def texts(inputs, rows):
    """Lengths of some sentences of `WORDS` at most, and which words are there."""
    lengths = inputs.integers(1, WORDS + 1, rows)
    return lengths, np.arange(WORDS) < lengths[:, None]


# The LSTM


@case("lstm.LSTM", sizes=CROSS)
def lstm_step(hidden, rows, inputs):
    lstm, params, _ = inputs.module(lambda rngs: LSTM(hidden, hidden, initializer=start, rngs=rngs))
    state = (
        inputs.normal(rows, hidden),
        inputs.normal(rows, hidden),
    )
    x = inputs.normal(rows, hidden)
    return Problem(
        lambda p, c, m, x: lstm(p)((c, m), x),
        f.lstm,
        (params, *state, x),
    )


@case("lstm.LSTM.run", "lstm.reverse")
def lstm_run(hidden, rows, inputs):
    """With a projection, over sentences read backwards."""

    def make(rngs):
        return LSTM(7, hidden, hidden // 2, initializer=start, rngs=rngs)

    lstm, params, _ = inputs.module(make)
    lengths, _ = texts(inputs, rows)

    def tested(p, c, m, xs):
        state, outputs = lstm(p).run(
            (c, m),
            reverse(xs, lengths),
            lengths,
        )
        return *state, reverse(outputs, lengths)

    def formula(p, c, m, xs):
        c, m, outputs = f.lstm_run(
            p,
            c,
            m,
            f.reverse(xs, lengths),
            lengths,
        )
        return c, m, f.reverse(outputs, lengths)

    state = inputs.normal(rows, hidden), inputs.normal(rows, hidden // 2)
    return Problem(
        tested,
        formula,
        (params, *state, inputs.normal(rows, WORDS, 7)),
    )


# The language model


@case("lm.LanguageModel", "lm.Softmax.logits", "lm.Softmax.rows", sizes=COMPOSED)
def language_model(hidden, rows, inputs):
    config = lm.Config(
        20,
        embedding=hidden,
        hidden=hidden,
        projection=None,
        samples=2,
    )
    model, params, _ = inputs.module(lambda rngs: lm.LanguageModel(config, rngs))
    words = inputs.integers(0, 20, (rows, WORDS))

    def tested(p, c, m):
        built = model(p)
        (c, m), outputs = built(
            {"inputs": words, "state": {"c": c, "m": m}},
            NOTHING,
        )
        return c, m, built.softmax.logits(outputs), *built.softmax.rows(words)

    def formula(p, c, m):
        c, m, outputs = f.lstm_run(
            p["lstm"],
            c,
            m,
            p["embedding"][words],
        )
        w = p["softmax"]["weight"]
        b = p["softmax"]["bias"]
        return c, m, outputs @ w.T + b, w[words], b[words]

    return Problem(
        tested,
        formula,
        (
            params,
            inputs.normal(rows, hidden),
            inputs.normal(rows, hidden),
        ),
    )


@case(
    "sampled_softmax.sampled_loss", "sampled_softmax.expected_count", "sampled_softmax.log_uniform"
)
def sampled_softmax_loss(hidden, rows, inputs):
    """Of 40 samples among 100 classes, so that some targets are among the samples."""
    n = 100
    targets = inputs.integers(0, n, rows)
    samples = inputs.rng.permutation(n)[:40]

    def tested(*floats):
        x, w, b, sw, sb = floats
        counts = []
        for ids in (targets, samples):
            counts.append(sampled_softmax.expected_count(ids, 50, n))
        loss = sampled_softmax.sampled_loss(
            x,
            (w, b),
            (sw, sb),
            targets,
            samples,
            counts,
        )
        return loss, sampled_softmax.log_uniform(samples, n)

    def formula(*floats):
        counts = []
        for ids in (targets, samples):
            counts.append(f.expected_count(ids, 50, n))
        return f.sampled_loss(
            *floats,
            (targets, samples),
            counts,
        ), f.log_uniform(samples, n)

    scale = hidden**-0.5
    matrices = (
        inputs.normal(rows, hidden, scale=scale),
        inputs.normal(rows),
        inputs.normal(40, hidden, scale=scale),
    )
    return Problem(
        tested,
        formula,
        (
            inputs.normal(rows, hidden),
            *matrices,
            inputs.normal(40),
        ),
    )


# Translation


@case(
    "attention.Attention",
    *(f"attention.Attention.{name}" for name in ("remember", "keys", "ask", "energies")),
)
def attention(hidden, rows, inputs):
    attend, params, _ = inputs.module(
        lambda rngs: Attention(hidden // 2, hidden, initializer=start, rngs=rngs)
    )
    _, present = texts(inputs, rows)

    def tested(p, query, values):
        return attend(p)(query, attend(p).remember(values, present))

    formula = lambda p, query, values: f.attention(p, query, values, present)
    return Problem(
        tested,
        formula,
        (
            params,
            inputs.normal(rows, hidden),
            inputs.normal(rows, WORDS, hidden // 2),
        ),
    )


def _encoder(architecture):
    def encoder(hidden, rows, inputs):
        make = lambda rngs: Encoder(architecture, 4, hidden, start, rngs)
        encode, params, _ = inputs.module(make)
        lengths, _ = texts(inputs, rows)
        tested = lambda p, x: encode(p)(x, lengths, NOTHING)
        formula = lambda p, x: f.encoder(p, x, lengths, hidden)
        return Problem(
            tested,
            formula,
            (params, inputs.normal(rows, WORDS, hidden)),
        )

    return encoder


def _decoder(architecture):
    def decoder(hidden, rows, inputs):
        """From given states and a given vector that is fed in."""

        def make(rngs):
            return Decoder(architecture, 3, hidden, 9, start, rngs)

        decode, params, _ = inputs.module(make)
        fed = hidden if architecture == "bi" else 9
        _, present = texts(inputs, rows)

        def tested(p, values, states, fed, xs):
            model = decode(p)
            pairs = list(
                zip(
                    states[::2],
                    states[1::2],
                    strict=True,
                )
            )
            memory = model.attention.remember(values, present)
            attend = partial(model.attention, memory=memory)
            return model.run(
                attend,
                (pairs, fed),
                xs,
                NOTHING,
            ), model.step(attend, (pairs, fed), xs[:, 0], NOTHING)[1]

        def formula(p, values, states, fed, xs):
            outputs = f.decoder(p, values, present, states, fed, xs)
            return outputs, outputs[:, 0]

        states = [inputs.normal(rows, hidden) for _ in range(6)]
        data = (
            inputs.normal(rows, WORDS, 9),
            states,
            inputs.normal(rows, fed),
            inputs.normal(rows, WORDS, hidden),
        )
        return Problem(tested, formula, (params, *data))

    return decoder


for _architecture in ARCHITECTURES:
    case("seq2seq.Encoder", "seq2seq.Encoder.read", sizes=COMPOSED)(_encoder(_architecture))
    case("seq2seq.Decoder.run", "seq2seq.Decoder.step", sizes=COMPOSED)(_decoder(_architecture))


@case(
    "nmt.Translator.encode",
    "nmt.Translator.decode",
    "nmt.Translator.logits",
    "seq2seq.Decoder.start",
    "lstm.LSTM.start",
    sizes=COMPOSED,
)
def translator(hidden, rows, inputs):
    """The logits of given words, and those of the first word by itself."""
    config = nmt.Config(2, hidden, 20, 20, dropout=0.0)
    model, params, _ = inputs.module(lambda rngs: nmt.Translator(config, rngs))
    lengths, present = texts(inputs, rows)
    source, target = inputs.integers(0, 20, (2, rows, WORDS))
    batch = {"source": source, "source_length": lengths, "target_in": target}

    def tested(p):
        built = model(p)
        memory, state = built.encode(source, lengths, NOTHING)
        return built.logits(
            batch,
            NOTHING,
        ), built.decode(memory, state, target[:, 0])[1]

    def formula(p):
        values, states = f.encoder(
            p["encoder"],
            p["source_embedding"][source],
            lengths,
            hidden,
        )
        xs = p["target_embedding"][target]
        nothing = np.zeros((rows, hidden))
        logits = (
            f.decoder(
                p["decoder"],
                values,
                present,
                states,
                nothing,
                xs,
            )
            @ p["output"]
        )
        return logits, logits[:, 0]

    return Problem(tested, formula, (params,))


# Images


@case("classifiers.cross_entropy")
def smoothed_cross_entropy(hidden, rows, inputs):
    labels = inputs.integers(0, hidden, rows)

    def formula(logits):
        right = 0.9 * np.eye(hidden)[labels] + 0.1 / hidden
        return (right * (f.log_sum_exp(logits)[:, None] - logits)).sum(-1).mean()

    return Problem(
        lambda x: classifiers.cross_entropy(x, labels, 0.1),
        formula,
        (inputs.normal(rows, hidden),),
    )


@case("classifiers.ConvNorm", "inception_blocks.convolution", sizes=IMAGES)
def convolution_in_training(hidden, rows, inputs):
    conv = inception_blocks.Conv(hidden, (3, 1), 2)
    made, params, _ = inputs.module(
        lambda rngs: inception_blocks.convolution(hidden, conv, lambda n: n, rngs, "SAME")
    )

    def formula(p, x):
        return image_formulas.conv_norm(
            p,
            x,
            stride=2,
            pad="SAME",
            epsilon=1e-3,
        )

    return Problem(
        lambda p, x: made(p)(x, True),
        formula,
        (params, inputs.normal(rows, 9, 9, hidden)),
    )


@case("classifiers.ConvNorm", sizes=IMAGES)
def convolution_in_prediction(hidden, rows, inputs):
    def make(rngs):
        return classifiers.ConvNorm(
            hidden,
            hidden,
            (3, 3),
            padding=1,
            rngs=rngs,
        )

    made, params, averages = inputs.module(make)

    def formula(p, averages, x):
        return image_formulas.conv_norm(p, x, pad=1, averages=averages["norm"])

    return Problem(
        lambda p, a, x: made(p, a)(x, False),
        formula,
        (params, averages, inputs.normal(rows, 8, 8, hidden)),
    )


@case("resnet.Bottleneck", sizes=IMAGES)
def bottlenecks(hidden, rows, inputs):
    """One with a shortcut and a stride, one without."""
    first, p, _ = inputs.module(lambda rngs: resnet.Bottleneck(hidden, 4, 2, rngs))
    second, q, _ = inputs.module(lambda rngs: resnet.Bottleneck(16, 4, 1, rngs))

    def tested(p, q, x):
        return second(q)(first(p)(x, True), True)

    def formula(p, q, x):
        return image_formulas.bottleneck(q, image_formulas.bottleneck(p, x, 2), 1)

    return Problem(
        tested,
        formula,
        (p, q, inputs.normal(rows, 8, 8, hidden)),
    )


@case("resnet.ResNet", sizes=((4, 5),))
def small_resnet(hidden, rows, inputs):
    model, params, _ = inputs.module(
        lambda rngs: resnet.ResNet(
            resnet.Config((1, 1), hidden, 7, 32),
            rngs,
        )
    )

    def formula(p, x):
        return image_formulas.resnet(p, x, (1, 2))

    return Problem(
        lambda p, x: model(p)(x, True),
        formula,
        (params, inputs.normal(rows, 32, 32, 3)),
    )


def _block(name):
    def inception_block(hidden, rows, inputs):
        """Channels of the paper's, divided by 64."""
        branches = inception_blocks.BLOCKS[name]

        def make(rngs):
            return inception_blocks.Block(hidden, branches, lambda n: n // 64 + 1, rngs)

        block, params, _ = inputs.module(make)
        formula = lambda p, x: image_formulas.inception_block(p, x, branches)
        return Problem(
            lambda p, x: block(p)(x, True),
            formula,
            (params, inputs.normal(rows, 9, 9, hidden)),
        )

    return inception_block


for _name in (
    "35/32",
    "to 17",
    "17/128",
    "to 8",
    "8",
):  # the others differ from these in channels only
    case("inception_blocks.Block", "inception_blocks.BranchModule", sizes=IMAGES[:1])(_block(_name))


@case(
    "inception.Auxiliary",
    sizes=((5, 16), (16, 16)),
)
def auxiliary_head(hidden, rows, inputs):
    """Its last BatchNorm is over images alone: of the three that `IMAGES` has, it would divide by a difference of nearly equal float32 numbers."""
    config = inception.Config(shrink=64, classes=7)
    make = lambda rngs: inception.Auxiliary(hidden, config, rngs)
    head, params, _ = inputs.module(make)
    tested = lambda p, x: head(p)(x, True)
    return Problem(
        tested,
        image_formulas.auxiliary,
        (params, inputs.normal(rows, 17, 17, hidden)),
    )
