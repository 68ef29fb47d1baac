from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

import ampjax.graphs as ag
from ampjax.viz.graphs.graph_layout import layout


def measure(text, size):
    return 0.6 * size * len(text)


def random_graph(draw):
    """Nodes of one to three inputs from earlier wires; some phis get a second input from later ones, which makes loops."""
    with ag.Graph() as g:
        open_phis = []
        wires = []
        for i in range(draw(st.integers(1, 3))):
            wires.append(ag.pump(f"pump{i}", shape=(2,)))
        for i in range(draw(st.integers(1, 12))):
            pick = []
            for _ in range(draw(st.integers(1, 3))):
                pick.append(wires[draw(st.integers(0, len(wires) - 1))])
            kind = draw(st.sampled_from(["npt", "cond", "loop", "phi"]))
            if kind == "npt":
                wires.append(
                    ag.npt(
                        f"node{i}",
                        lambda *xs: xs[0],
                    )(*pick)
                )
            elif kind == "cond":
                wires += ag.cond(
                    pick[0], lambda s: s.instance % 2, name=f"a cond with a long name {i}"
                )
            elif kind == "phi":
                wires.append(ag.phi(f"merge{i}", *pick))
            else:
                open_phis.append((ag.phi(f"head{i}"), pick[0]))
                wires.append(open_phis[-1][0])
        for phi, entry in open_phis:
            phi.connect(
                entry,
                wires[draw(st.integers(0, len(wires) - 1))],
            )
        for i, wire in enumerate(wires):
            if not wire.consumers:
                ag.sink(f"sink{i}", wire)
    return g


@settings(max_examples=examples(40))
@given(st.data())
def test_nothing_overlaps(data):
    plan = layout(random_graph(data.draw), measure)
    places = plan.places
    for i, a in enumerate(places):
        assert (
            a.width / 2 <= a.x <= plan.width - a.width / 2
            and a.top >= 0
            and a.bottom <= plan.height
        )
        for b in places[:i]:
            apart = abs(a.x - b.x) >= (a.width + b.width) / 2 - 1e-6
            assert apart or a.bottom <= b.top + 1e-6 or b.bottom <= a.top + 1e-6, (a, b)


@settings(max_examples=examples(40))
@given(st.data())
def test_every_wire_has_its_arrows(data):
    graph = random_graph(data.draw)
    plan = layout(graph, measure)
    entered = sorted(route.places[-1].node.name for route in plan.routes if route.places[-1].node)
    assert entered == sorted(node.name for node in graph.nodes.values() for _ in node.inputs)
    for route in plan.routes:
        steps = []
        for a, b in zip(
            route.places,
            route.places[1:],
            strict=False,
        ):
            steps.append(b.layer - a.layer)
        if route.back:  # sideways, up layer by layer, sideways
            assert route.places[-1].node.kind == "Phi"
            assert steps == [0, *[-1] * (len(steps) - 2), 0]
        else:
            assert set(steps) == {1}


def test_a_loop_runs_back_beside_its_body_without_crossing():
    with ag.Graph() as g:
        x = ag.pump("x", fields=("t",))
        h = ag.phi("h")
        more, done = ag.cond(
            ag.isu(
                h,
                lambda s: s.replace(t=s.t + 1),
                lambda s: s.replace(t=s.t - 1),
                name="step",
            ),
            lambda s: s.t < 3,
            name="c",
        )
        h.connect(x, more)
        ag.sink("end", done)
    plan = layout(g, measure)
    (back,) = [route for route in plan.routes if route.back]
    label = {}
    for wire in g.nodes["c"].outputs:
        label[wire.port] = next(
            p for p in plan.places if p.text and p.text[0].startswith(f"{wire.port}:")
        )
    passage = back.places[1].x
    assert (label[0].x - label[1].x) * (passage - label[1].x) > 0
    assert max(p.x for p in back.places[1:-1]) - min(p.x for p in back.places[1:-1]) < 1.0
