"""Little loss functions of tables, each with the leaves that are sparse and, for the others, words of the reason.

Tables have V rows, a number that stands for nothing else: an array of that size in a rewritten step is a table.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from support.calls import one_call

V = 97
D = 4
IDS = jnp.array([[3, 5, 5], [96, 0, 41]])
FLAT = IDS.ravel()

_keys = jax.random.split(jax.random.key(7), 8)
T, U = (jax.random.normal(key, (V, D)) for key in _keys[:2])
W = jax.random.normal(_keys[2], (D, D))
BIAS = jax.random.normal(_keys[3], (V,))
DEEP = jax.random.normal(
    _keys[4],
    (V, 2, 3),
)
PARAMS = {"T": T, "W": W}
F = 3
STACK = {
    "T": jax.random.normal(
        _keys[5],
        (F, V, D),
    ),
    "W": W,
}
COLUMNS = {
    "T": jax.random.normal(_keys[6], (D, V)),
    "W": W,
}
BOTH = {"T": T, "U": U, "W": W}


@dataclasses.dataclass(frozen=True)
class Program:
    """`sparse` are the names of the sparse leaves; `why` are words of the reason for others."""

    name: str
    loss: Callable
    params: Any
    batch: Any
    sparse: tuple[str, ...]
    why: dict[str, str]


SPARSE: list[Program] = []
DENSE: list[Program] = []


def sparse(
    name: str,
    params: Any = PARAMS,
    batch: Any = IDS,
    *,
    leaves: tuple[str, ...] = ("T",),
    **why: str,
):
    def add(loss: Callable) -> Callable:
        SPARSE.append(Program(name, loss, params, batch, leaves, why))
        return loss

    return add


def dense(
    name: str,
    reason: str,
    params: Any = PARAMS,
    batch: Any = IDS,
    *,
    leaf: str = "T",
):
    def add(loss: Callable) -> Callable:
        DENSE.append(
            Program(
                name,
                loss,
                params,
                batch,
                (),
                {leaf: reason},
            )
        )
        return loss

    return add


def end(p: Any, h: jax.Array) -> jax.Array:
    """A loss of rows, with gradients that differ from row to row."""
    return jnp.mean(jnp.tanh(h @ p["W"]) ** 2)


# ---- ways to read rows -----------------------------------------------------------------------------------------------


@sparse("indexing", W="4 rows, fewer than 8")
def _(p, ids):
    return end(p, p["T"][ids])


@sparse("take")
def _(p, ids):
    return end(
        p,
        jnp.take(p["T"], ids, axis=0),
    )


@sparse("take clip")
def _(p, ids):
    return end(
        p,
        jnp.take(
            p["T"],
            ids + 50,
            axis=0,
            mode="clip",
        ),
    )


@sparse("take wrap")
def _(p, ids):
    return end(
        p,
        jnp.take(
            p["T"],
            ids + 50,
            axis=0,
            mode="wrap",
        ),
    )


@sparse("take fill")
def _(p, ids):
    return end(
        p,
        jnp.take(
            p["T"],
            ids + 50,
            axis=0,
            mode="fill",
            fill_value=0.5,
        ),
    )


@sparse("at get fill with NaN")
def _(p, ids):
    return jnp.nansum(p["T"].at[ids + 50].get(mode="fill") ** 2)


@sparse("at get promise")
def _(p, ids):
    return end(
        p,
        p["T"]
        .at[ids + 50]
        .get(
            mode="promise_in_bounds",
            unique_indices=False,
        ),
    )


@sparse("at get sorted unique")
def _(p, ids):
    rows = (
        p["T"]
        .at[jnp.arange(5) * 7]
        .get(
            indices_are_sorted=True,
            unique_indices=True,
        )
    )
    return end(p, rows) + end(p, p["T"][ids])


@sparse("negative ids")
def _(p, ids):
    return end(p, p["T"][-ids])


@sparse("lax gather")
def _(p, ids):
    numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=(0,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return end(
        p,
        jax.lax.gather(
            p["T"],
            ids.ravel()[:, None],
            numbers,
            (1, D),
            mode="clip",
        ).T,
    )


@sparse("one row")
def _(p, ids):
    return end(p, p["T"][ids[0, 1]])


@sparse("one fixed row, beside others")
def _(p, ids):
    return end(
        p,
        p["T"][3] * p["T"][ids],
    )


@sparse("vmap over ids")
def _(p, ids):
    return jnp.mean(
        jax.vmap(
            lambda j: end(
                p,
                p["T"][j],
            )
        )(ids)
    )


@sparse("vmap twice")
def _(p, ids):
    return end(
        p,
        jax.vmap(
            jax.vmap(
                lambda j: jax.lax.dynamic_index_in_dim(
                    p["T"],
                    j,
                    0,
                    False,
                )
            )
        )(ids),
    )


@sparse("ids as bytes", batch=FLAT.astype(jnp.uint8))
def _(p, ids):
    return end(p, p["T"][ids])


@sparse(
    "a table with one axis",
    params={"bias": BIAS, "W": W},
    leaves=("bias",),
)
def _(p, ids):
    return jnp.sum(jnp.sin(p["bias"][ids])) + jnp.sum(p["W"])


@sparse("a table with three axes", params={"deep": DEEP}, leaves=("deep",))
def _(p, ids):
    return jnp.sum(jnp.sin(p["deep"][ids]))


# ---- views of the table ----------------------------------------------------------------------------------------------


@sparse("through a cast")
def _(p, ids):
    return end(
        p,
        p["T"].astype(jnp.bfloat16)[ids].astype(jnp.float32),
    )


@sparse("through a reshape")
def _(p, ids):
    return end(
        p,
        p["T"]
        .reshape(V, 2, 2)[ids]
        .reshape(
            2,
            3,
            D,
        ),
    )


@sparse("through axes of one")
def _(p, ids):
    return end(
        p,
        jnp.squeeze(p["T"][None, :, None], 2)[0, ids],
    )


@sparse("columns of the transpose")
def _(p, ids):
    return end(
        p,
        p["T"].T[:, ids.ravel()].T,
    )


@sparse("some columns of the table")
def _(p, ids):
    first = p["T"][:, 1:3]
    second = p["T"][:, ::3]
    return jnp.sum(jnp.tanh(first[ids]) * second[ids + 1])


@sparse("beside stop_gradient")
def _(p, ids):
    return end(
        p,
        p["T"][ids] - jax.lax.stop_gradient(p["T"])[ids + 1],
    )


@sparse("through a sharding constraint and a name")
def _(p, ids):
    table = jax.lax.with_sharding_constraint(
        p["T"], jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
    return end(p, checkpoint_name(table, "table")[ids])


# ---- calls and control flow ------------------------------------------------------------------------------------------


@sparse("nested jit")
def _(p, ids):
    read = jax.jit(lambda table, i: jax.jit(lambda t, j: t[j])(table, i + 1))
    return end(p, read(p["T"], ids))


@sparse("the same jit twice")
def _(p, ids):
    read = jax.jit(lambda table, i: table[i])
    return end(
        p,
        read(p["T"], ids) * read(p["T"], ids[::-1]),
    )


@sparse(
    "the same jit on two tables",
    {"T": T, "U": U, "W": W},
    leaves=("T", "U"),
)
def _(p, ids):
    read = jax.jit(lambda table, i: table[i])
    return end(
        p,
        read(p["T"], ids) * read(p["U"], ids + 1),
    )


@sparse("a use of the table that nobody needs")
def _(p, ids):
    norms = jax.jit(
        lambda table: (
            table[ids],
            jnp.sum(table**2),
        )
    )
    rows, _ = norms(p["T"])
    _ = rows @ p["T"].T
    return end(p, rows)


@sparse("a gradient in the loss, of rows")
def _(p, ids):
    rows = p["T"][ids]
    return end(
        p,
        rows - 0.1 * jax.grad(lambda r: end(p, r))(rows),
    )


@sparse("a tangent in the loss, of rows")
def _(p, ids):
    rows = p["T"][ids]
    return end(
        p,
        jax.jvp(jnp.sin, (rows,), (rows,))[1],
    )


@sparse("custom_jvp in a scan")
def _(p, ids):
    return end(
        p,
        jax.lax.scan(lambda h, i: (h + look(p["T"], i, 2.0), None), jnp.zeros(D), ids.ravel())[0],
    )


@sparse("a table that jit returns")
def _(p, ids):
    return end(
        p,
        jax.jit(lambda t: (ids + 1, t))(p["T"])[1][ids],
    )


@sparse("one call")
def _(p, ids):
    return end(
        p,
        one_call(lambda t, ids: jnp.sin(t[ids]))(
            p["T"],
            ids,
        ),
    )


@sparse("checkpoint")
def _(p, ids):
    return end(
        p,
        jax.checkpoint(lambda t: jnp.sin(t[ids]))(p["T"]),
    )


@sparse("checkpoint with a policy")
def _(p, ids):
    policy = jax.checkpoint_policies.dots_saveable
    return jax.checkpoint(
        lambda p: end(
            p,
            jnp.sin(p["T"][ids]),
        ),
        policy=policy,
    )(p)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def look(table, ids, scale):
    return scale * table[ids]


@look.defjvp
def _(scale, primals, tangents):
    table, ids = primals
    dtable, _ = tangents
    return scale * table[ids], 3 * scale * dtable[ids]


@sparse("custom_jvp of the table")
def _(p, ids):
    return end(p, look(p["T"], ids + 50, 2.0))


@jax.custom_jvp
def rows_of(table, ids):
    return table[ids]


@rows_of.defjvp
def _(primals, tangents):
    """Needs the whole table, for a second derivative alone."""
    table, ids = primals
    dtable, _ = tangents
    return table[ids], dtable[ids] + jnp.sum(table)


@jax.custom_jvp
def looked_up(table, ids):
    return table[ids]


@looked_up.defjvp
def _(primals, tangents):
    table, ids = primals
    dtable, _ = tangents
    return rows_of(table, ids), dtable[ids]


@sparse("custom_jvp in the rule of another one")
def _(p, ids):
    return end(p, looked_up(p["T"], ids))


@sparse("custom_jvp of rows")
def _(p, ids):
    return end(p, jax.nn.silu(p["T"][ids]))


@jax.custom_vjp
def flip(x):
    return 2 * x


flip.defvjp(
    lambda x: (2 * x, None),
    lambda _, g: (-g,),
)


@sparse("custom_vjp of rows")
def _(p, ids):
    return end(p, flip(p["T"][ids]))


@sparse("scan over time steps")
def _(p, ids):
    def step(h, i):
        return jnp.tanh(h @ p["W"] + p["T"][i]), p["T"][i, None].sum()

    h, ys = jax.lax.scan(
        step,
        jnp.zeros((2, D)),
        ids.T,
    )
    return end(p, h) + ys.sum()


@sparse("scan in reverse, in a scan")
def _(p, ids):
    def inner(h, i):
        return jnp.tanh(h + p["T"][i]), None

    def outer(h, row):
        return jax.lax.scan(inner, 0.5 * h, row, reverse=True)[0], None

    return end(
        p,
        jax.lax.scan(outer, jnp.zeros(D), ids)[0],
    )


@sparse("scan with ids that it carries")
def _(p, ids):
    def step(carry, _):
        h, i = carry
        return (h * p["T"][i], (5 * i + 1) % V), None

    return end(
        p,
        jax.lax.scan(step, (jnp.ones(D), ids[0, 0]), length=4)[0][0],
    )


@sparse("fori_loop that carries the table")
def _(p, ids):
    def step(i, carry):
        table, h = carry
        return table, jnp.tanh(h @ p["W"] + table[ids[:, i]])

    return end(
        p,
        jax.lax.fori_loop(0, 3, step, (p["T"], jnp.zeros((2, D))))[1],
    )


@sparse("lax map")
def _(p, ids):
    return jnp.mean(
        jax.lax.map(
            lambda i: end(p, p["T"][i]),
            ids,
        )
    )


@sparse("cond, taken")
def _(p, ids):
    return jax.lax.cond(
        ids[0, 0] > 2,
        lambda t: end(p, t[ids]),
        lambda t: end(p, t[ids[:1]]),
        p["T"],
    )


@sparse("cond, not taken")
def _(p, ids):
    return jax.lax.cond(
        ids[0, 0] < 2,
        lambda: end(p, p["T"][ids]),
        lambda: jnp.sum(p["W"] ** 2),
    )


@sparse("switch of three")
def _(p, ids):
    reads = [
        lambda t: t[ids],
        lambda t: t[ids + 1],
        lambda t: jnp.sin(t[ids[:1]]).repeat(2, 0),
    ]
    return end(
        p,
        jax.lax.switch(
            ids[0, 0] % 3,
            reads,
            p["T"],
        ),
    )


@sparse("a branch for each example", BOTH, leaves=("T", "U"))
def _(p, ids):
    def one(i):
        return jax.lax.cond(
            i[0] > 2,
            lambda: p["T"][i].sum(0),
            lambda: jnp.take(p["U"], i, axis=0).max(0),
        )

    return end(p, jax.vmap(one)(ids))


@sparse("a switch for each id, of tables as operands", BOTH, leaves=("T", "U"))
def _(p, ids):
    branches = [
        lambda t, u, i: t[i],
        lambda t, u, i: 2 * u[i] + p["W"][0],
        lambda t, u, i: jnp.zeros(D),
    ]
    return end(
        p,
        jax.vmap(
            jax.vmap(
                lambda i: jax.lax.switch(
                    i % 3,
                    branches,
                    p["T"],
                    p["U"],
                    i,
                )
            )
        )(ids),
    )


@sparse("a branch for each example that a parameter decides, in a scan", BOTH, leaves=("T", "U"))
def _(p, ids):
    def one(i, w):
        def step(h, j):
            return jax.lax.cond(
                w * h[0] > 0,
                lambda: jnp.tanh(h) + p["T"][j],
                lambda: h * p["U"][j],
            ), None

        return jax.lax.scan(step, jnp.ones(D), i)[0]

    return end(
        p,
        jax.vmap(one)(
            ids,
            p["W"][0, :2],
        ),
    )


@sparse(
    "a branch for each example, of parts, casts and columns", COLUMNS | {"U": U}, leaves=("T", "U")
)
def _(p, ids):
    def one(i):
        def columns():
            return p["T"][:, i].sum(1)

        return jax.lax.cond(
            i[0] > 3,
            columns,
            lambda: p["U"].astype(jnp.bfloat16)[::-1][2:60][i % 40].astype(jnp.float32).sum(0),
        )

    return end(p, jax.vmap(one)(ids))


@sparse(
    "a branch whose gradient is infinite, for other examples",
    BOTH | {"T": T.at[::2].set(0.0)},
    leaves=("T", "U"),
)
def _(p, ids):
    def one(i):
        def root():
            return jnp.sqrt(jnp.abs(p["T"][i])).sum(0)

        return jax.lax.cond(
            (i % 2 == 0).any(),
            lambda: p["U"][i].sum(0),
            root,
        )

    return end(p, jax.vmap(one)(ids))


@sparse("cond in a scan")
def _(p, ids):
    def step(h, i):
        return jax.lax.cond(
            i > 4,
            lambda: h + p["T"][i],
            lambda: 0.5 * h,
        ), None

    return end(
        p,
        jax.lax.scan(step, jnp.zeros(D), ids.ravel())[0],
    )


@sparse("while with fixed ids")
def _(p, ids):
    steps = jax.lax.while_loop(
        lambda n: n < 3 + jnp.abs(p["T"][ids[0, 0], 0:]).sum(),
        lambda n: n + 0.1 + (p["T"][ids[0]] ** 2).sum(),
        0.0,
    )
    return end(p, p["T"][ids]) * jax.lax.stop_gradient(steps)


@sparse("a print in the step")
def _(p, ids):
    @jax.jit
    def shifted(ids):
        jax.debug.callback(lambda _: None, ids)
        return ids + 1

    return end(p, p["T"][shifted(ids)])


# ---- where ids come from ---------------------------------------------------------------------------------------------


@sparse(
    "two tables",
    {"T": T, "U": U, "W": W},
    leaves=("T", "U"),
)
def _(p, ids):
    return end(
        p,
        p["T"][ids[0]] * p["U"][ids[1]],
    )


@sparse("one table read in three places")
def _(p, ids):
    return end(p, p["T"][ids] * p["T"][ids + 1]) + end(p, p["T"][ids[0]])


@sparse("masked ids", batch={"ids": IDS, "mask": IDS > 4})
def _(p, batch):
    rows = p["T"][jnp.where(batch["mask"], batch["ids"], 0)]
    return end(p, rows * batch["mask"][..., None])


@sparse(
    "ids computed in the step",
    batch={"x": jnp.linspace(-1, 1, 6)},
)
def _(p, batch):
    return end(
        p,
        p["T"][jnp.sort(jnp.int32(40 + 30 * jnp.sin(batch["x"])))],
    )


@sparse(
    "ids from an integer parameter",
    {
        "T": T,
        "W": W,
        "vocabulary": jnp.arange(V // 2) * 2,
    },
    vocabulary="no gradient",
)
def _(p, ids):
    return end(
        p,
        p["T"][p["vocabulary"][ids // 2]],
    )


@sparse("constant ids")
def _(p, ids):
    return (
        end(
            p,
            p["T"][np.array([1, 1, 60])],
        )
        + ids.sum()
    )


@sparse("ids from the rows' own count", batch=FLAT)
def _(p, ids):
    return end(
        p,
        p["T"][jnp.unique(ids, size=5, fill_value=0)],
    )


def sampled_softmax(p, ids, key):
    labels = ids[1]
    samples = jax.random.randint(key, (4,), 0, V)
    h = p["T"][ids[0]] @ p["W"]
    true = jnp.sum(h * p["U"][labels], -1) + p["bias"][labels]
    others = h @ p["U"][samples].T + p["bias"][samples]
    return jnp.mean(
        jax.nn.logsumexp(
            jnp.concatenate(
                [true[:, None], others],
                1,
            ),
            axis=1,
        )
        - true
    ), samples


SOFTMAX = {"T": T, "U": U, "W": W, "bias": BIAS}


@sparse(
    "sampled softmax, key in the batch",
    SOFTMAX,
    {"ids": IDS, "key": jax.random.key(3)},
    leaves=("T", "U", "bias"),
)
def _(p, batch):
    return sampled_softmax(p, batch["ids"], batch["key"])


@sparse("sampled softmax, constant key", SOFTMAX, leaves=("T", "U", "bias"))
def _(p, ids):
    return sampled_softmax(
        p,
        ids,
        jax.random.fold_in(
            jax.random.key(5),
            ids[0, 0],
        ),
    )


@sparse(
    "ids as floats",
    batch={"x": jnp.array([3.2, 5.7, 90.1])},
)
def _(p, batch):
    return end(
        p,
        p["T"][batch["x"].astype(int)],
    )


@sparse(
    "ids beyond every signed number",
    batch=jnp.array(
        [3, 2**32 - 1, 96],
        jnp.uint32,
    ),
)
def _(p, ids):
    return jnp.nansum(jnp.take(p["T"], ids, axis=0) ** 2)


@sparse("aux of rows and ids")
def _(p, ids):
    rows = p["T"][ids]
    return end(p, rows), {
        "rows": rows,
        "ids": ids + 1,
        "norm": jnp.sum(p["W"]),
    }


@sparse(
    "rows decide, but not on this table", {"T": T, "U": U, "W": W}, U="depend on parameter `['T']`"
)
def _(p, ids):
    return end(p, p["U"][jnp.argmax(p["T"][ids], -1)]) + end(p, p["T"][ids])


def _embedding(**options: Any) -> Any:
    graph, state = nnx.split(
        nnx.Embed(
            V,
            D,
            rngs=nnx.Rngs(0),
            **options,
        )
    )
    return graph, {"T": state, "W": W}


_graph, _state = _embedding()
_half_graph, _half_state = _embedding(dtype=jnp.bfloat16)


@sparse("nnx Embed", _state)
def _(p, ids):
    return end(p, nnx.merge(_graph, p["T"])(ids))


@sparse("nnx Embed in half precision", _half_state)
def _(p, ids):
    return end(
        p,
        nnx.merge(_half_graph, p["T"])(ids).astype(jnp.float32),
    )


_linen = flax.linen.Embed(V, D)


@sparse(
    "linen Embed",
    {
        "T": _linen.init(jax.random.key(0), FLAT),
        "W": W,
    },
)
def _(p, ids):
    return end(p, _linen.apply(p["T"], ids))


# ---- stacks of tables ------------------------------------------------------------------------------------------------


@sparse("a stack read by pairs", STACK)
def _(p, ids):
    return end(p, p["T"][jnp.arange(F), ids])


@sparse("a stack read by pairs outside of it", STACK)
def _(p, ids):
    f = jnp.array([-4, -1, 5])
    return end(p, p["T"][f, ids + 50])


@sparse("a stack read by pairs, filled", STACK)
def _(p, ids):
    rows = (
        p["T"]
        .at[jnp.array([-4, -1, 5])[:, None, None], ids + 50]
        .get(
            mode="fill",
            fill_value=0.5,
        )
    )
    return end(p, rows) + end(
        p,
        p["T"].at[ids % 4, ids + 50].get(mode="clip"),
    )


@sparse("a stack under vmap", STACK)
def _(p, ids):
    return end(
        p,
        jax.vmap(
            lambda t, i: t[i],
            in_axes=(0, 1),
            out_axes=1,
        )(
            p["T"],
            ids,
        ),
    )


@sparse("a stack under vmap, other reads", STACK)
def _(p, ids):
    taken = jax.vmap(
        lambda t, i: jnp.take(
            t,
            i + 50,
            axis=0,
            mode="fill",
            fill_value=0.5,
        )
    )(p["T"], ids.T)
    single = jax.vmap(lambda t, i: jax.lax.dynamic_index_in_dim(t, i, 0, False))(
        p["T"],
        ids[1],
    )
    return end(p, taken) + end(
        p,
        jnp.take_along_axis(p["T"], ids.T[..., None], axis=1) + single[:, None],
    )


@sparse("a stack of small tables, one by one", STACK)
def _(p, ids):
    return end(p, sum(p["T"][f][ids[:, f]] for f in range(F))) + end(
        p,
        p["T"][1, ids] * p["T"][2, 5],
    )


@sparse("a stack that is taken apart", STACK)
def _(p, ids):
    each = []
    for t, i in zip(p["T"], ids.T, strict=True):
        each.append(jnp.tanh(t[i]))
    each += [jnp.tanh(t[i]) for t, i in zip(jnp.unstack(p["T"]), ids.T, strict=True)]
    first, second = jnp.split(p["T"], [1])
    return end(p, jnp.concatenate(each)) + end(p, first[0, ids] * second[1, ids])


@sparse(
    "a stack of many tables, one by one",
    {
        "T": jnp.tile(STACK["T"], (3, 1, 1)),
        "W": W,
    },
)
def _(p, ids):
    return end(
        p,
        sum(p["T"][f][ids[:, f % F]] for f in range(9)),
    )


@sparse("a stack whose tables a scan reads", STACK)
def _(p, ids):
    def step(h, x):
        return jnp.tanh(h + p["T"][x[0], x[1]]), None

    return end(
        p,
        jax.lax.scan(step, jnp.zeros((2, D)), (jnp.arange(F), ids.T))[0],
    )


@sparse("a stack in one line", STACK)
def _(p, ids):
    return end(
        p,
        p["T"].reshape(F * V, D)[ids + V * jnp.arange(F)],
    )


@sparse(
    "a stack of stacks",
    {
        "T": jax.random.normal(
            _keys[7],
            (2, 2, V, D),
        ),
        "W": W,
    },
)
def _(p, ids):
    return end(
        p,
        p["T"].transpose(1, 0, 2, 3)[jnp.array([0, 1]), jnp.array([1, 1]), ids[:, :2]],
    )


@sparse(
    "a stack of numbers",
    {"T": STACK["T"][..., 0], "W": W},
)
def _(p, ids):
    return jnp.sum(jnp.sin(p["T"][jnp.arange(F), ids])) + jnp.sum(p["W"])


@sparse("single elements")
def _(p, ids):
    return jnp.sum(p["T"][ids, ids % D] ** 2)


@sparse("a table repeated")
def _(p, ids):
    return end(
        p,
        jnp.broadcast_to(p["T"], (3, V, D))[1, ids],
    )


# ---- columns ---------------------------------------------------------------------------------------------------------


@sparse("columns", COLUMNS)
def _(p, ids):
    return end(
        p,
        jnp.moveaxis(
            p["T"][:, ids],
            0,
            -1,
        ),
    ) + jnp.nansum(
        jnp.take(
            p["T"],
            ids + 50,
            axis=1,
        )
    )


@sparse("one column, and some entries of all", COLUMNS)
def _(p, ids):
    return jnp.sum(jnp.tanh(p["T"][1:3][:, ids])) + jnp.sum(p["T"][:, ids[0, 0]] ** 2)


@sparse(
    "columns of a stack",
    {
        "T": STACK["T"].transpose(0, 2, 1),
        "W": W,
    },
)
def _(p, ids):
    return end(
        p,
        p["T"][jnp.arange(F), :, ids],
    )


# ---- parts of tables, and several in one -----------------------------------------------------------------------------


@sparse("parts of a table")
def _(p, ids):
    return end(
        p,
        p["T"][:50][ids] + p["T"][10:90:2][ids] + p["T"][::-1][ids + 1],
    )


@sparse("tables in one", BOTH, leaves=("T", "U"))
def _(p, ids):
    return end(
        p,
        jnp.concatenate([p["T"], p["U"]])[2 * ids],
    )


@sparse("tables in one, outside of it", BOTH, leaves=("T", "U"))
def _(p, ids):
    both = jnp.concatenate([p["T"], p["U"]])
    return end(p, both[3 * ids - 50]) + end(
        p,
        jnp.take(
            both,
            3 * ids - 50,
            axis=0,
            mode="clip",
        ),
    )


@sparse("tables in a stack", BOTH, leaves=("T", "U"))
def _(p, ids):
    stack = jnp.stack([p["T"], p["U"]])
    return end(p, stack[ids % 2, ids]) + end(p, jax.vmap(lambda t, i: t[i])(stack, ids))


@sparse("parts of tables in one", BOTH, leaves=("T", "U"))
def _(p, ids):
    part = jnp.concatenate([p["U"], p["T"][20:]])[50:]
    return end(
        p,
        jnp.concatenate([p["T"], part, p["T"][:9]])[2 * ids + 40],
    )


@sparse("rows before and after a table")
def _(p, ids):
    padded = jnp.pad(
        jnp.concatenate(
            [
                jnp.zeros((1, D)),
                p["T"],
                p["W"],
            ]
        ),
        ((2, 3), (0, 0)),
        constant_values=0.5,
    )
    return end(
        p,
        padded[ids + jnp.array([[0], [10]])],
    )


@sparse(
    "columns of two tables in one",
    COLUMNS | {"U": COLUMNS["T"] + 1},
    leaves=("T", "U"),
)
def _(p, ids):
    return end(
        p,
        jnp.concatenate([p["T"], p["U"]], axis=1)[:, 2 * ids].T,
    )


# ---- rows that are overwritten ---------------------------------------------------------------------------------------


@sparse("a padding row")
def _(p, ids):
    return end(
        p,
        p["T"].at[0].set(0.0)[ids],
    )


@sparse("a padding row, and ids outside the table")
def _(p, ids):
    table = p["T"].at[-1].set(0.0)
    return end(p, table[ids + 50] + jnp.take(table, ids + 50, axis=0, mode="clip")) + jnp.nansum(
        jnp.take(table, ids + 50, axis=0)
    )


@sparse("a padding row, cast and turned")
def _(p, ids):
    return end(
        p,
        p["T"]
        .at[3]
        .set(0.25)
        .astype(jnp.bfloat16)
        .T[1:3][:, ids.ravel()]
        .repeat(2, 0)
        .T.astype(jnp.float32),
    )


@sparse(
    "rows that are written twice",
    batch={
        "ids": IDS,
        "pads": jnp.array([5, -2, 300]),
    },
)
def _(p, batch):
    table = p["T"].at[batch["pads"]].set(0.5).at[4:6].set(p["W"][:2])
    return end(p, table[batch["ids"]])


@sparse("padding rows of a stack", STACK)
def _(p, ids):
    by_vmap = jax.vmap(
        lambda t, i: t.at[5].set(0.0)[i],
        in_axes=(0, 1),
    )(
        p["T"],
        ids,
    )
    return end(
        p,
        p["T"].at[:, 0].set(p["W"][:F])[jnp.arange(F), ids],
    ) + end(p, by_vmap)


@sparse("a padding row of columns", COLUMNS)
def _(p, ids):
    return end(
        p,
        p["T"].at[:, 5].set(0.0)[:, ids].T,
    )


@sparse("a padding row of tables in one", BOTH, leaves=("T", "U"))
def _(p, ids):
    table = jnp.concatenate([p["T"].at[5].set(1.0), p["U"].at[3].set(0.0)[1:]]).at[0].set(0.0)
    return end(p, table[2 * ids] + table[ids])


@sparse("a padding row in all control flow", BOTH, leaves=("T", "U"))
def _(p, ids):
    table = jnp.concatenate(
        [
            p["T"].at[5].set(p["W"][0]),
            p["U"],
        ]
    )

    def step(h, i):
        row = jax.lax.cond(
            i > 4,
            lambda t: t[i],
            lambda t: look(t, i, 2.0),
            table,
        )
        return jnp.tanh(h + jax.checkpoint(lambda t: jnp.sin(t[2 * i]))(table) * row), None

    return end(
        p,
        jax.lax.scan(step, jnp.zeros(D), ids.ravel())[0],
    )


# ---- dense -----------------------------------------------------------------------------------------------------------


@dense("tied softmax", "dot_general")
def _(p, ids):
    return jnp.mean(
        jax.nn.logsumexp(
            end(p, p["T"][ids]) + p["T"][ids] @ p["T"].T,
            -1,
        )
    )


@dense("nnx Embed attends", "dot_general", _state)
def _(p, ids):
    embed = nnx.merge(_graph, p["T"])
    return jnp.mean(embed.attend(embed(ids)))


@dense("penalty of the whole table", "used by")
def _(p, ids):
    return end(p, p["T"][ids]) + 1e-3 * jnp.sum(p["T"] ** 2)


@dense("one-hot lookup", "dot_general")
def _(p, ids):
    return end(
        p,
        jax.nn.one_hot(ids, V) @ p["T"],
    )


@dense("table in aux", "the result of the loss function")
def _(p, ids):
    return end(p, p["T"][ids]), p["T"]


@dense("a gradient in the loss, of the table", "used by `sub`")
def _(p, ids):
    return end(
        p,
        (p["T"] - 0.1 * jax.grad(lambda t: end(p, t[ids]))(p["T"]))[ids],
    )


@dense("ids that earlier rows choose", "depend on its own rows")
def _(p, ids):
    def step(h, i):
        return jnp.tanh(h + p["T"][jnp.where(h.sum() > 0, i, i + 1)]), None

    return end(
        p,
        jax.lax.scan(step, jnp.ones(D), ids.ravel())[0],
    )


@dense(
    "two tables that change places",
    "carries the table along",
    {"T": T, "U": U, "W": W},
)
def _(p, ids):
    def step(carry, i):
        first, second, h = carry
        return (second, first, h + first[i]), None

    return end(
        p,
        jax.lax.scan(step, (p["T"], p["U"], jnp.zeros(D)), ids.ravel())[0][2],
    )


@dense("ids from its own rows", "depend on its own rows")
def _(p, ids):
    return end(
        p,
        p["T"][jnp.argmax(p["T"][ids], -1)],
    )


@dense("ids from a dense parameter", "depend on parameter `['W']`")
def _(p, ids):
    return end(
        p,
        p["T"][ids + jnp.argmax(p["W"])],
    )


@dense("ids from a carry that meets parameters", "depend on its own rows")
def _(p, ids):
    def step(carry, i):
        rows = p["T"][carry]
        return jnp.argmax(rows) + i, rows

    return end(
        p,
        jax.lax.scan(step, ids[0, 0], ids[1])[1],
    )


@dense("a branch that parameters choose", "depend on parameter `['W']`")
def _(p, ids):
    return jax.lax.cond(
        p["W"][0, 0] > 0,
        lambda: end(p, p["T"][ids]),
        lambda: 0.0,
    )


@dense("a branch that returns it", "returns the table")
def _(p, ids):
    return end(
        p,
        jax.lax.cond(ids[0, 0] > 0, lambda t: t, jax.lax.stop_gradient, p["T"])[ids],
    )


@dense("parts of rows", "`gather`, which does not read whole rows")
def _(p, ids):
    return jnp.sum(p["T"][ids, :2] ** 2)


@dense("a matrix in two parts", "used by `dot_general`")
def _(p, ids):
    return end(
        p,
        jax.nn.one_hot(ids, 50) @ p["T"][:50] + jax.nn.one_hot(ids, V - 50) @ p["T"][50:],
    )


@dense("fixed rows by a slice", "used by `dot_general`")
def _(p, ids):
    return end(p, p["T"][ids] + p["T"][2:3]) + end(p, p["T"][2:9:3])


@dense("a window of rows", "used by `dynamic_slice`")
def _(p, ids):
    return end(
        p,
        jax.lax.dynamic_slice_in_dim(
            p["T"],
            ids[1, 0],
            3,
        ),
    )


@dense("too few columns", "used by `gather`")
def _(p, ids):
    return jnp.sum(p["T"][:, ids % D] ** 2)


@dense("a scan over its rows", "runs over the table's rows")
def _(p, ids):
    return jax.lax.scan(
        lambda h, row: (jnp.tanh(h + row).sum(), None),
        0.0,
        p["T"],
    )[0]


@dense("a scan that changes it", "carries the table along")
def _(p, ids):
    def step(table, i):
        return table.at[i].multiply(2.0), table[i]

    return end(
        p,
        jax.lax.scan(step, p["T"], ids[0])[1],
    )


@dense("a scan that returns it", "returns the table")
def _(p, ids):
    return jnp.sum(jax.lax.scan(lambda h, i: (h, p["T"]), 0.0, ids[0])[1]) + p["T"][ids].sum()


@dense("a while with ids that change", "`while` loop, whose number of steps is unknown")
def _(p, ids):
    def step(carry):
        return carry[0] + 1, carry[1] + p["T"][carry[0]].sum()

    return jax.lax.stop_gradient(jax.lax.while_loop(lambda c: c[0] < ids[0, 0], step, (0, 0.0))[1])


@jax.custom_vjp
def whole(table, ids):
    return table[ids]


whole.defvjp(
    lambda t, i: (t[i], (t, i)),
    lambda res, g: (
        jnp.zeros_like(res[0]).at[res[1]].add(g),
        None,
    ),
)


@dense("custom_vjp of the table", "backward rule gives a gradient for the whole table")
def _(p, ids):
    return end(p, whole(p["T"], ids))


@jax.custom_jvp
def spread(table, ids):
    return table[ids]


@spread.defjvp
def _(primals, tangents):
    return primals[0][primals[1]], tangents[0][primals[1]] + tangents[0].mean(0)


@dense("custom_jvp with a rule of the whole table", "reduce_sum")
def _(p, ids):
    return end(p, spread(p["T"], ids))


@dense("a scaled table", "mul")
def _(p, ids):
    return end(p, (2 * p["T"])[ids])


@dense("rows mixed by a reshape", "reshape")
def _(p, ids):
    return end(
        p,
        p["T"].reshape(D, V)[ids % D, :D],
    )


@dense("ids from the outside world", "side effects")
def _(p, ids):
    there = io_callback(
        lambda i: i,
        jax.ShapeDtypeStruct(ids.shape, ids.dtype),
        ids,
    )
    return jnp.sum(p["T"][there])


@dense("a callback on the table", "pure_callback")
def _(p, ids):
    return jnp.sum(
        jax.pure_callback(lambda t: t, jax.ShapeDtypeStruct((V, D), jnp.float32), p["T"])[ids]
    )


@dense("a primitive of which nothing is known", "shard_map")
def _(p, ids):
    mesh = jax.make_mesh(
        (1,),
        ("x",),
        devices=jax.devices()[:1],
    )
    spec = jax.sharding.PartitionSpec()
    return end(
        p,
        jax.shard_map(
            lambda t, i: t[i],
            mesh=mesh,
            in_specs=(spec, spec),
            out_specs=spec,
        )(p["T"], ids),
    )


@dense(
    "too few rows",
    "7 rows, fewer than 8",
    {"T": T[:7], "W": W},
)
def _(p, ids):
    return end(p, p["T"][ids % 7])


@dense(
    "an integer table",
    "int32 has no gradient",
    {"T": jnp.arange(V), "W": W},
)
def _(p, ids):
    return end(
        p,
        p["T"][ids][..., None] * jnp.ones(D),
    )


@dense(
    "a scalar",
    "a scalar has no rows",
    {"T": jnp.float32(2.0), "W": W},
)
def _(p, ids):
    return end(p, p["T"] * jnp.ones(D))


@dense("a table that nobody reads", "not used by the loss")
def _(p, ids):
    return jnp.sum(p["W"]) + ids.sum()


@dense("a stack that is penalised", "used by `mul`", STACK)
def _(p, ids):
    return end(p, p["T"][jnp.arange(F), ids]) + jnp.sum(p["T"] * p["T"])


@dense(
    "rows and columns of one matrix",
    "`gather`, which does not read whole rows",
    {"T": jnp.ones((V, V)), "W": W},
)
def _(p, ids):
    return jnp.sum(p["T"][ids]) * jnp.sum(p["T"][:, ids])


@dense("tables side by side", "`concatenate`, after which whole rows don't follow each other", BOTH)
def _(p, ids):
    return jnp.sum(jnp.concatenate([p["T"], p["U"]], axis=1)[ids] ** 2)


@dense(
    "many rows that are overwritten",
    "`scatter`, which does not write over whole rows, 256 at most",
    STACK,
)
def _(p, ids):
    return end(
        p,
        p["T"].at[:, :90].set(0.0)[jnp.arange(F), ids],
    )


@dense("rows that are changed", "used by `scatter-add`")
def _(p, ids):
    return end(
        p,
        p["T"].at[0].add(1.0)[ids],
    )


@dense("rows that parameters overwrite", "depend on parameter `['W']`")
def _(p, ids):
    return end(
        p,
        p["T"].at[jnp.argmax(p["W"])].set(1.0)[ids],
    )
