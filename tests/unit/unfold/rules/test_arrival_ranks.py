"""Ranks of ports: each producer's messages reach ports in the order of its own route."""

import numpy as np
from support.control import plan_for

import ampjax.graphs as ag
from ampjax.unfold.rules.arrival_ranks import ArrivalRanks


def test_ports_have_the_ranks_of_the_pump_that_reaches_them():
    with ag.Graph() as g:
        wires = [ag.pump(name) for name in "xyz"]
        for name, turn in (("a", 0), ("b", 1), ("c", 2)):
            joined = ag.npt(
                name,
                lambda x, y, z: x + y + z,
            )
            ag.sink(
                f"end {name}",
                joined(
                    *wires[turn:],
                    *wires[:turn],
                ),
            )
    plan = plan_for(g, fuse=False)
    ranks = ArrivalRanks(plan)
    for number, name in enumerate(g.pumps):
        ports = plan.pumps[name]
        found = ranks.of(
            np.full(len(ports), -1 - number),
            np.array([port.stage for port in ports]),
            np.array([port.port for port in ports]),
        )
        assert found.tolist() == [0, 1, 2]
