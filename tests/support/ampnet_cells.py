"""The layers of `ampjax.nn` and the cells of AMPNet's models, as cases of `unit/experiments/models/test_cells.py`."""

import jax
import jax.numpy as jnp
import numpy as np
from support import formulas as f
from support.cells import CROSS, Cases, Problem, body, mapped

import ampjax as amp
import ampjax.graphs as ag
from experiments.by_hand import ggnn_graph, mixture_graph, tagger_graph, tree_lstm_graph
from experiments.models import act, ggnn, mixture, permutation, tagger, tiled, tree_lstm
from experiments.models.layers.bernoulli import bernoulli
from experiments.models.layers.dropout import dropout, from_batch
from experiments.models.layers.linear import linear
from experiments.models.layers.losses import labelled_cross_entropy

CASES = Cases()
case = CASES.add


def keys(rows):
    """A key for each row, of the seeds 0, 1, ...: `f.threefry`'s keys `[0, seed]`."""
    return jax.vmap(jax.random.key)(np.arange(rows))


def normal_numbers(rows, n):
    """What JAX draws from these keys. It computes rare, large ones to 4 digits only, so a formula of the numbers could not be compared with."""
    return np.asarray(
        jax.jit(lambda: jax.vmap(lambda key: jax.random.normal(key, (n,)))(keys(rows)))(),
        np.float64,
    )


# Layers of ampjax.nn, and tiles


@case("nn.Linear", "linear.linear", sizes=CROSS)
def linear_layer(hidden, rows, inputs):
    layer = amp.nn.Linear(hidden, hidden + 3)

    def tested(p, x):
        return mapped(layer)(p, x) + mapped(linear)(p, x)

    return Problem(
        tested,
        lambda p, x: 2 * f.linear(p, x),
        (inputs.params(layer), inputs.normal(rows, hidden)),
    )


@case("nn.Embed")
def table(hidden, rows, inputs):
    ids = inputs.integers(0, 40 + 2, rows)  # two are outside
    look_up = body(tagger_graph.tagger(2, 2), "embed")

    def tested(table):
        return mapped(amp.nn.Embed(40, hidden))(table, ids) + mapped(look_up)(table, ids)

    return Problem(
        tested,
        lambda table: 2 * f.embed(table, ids),
        (inputs.normal(40, hidden),),
    )


@case("tiled.Tile", "tiled._add")
def tiled_layer(hidden, rows, inputs):
    one = tiled.Tile(hidden, 9, 2 * hidden, True)
    other = tiled.Tile(hidden, 9, 2 * hidden, False)
    with ag.Graph() as graph:
        ag.sink(
            "y",
            tiled.tiled_linear(
                "t",
                ag.pump("x", (2 * hidden,)),
                2 * hidden,
                9,
                2,
                1,
            ),
        )
    add = body(graph, "t/sum0")

    def tested(p, q, x, y):
        return mapped(add)(
            (),
            mapped(one)(p, x),
            mapped(other)(q, y),
        )

    x = inputs.normal(rows, hidden)
    y = inputs.normal(rows, hidden)
    return Problem(
        tested,
        lambda p, q, x, y: f.linear(p, x) + f.linear(q, y),
        (inputs.params(one), inputs.params(other), x, y),
    )


@case("permutation.embed")
def digits(hidden, rows, inputs):
    ids = inputs.integers(0, 10, (rows, 6))

    def formula(tables):
        return sum(tables[place][ids[:, place]] for place in range(6))

    return Problem(
        lambda tables: mapped(permutation.embed)(tables, ids),
        formula,
        (inputs.normal(6, 10, hidden),),
    )


# Losses and metrics


@case("losses.labelled_cross_entropy")
def cross_entropy(hidden, rows, inputs):
    labels = inputs.integers(-1, hidden, rows)

    def tested(logits):
        loss, metrics = labelled_cross_entropy(logits, labels)
        return loss, *(jnp.asarray(part, jnp.float32) for part in metrics["accuracy"])

    return Problem(
        tested,
        lambda logits: f.labelled_cross_entropy(logits, labels),
        (inputs.normal(rows, hidden),),
    )


@case("tree_lstm_graph._loss", "tagger_graph._loss")
def losses_of_rows(hidden, rows, inputs):
    labels = inputs.integers(0, hidden, rows)
    tree, tag = (
        body(g, "xent")
        for g in (tree_lstm_graph.tree_lstm(2, tree_lstm.Cells()), tagger_graph.tagger(2, 2))
    )
    pairs = np.stack([labels, labels % 2], -1)

    def tested(logits):
        a, m = mapped(tree)((), logits, pairs)
        b, n = mapped(tag)((), logits, labels)
        return a, *m["accuracy"], *m["root_accuracy"], b, *n["accuracy"], *n["accuracy_without_o"]

    def formula(logits):
        nats = f.cross_entropy(logits, labels)
        hits = f.hits(logits, labels)
        one = np.ones(rows)
        inside = 1.0 * (labels != tagger.OUTSIDE)
        return (
            nats,
            hits,
            one,
            hits * (labels % 2),
            labels % 2,
            nats,
            hits,
            one,
            hits * inside,
            inside,
        )

    return Problem(tested, formula, (inputs.normal(rows, hidden),))


# Trees


def _tree(kind, hidden):
    return tree_lstm.Cells(
        kind,
        embedding=hidden // 2 + 1,
        hidden=hidden,
        keep=0.75,
    )


@case("tree_lstm.Cells.leaf")
def tree_leaves(hidden, rows, inputs):
    cells = [_tree(kind, hidden) for kind in ("fold", "tai")]

    def tested(p, q, x):
        result = []
        for cell, w in zip(cells, (p, q), strict=True):
            result.append(mapped(cell.leaf)(w, x))
        return result

    params = [inputs.params(cell.init_leaf) for cell in cells]

    def formula(p, q, x):
        return (
            f.tree_leaf(p, x, "fold"),
            f.tree_leaf(q, x, "tai"),
        )

    return Problem(
        tested,
        formula,
        (*params, inputs.normal(rows, hidden // 2 + 1)),
    )


@case("tree_lstm.Cells.branch", "tree_lstm_graph._Branch")
def tree_branches_of_tai(hidden, rows, inputs):
    cell = _tree("tai", hidden)
    branch = tree_lstm_graph.tree_lstm(2, cell).nodes["branch"].op.body.apply
    children = inputs.normal(rows, 2 * hidden), inputs.normal(rows, 2 * hidden)

    def tested(p, left, right):
        return mapped(branch)(
            p,
            np.zeros(rows, np.int32),
            left,
            right,
        )

    return Problem(
        tested,
        lambda *a: f.tree_branch(*a, "tai"),
        (inputs.params(cell.init_branch), *children),
    )


@case("tree_lstm.Cells.branch", "tree_lstm.Cells.classify")
def tree_branches_of_fold(hidden, rows, inputs):
    """With dropout on the candidates, and the classifier on what comes out."""
    cell = _tree("fold", hidden)
    masks = np.stack([f.bernoulli([0, seed], 0.75, (hidden,)) for seed in range(rows)]) / 0.75

    def tested(p, q, left, right):
        step = lambda left, right, key: cell.branch(p, left, right, key)
        state = jax.vmap(step)(left, right, keys(rows))
        return state, mapped(cell.classify)(q, state)

    def formula(p, q, left, right):
        state = f.tree_branch(p, left, right, "fold", masks)
        return state, f.linear(q, state[:, :hidden])

    params = inputs.params(cell.init_branch), inputs.params(cell.init_classify)
    return Problem(
        tested,
        formula,
        (
            *params,
            inputs.normal(rows, 2 * hidden),
            inputs.normal(rows, 2 * hidden),
        ),
    )


# Random masks


@case("bernoulli.bernoulli", "dropout.dropout")
def dropout_of_rows(hidden, rows, inputs):
    """The gradient of `draws * x` is the draws."""
    key = jax.random.key(rows)
    shape = (rows, hidden)

    def tested(x):
        return bernoulli(key, 0.3, shape) * x, dropout(key, x, 0.75)

    def formula(x):
        return (
            f.bernoulli([0, rows], 0.3, shape) * x,
            f.dropout([0, rows], x, 0.75),
        )

    return Problem(tested, formula, (inputs.normal(*shape),))


@case("dropout.from_batch", "dropout.Dropout", "dropout.Dropout.at")
def dropout_of_a_batch(hidden, rows, inputs):
    keys = []
    for seed in range(rows):
        keys.append(
            f.fold_in(
                f.fold_in([0, seed], 4),
                2,
            )
        )
    masks = np.stack([f.bernoulli(key, 0.6, (hidden,)) for key in keys])
    batch = {"dropout_seed": np.arange(rows)}
    return Problem(
        lambda x: from_batch(batch, 0.4).at(4)(x, 2),
        lambda x: masks * x / 0.6,
        (inputs.normal(rows, hidden),),
    )


# Graph networks


def _network(hidden, **settings):
    return ggnn_graph.Network(
        min(hidden, 4),
        hidden,
        steps=1,
        n_kinds=1,
        **settings,
    )


@case("ggnn.GatedUnit", sizes=CROSS)
def gated_unit(hidden, rows, inputs):
    cell = ggnn.GatedUnit(hidden)
    return Problem(
        mapped(cell),
        f.gated_unit,
        (
            inputs.params(cell),
            inputs.normal(rows, hidden),
            inputs.normal(rows, hidden),
        ),
    )


@case("ggnn_graph.Gate", "ggnn_graph.Candidate", "ggnn_graph._mix", "ggnn.Pad")
def gated_unit_in_parts(hidden, rows, inputs):
    gates = ggnn_graph.Gate(hidden)
    candidate = ggnn_graph.Candidate(hidden)
    mix = body(ggnn_graph.ggnn_regression(_network(hidden, separate_gates=True)), "mix")

    def tested(z, r, u, a, x):
        h = jax.vmap(ggnn.Pad(hidden))(x)
        new = mapped(candidate)(
            u,
            a,
            h,
            mapped(gates)(r, a, h),
        )
        return mapped(mix)(
            (),
            new,
            h,
            mapped(gates)(z, a, h),
        )

    def formula(z, r, u, a, x):
        h = np.pad(
            x,
            ((0, 0), (0, hidden - 4)),
        )
        both = {}
        for name in ("w", "b"):
            both[name] = np.concatenate(
                [z[name], r[name]],
                -1,
            )
        return f.gated_unit({"gates": both, "candidate": u}, a, h)

    params = inputs.params(gates), inputs.params(gates), inputs.params(candidate)
    return Problem(
        tested,
        formula,
        (
            *params,
            inputs.normal(rows, hidden),
            inputs.normal(rows, 4),
        ),
    )


@case("ggnn.GatedReadout", "ggnn.Score", "ggnn_graph._Square")
def readout(hidden, rows, inputs):
    number = ggnn.GatedReadout(hidden, 4)
    score = ggnn.Score(hidden, 4)
    square = body(ggnn_graph.ggnn_regression(_network(hidden), scale=3.0), "square")

    def tested(p, q, h, x, target):
        result = mapped(number)(p, h, x)
        loss, metrics = mapped(square)((), result, target)
        return result, mapped(score)(q, h, x), loss, metrics["error"]

    def formula(p, q, h, x, target):
        result = f.readout(p, h, x)
        difference = result[:, 0] - target
        return (
            result,
            f.score(
                q,
                h,
                x,
            ),
            difference**2 / 2,
            3 * np.abs(difference),
        )

    data = inputs.normal(rows, hidden), inputs.normal(rows, 4), inputs.normal(rows)
    return Problem(
        tested,
        formula,
        (inputs.params(number), inputs.params(score), *data),
    )


@case("ggnn_graph._sum", "ggnn_graph._softmax", "ggnn_graph._selected")
def reductions(hidden, rows, inputs):
    """Rows of `hidden` features added up by segment, and a softmax over the scores of each segment; each segment has two rows or more."""
    n = (rows + 3) // 4 if rows > 1 else 1
    segments = np.sort(np.arange(max(rows, 2)) % n)
    answers = (
        np.eye(len(segments))[np.searchsorted(segments, np.arange(n))].sum(0).astype(np.float32)
    )
    add = body(ggnn_graph.ggnn_regression(_network(hidden)), "sum")
    graph = ggnn_graph.ggnn_selection(_network(hidden))
    softmax = body(graph, "softmax")
    selected = body(graph, "xent")

    def tested(x, scores):
        loss, metrics = mapped(selected)(
            (),
            softmax(
                jnp.stack([scores, answers], -1),
                segments,
                n,
            ),
        )
        return add(x, segments, n), loss, *metrics["accuracy"]

    def formula(x, scores):
        loss, hit = f.segment_cross_entropy(
            np.stack([scores, answers], -1),
            segments,
            n,
        ).T
        return np.stack([x[segments == k].sum(0) for k in range(n)]), loss, hit, np.ones(n)

    return Problem(
        tested,
        formula,
        (
            inputs.normal(len(segments), hidden),
            inputs.normal(len(segments)),
        ),
    )


# Pondering


@case("act.Ponder.begin", "act.Ponder.step", "act.Ponder.end", "act.Ponder.cost")
def pondering(hidden, rows, inputs):
    """A step from any place of the inner loop: the first, the last that is allowed, with little or much left of 1."""
    sizes = act.Ponder(7, hidden, 2, max_steps=4, time_penalty=0.5)
    steps = inputs.integers(0, 4, rows)[:, None].astype(np.float32)

    def tested(p, x, state, mean, total):
        row = jnp.concatenate(
            [
                jax.vmap(sizes.begin)(state, x)[:, : 7 + hidden],
                mean,
                total,
                steps,
            ],
            -1,
        )
        after, more = mapped(sizes.step)(p, row)
        mean, ponder = jax.vmap(sizes.end)(after)
        cost, metrics = jax.vmap(sizes.cost)(ponder)
        return after, more.astype(jnp.float32), mean, cost, metrics["ponder"]

    def formula(p, x, state, mean, total):
        after, more = f.ponder(
            p,
            np.concatenate([x, state, mean, total, steps], -1),
            sizes,
        )
        ponder = after[:, -1] + 1 - after[:, -2]
        return after, more, after[:, 7 + hidden : -2], 0.5 * ponder, ponder

    data = (
        inputs.normal(rows, 7),
        inputs.normal(
            rows,
            hidden,
        ),
        inputs.normal(rows, hidden),
    )
    total = np.where(
        steps > 0,
        np.abs(inputs.normal(rows, 1)) % 1,
        0,
    ).astype(np.float32)
    return Problem(
        tested,
        formula,
        (inputs.params(sizes.init_step), *data, total),
    )


# Mixtures


@case("mixture.Experts.gate", "mixture.Experts.importance_loss", "mixture_graph._weighted")
def gates_of_experts(hidden, rows, inputs):
    """One and two experts a row, with and without noise; the importance loss of the rows together."""
    one = mixture.Experts(hidden, 8, 3, n=6, top=1)
    two = mixture.Experts(hidden, 8, 3, n=6, top=2)
    noise = normal_numbers(rows, 6)
    combine = body(mixture_graph.mixture_of_experts(two), "combine")

    def tested(p, x, first, second):
        weights, chosen, everywhere = mapped(two.gate)(p, x)
        noisy = jax.vmap(lambda x, key: one.gate(p, x, key))(
            x,
            keys(rows),
        )
        balance = two.importance_loss(everywhere.sum(0))
        combined = mapped(combine)((), weights, first, second)
        return (
            weights,
            chosen.astype(jnp.float32),
            everywhere,
            balance,
            combined,
            *(part.astype(jnp.float32) for part in noisy),
        )

    def formula(p, x, first, second):
        weights, chosen, everywhere = f.gate(p, x, 2, 0)
        importance = everywhere.sum(0)
        combined = weights[:, :1] * first + weights[:, 1:] * second
        balance = 0.1 * importance.var() / importance.mean() ** 2
        return weights, chosen, everywhere, balance, combined, *f.gate(p, x, 1, noise)

    data = (
        inputs.normal(
            rows,
            hidden,
        ),
        inputs.normal(rows, 3),
        inputs.normal(rows, 3),
    )
    return Problem(
        tested,
        formula,
        (inputs.params(one.init_gate), *data),
    )


@case("mixture.Experts.expert")
def experts(hidden, rows, inputs):
    sizes = mixture.Experts(hidden, hidden, hidden)
    return Problem(
        mapped(sizes.expert),
        f.expert,
        (inputs.params(sizes.init_expert), inputs.normal(rows, hidden)),
    )


# The tagger


def _tagger():
    return tagger_graph.tagger(2, 2, tagger.Sizes(noise=0.1))


@case("tagger.lstm_cell")
def tagger_cell(hidden, rows, inputs):
    data = inputs.normal(rows, 4 * hidden), inputs.normal(rows, 2 * hidden)
    w = inputs.normal(hidden, 4 * hidden, scale=hidden**-0.5)
    return Problem(
        mapped(body(_tagger(), "word_forward")),
        f.tagger_cell,
        (w, *data),
    )


@case("tagger.input_gates", "tagger_graph._start")
def tagger_start(hidden, rows, inputs):
    """Vectors to both ways' gates, and the states where both ways start."""
    graph = _tagger()
    gates = body(graph, "word_input")
    start = body(graph, "word_forward/start")

    def tested(p, x):
        result = []
        for way in mapped(gates)(p, x):
            result.append(mapped(start)((), way))
        return result

    def formula(p, x):
        zeros = np.zeros((rows, 2 * hidden)), np.zeros((hidden, 4 * hidden))
        result = []
        for way in ("forward", "backward"):
            result.append(
                f.tagger_cell(
                    zeros[1],
                    f.linear(p[way], x),
                    zeros[0],
                )
            )
        return result

    width = {
        "w": np.zeros((hidden, 4 * hidden)),
        "b": np.zeros(4 * hidden),
    }
    return Problem(
        tested,
        formula,
        (
            inputs.like({"forward": width, "backward": width}),
            inputs.normal(rows, hidden),
        ),
    )


@case("tagger_graph._spell", "tagger.lstm_outputs", "tagger_graph._hidden", "tagger.Noise")
def tagger_head(hidden, rows, inputs):
    """A word vector from the last states of its characters, with noise and without, and the hidden layer of the classifier."""
    graph = _tagger()
    spell, hide, noisy = (body(graph, name) for name in ("spell", "hidden", "noise"))
    noise = normal_numbers(rows, 2 * hidden)

    def tested(w, left, right):
        vector = mapped(spell)(
            (),
            np.zeros(rows),
            left,
            right,
        )
        drawn = jax.vmap(lambda x, key: noisy((), x, key=key))(
            vector,
            keys(rows),
        )
        return (
            vector,
            drawn,
            mapped(noisy)((), vector),
            mapped(hide)(
                w,
                left,
                right,
            ),
        )

    def formula(w, left, right):
        vector = np.concatenate(
            [left[:, :hidden], right[:, :hidden]],
            -1,
        )
        return vector, vector + 0.1 * noise, vector, np.tanh(vector @ w)

    data = inputs.normal(rows, 2 * hidden), inputs.normal(rows, 2 * hidden)
    return Problem(
        tested,
        formula,
        (
            inputs.normal(2 * hidden, 32, scale=hidden**-0.5),
            *data,
        ),
    )
