"""Every kind of stage that is dispatched has a runner, and its idle launches have the sizes of its ladder."""

import numpy as np
import optax
from support import chains, graphs
from support.engines import engine, spread

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine.kinds.idle_launch import idle_launches
from ampjax.engine.kinds.make_runner import RUNNERS
from ampjax.plan import stage_kinds
from ampjax.plan.ladders import ladder_for, segment_ladder
from ampjax.plan.stage_kinds import StageKind
from ampjax.sparse import Table


def test_every_kind_that_is_dispatched_has_a_runner():
    kinds = set()
    for kind in vars(stage_kinds).values():
        if isinstance(kind, StageKind):
            kinds.add(kind)
    assert set(RUNNERS) == {kind for kind in kinds if kind.is_dispatched}


def look_up():
    """A node whose parameters are a table in host memory."""
    with ag.Graph() as graph:
        table = Table(
            np.ones((5, 2), np.float32),
            optax.sgd(0.1),
        )
        row = ag.ppt(
            "embed",
            amp.nn.TableEmbed(table),
        )(ag.pump("word", dtype="int32"))
        ag.loss("loss", lambda x: x.sum())(row)
    return graph


def test_idle_launches_touch_the_trash_slot_only_and_reach_the_size_of_the_largest_dispatch():
    chain = chains.propagation()
    seen = set()
    apart = engine(
        chain,
        spread(chain, 2),
        (0, 1),
        fuse=False,
    )
    for e in (engine(graphs.with_sinks()), engine(chain), apart, engine(look_up())):
        for runner in e.executor._runners.values():
            stage = runner.stage
            seen.add(stage.kind)
            size_for = segment_ladder if stage.kind.sums_segments else ladder_for(stage)
            for direction in ("forward", "backward", "infer"):
                launches = list(
                    idle_launches(
                        runner.stage,
                        direction,
                        9,
                        3,
                        lambda key: 17,
                    )
                )
                sizes = [launch.size or size_for(launch.n_rows) for launch in launches]
                assert sizes == sorted(sizes) and size_for(9) in sizes[-2:]
                assert not any(slots.any() for launch in launches for slots in launch.rows)
                assert {(launch.stage, launch.direction) for launch in launches} == {
                    (stage.number, direction)
                }
    assert seen == set(RUNNERS)
