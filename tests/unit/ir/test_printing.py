import re
from collections import Counter

import numpy as np
import pytest
from support.laws import run_python
from support.node_kinds import KINDS

import ampjax as amp
import ampjax.graphs as ag
from ampjax.ir.printing import count_params, dot, mermaid, tree
from ampjax.ir.reading_order import edges, order
from ampjax.utils.drawing.colours import FAMILIES, family
from ampjax.viz.graphs.graph_layout import kind_text


def rnn():
    with ag.Graph() as g:
        tokens = ag.pump("tokens", dtype="int32", fields=("t", "length"))
        h0 = ag.pump(
            "h0",
            shape=(8,),
            fields=("t", "length"),
        )
        h = ag.phi("h")
        x = ag.ppt(
            "embed",
            amp.nn.Embed(14, 8),
        )(tokens)
        z = ag.ppt(
            "linear",
            amp.nn.Linear(16, 8),
        )(ag.concat(x, h))
        z = ag.isu(
            z,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = ag.cond(
            z,
            lambda s: s.t < s.length,
        )
        h.connect(h0, more)
        ag.sink("end", done)
    return g


def nested():
    """Two loops, one in the other, and a phi that heads none."""
    with ag.Graph() as g:
        x = ag.pump(
            "x",
            shape=(2,),
            fields=("i", "j"),
        )
        outer = ag.phi("outer")
        inner = ag.phi("inner")
        into, past = ag.cond(
            outer,
            lambda s: s.i % 2 == 0,
            name="parity",
        )
        again, out = ag.cond(
            ag.npt("double", lambda x: 2 * x)(inner),
            lambda s: s.j < 3,
            name="inner more",
        )
        inner.connect(into, again)
        again, end = ag.cond(
            ag.phi("merge", past, out),
            lambda s: s.i < 3,
            name="outer more",
        )
        outer.connect(x, again)
        ag.sink("end", end)
    return g


def awkward():
    """Names and a double wire that text formats could trip over."""
    with ag.Graph() as g:
        x = ag.pump('say "x"\\', shape=(2,))
        ag.sink(
            "<end> & `so` #1",
            ag.npt("a\nb", lambda x, y: x + y)(x, x),
        )
    return g


RNN_TREE = """\
Graph: 9 nodes
├─ tokens  Pump -> scalar int32 {t, length}
│  └─ embed  PPT(tokens) -> 8 float32 {t, length}, 112 parameters
│     └─ → concat1
└─ h0  Pump -> 8 float32 {t, length}
   └─ h  Phi(h0, cond1[0]) -> 8 float32 {t, length}
      └─ concat1  Concat(embed, h) -> 16 float32 {t, length}
         └─ linear  PPT(concat1) -> 8 float32 {t, length}, 136 parameters
            └─ isu1  Isu(linear) -> 8 float32 {t, length}
               └─ cond1  Cond(isu1) -> 2 wires of 8 float32 {t, length}
                  ├─ ↺ h
                  └─ end  Sink(cond1[1])"""


def test_tree_shows_a_loop_inside_its_phi():
    assert tree(rnn().nodes) == RNN_TREE
    assert "parameters" not in tree(rnn().nodes, params=False)


def test_every_node_has_one_line_of_its_own():
    for graph in (rnn(), nested()):
        lines = []
        for line in tree(graph.nodes).splitlines()[1:]:
            lines.append(re.sub(r"^[│├└─ ]*", "", line))
        assert sorted(line.split("  ")[0] for line in lines if line[0] not in "→↺") == sorted(
            graph.nodes
        )


def test_only_phis_that_head_a_loop_are_entered_by_ways_back():
    nodes = order(nested().nodes)
    assert {(e.source.name, e.target.name) for e in edges(nodes) if e.back} == {
        ("inner more", "inner"),
        ("outer more", "outer"),
    }
    names = [node.name for node in nodes]
    assert names.index("double") < names.index("merge")


def test_a_graph_that_is_not_finished_prints_too():
    g = ag.Graph()
    with g:
        x = ag.pump("x")
        ag.npt("add", lambda x, y: x + y)(x, None)
        ag.phi("open")
        text = repr(g)
        assert "add  NPT(x, nothing) -> ?" in text and "open  Phi -> ?" in text
        assert all(name in write(g.nodes) for write in (dot, mermaid) for name in g.nodes)
        g.connect("add", 1, x)
        ag.sink("end", g.nodes["add"].outputs[0])
        g.nodes["open"].outputs[0].connect(x)
        ag.sink("end2", g.nodes["open"].outputs[0])


def test_a_deep_graph_prints():
    with ag.Graph() as g:
        wire = ag.pump("x")
        for i in range(1200):
            wire = ag.isu(
                wire,
                lambda s: s,
                lambda s: s,
                name=f"i{i}",
            )
        ag.sink("end", wire)
    assert len(tree(g.nodes).splitlines()) == 1203


DOT_NODE = re.compile(
    r'  (n\d+) \[label="((?:[^"\\]|\\.)*)", shape=\w+, style="[\w,]+", fillcolor="#\w{6}", fontcolor="#\w{6}"\];'
)
DOT_EDGE = re.compile(
    r'  (n\d+) -> (n\d+) \[label="((?:[^"\\]|\\.)*)"(, style=dashed, constraint=false)?\];'
)
MERMAID_NODE = re.compile(r'  (n\d+)[\[({]+"([^"]*)"[\])}]+:::(\w+)')
MERMAID_EDGE = re.compile(r'  (n\d+) (-->|-\.->)\|"([^"]*)"\| (n\d+)')


def wires(graph):
    return Counter(
        (wire.source.name, node.name) for node in graph.nodes.values() for wire in node.inputs
    )


def test_dot_has_every_node_and_edge_once():
    for graph in (rnn(), nested(), awkward()):
        first, *defaults_and_body, last = dot(graph.nodes).splitlines()
        assert (first, last) == ("digraph ampjax {", "}")
        names = {}
        found = Counter()
        for line in defaults_and_body[2:]:
            node = DOT_NODE.fullmatch(line)
            edge = DOT_EDGE.fullmatch(line)
            assert node or edge, line
            if node:
                assert node[1] not in names
                names[node[1]] = re.sub(
                    r"\\(.)",
                    lambda m: "\n" if m[1] == "n" else m[1],
                    node[2],
                ).rpartition("\n")[0]
            else:
                found[names[edge[1]], names[edge[2]]] += 1
        assert sorted(names.values()) == sorted(graph.nodes)
        assert found == wires(graph)


def test_mermaid_has_every_node_and_edge_once():
    for graph in (rnn(), nested(), awkward()):
        first, *body = mermaid(graph.nodes).splitlines()
        assert first == "flowchart TD"
        names = {}
        found = Counter()
        classes = set()
        for line in body:
            node = MERMAID_NODE.fullmatch(line)
            edge = MERMAID_EDGE.fullmatch(line)
            assert node or edge or line.startswith("  classDef "), line
            if node:
                assert node[1] not in names
                name = re.fullmatch(r"<b>(.*)</b><br/>\w+", node[2])[1]
                assert not set(name) & set('<>"`\n')
                names[node[1]] = re.sub(
                    r"#(\d+);",
                    lambda m: chr(int(m[1])),
                    name,
                )
                classes.add(node[3])
            elif edge:
                found[names[edge[1]], names[edge[4]]] += 1
        assert sorted(names.values()) == sorted(graph.nodes)
        assert found == wires(graph)
        assert classes == {line.split()[1] for line in body if line.startswith("  classDef ")}


def test_conds_are_diamonds_and_ways_back_are_dashed():
    assert '{"<b>cond1</b><br/>Cond"}' in mermaid(rnn().nodes)
    assert mermaid(rnn().nodes).count("-.->") == dot(rnn().nodes).count("style=dashed") == 1
    assert rnn().to_dot() == dot(rnn().nodes)
    assert rnn().to_mermaid() == mermaid(rnn().nodes)


def test_parameters_are_counted():
    with ag.Graph() as g:
        x = ag.pump("x", shape=(3,))
        y = ag.ppt(
            "scale",
            lambda p, x: x * p["a"] + p["b"],
            params={
                "a": np.ones(3),
                "b": np.ones(()),
            },
        )(x)
        ag.sink("y", y)
    assert count_params(g.nodes["scale"]) == 4
    assert count_params(g.nodes["x"]) == 0


def test_who_computes_with_anothers_parameters_says_so():
    with ag.Graph() as g:
        x = ag.ppt(
            "own",
            lambda p, x: p * x,
            params=np.ones(3, np.float32),
        )(ag.pump("x", shape=(3,)))
        ag.sink(
            "y",
            ag.ppt(
                "other",
                lambda p, x: p + x,
                params_of=x,
            )(x),
        )
    assert "other  PPT(own) -> 3 float32, params of own\n" in repr(
        g
    ) and "own  PPT(x) -> 3 float32, 3 parameters\n" in repr(g)
    assert count_params(g.nodes["other"]) == 0
    assert (
        "<b>other</b><br/>PPT, params of own" in g.to_mermaid()
        and 'label="other\\nPPT, params of own"' in g.to_dot()
    )
    assert [kind_text(g.nodes[name]) for name in ("own", "other")] == [
        "PPT · 3",
        "PPT · params of own",
    ]


def test_every_node_kind_has_its_own_colours():
    kinds = []
    for f in FAMILIES:
        for kind in f.kinds:
            kinds.append(kind)
    control = "Cond Phi Isu Relabel Bcast RouteBy Flatmap Repeat Ungroup Group Distribute"
    payload = "Pump PPT NPT Concat Split Collect Reduce Loss Sink"
    assert len({*kinds}) == len(kinds) and {*f"{control} {payload}".split()} <= {*kinds} <= {*KINDS}
    assert len({f.fill for f in FAMILIES}) == len(FAMILIES)
    assert (
        family("something new").name == "plain"
        and family("something new", is_control=True).name == "control"
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_text_needs_no_pictures():
    """Export as text is for machines without a library for pictures, too, and starts at once."""
    program = """
import sys
import ampjax.graphs as ag

with ag.Graph() as g:
    ag.sink("end", ag.pump("x"))
print(len(g.to_mermaid()) > 0, len(g.to_dot()) > 0, "matplotlib" in sys.modules)
"""
    assert run_python(program).splitlines()[-1] == "True True False"
