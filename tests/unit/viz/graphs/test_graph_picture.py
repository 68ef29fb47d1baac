import xml.etree.ElementTree as ET

import jax
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.viz.graphs.graph_picture import draw, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def ggnn():
    """A loop, topologies, replicas, groups; names that XML and mathtext could trip over."""
    with ag.Graph() as g:
        atoms = ag.pump(
            "atoms",
            dtype="int32",
            fields=("step", "n"),
            ragged=True,
        )
        topology = ag.topology("edges")
        h = ag.phi("h")
        start = ag.ppt(
            "embed <atoms>",
            amp.nn.Embed(5, 8),
        )(atoms)
        parts = ag.distribute(h, topology, 3)
        sent = []
        for i, part in enumerate(parts):
            sent.append(
                ag.ppt(
                    f"$edge_{i}$ & co",
                    amp.nn.Linear(8, 8),
                )(part)
            )
        new = ag.npt("new", lambda m, h: m + h)(
            ag.collect(sent, topology),
            h,
        )
        new = ag.isu(
            new,
            lambda s: s.replace(step=s.step + 1),
            lambda s: s.replace(step=s.step - 1),
        )
        more, done = ag.cond(
            new,
            lambda s: s.step < s.n,
        )
        h.connect(start, more)
        rows = ag.replicate(
            ag.ppt("out", amp.nn.Linear(8, 2)),
            n=2,
        )(ag.ungroup(done, "row"))
        pooled = ag.reduce(
            "pool",
            jax.ops.segment_sum,
            ag.group(
                rows,
                by=("step",),
                size=lambda s: s.n,
            ),
        )
        ag.loss(
            "loss",
            lambda y: (y**2).sum(),
        )(pooled)
    return g


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.nightly
def test_svg_is_xml_and_holds_every_node_and_wire():
    graph = ggnn()
    found = texts(to_svg(graph))
    for name in graph.nodes:
        assert found.count(name) == 1, name
    assert found.count("topology") == 1  # one wire, two consumers
    assert "n×8 float32" in found and "{step, n, row}" in found
    assert graph._repr_html_() == to_svg(graph)


def test_no_text_leaves_the_picture():
    figure = draw(ggnn())
    figure.canvas.draw()
    page = figure.bbox.padded(0.5)
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert (
            page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        ), text


def test_no_texts_overlap():
    figure = draw(ggnn())
    figure.canvas.draw()
    boxes = []
    for t in figure.axes[0].texts:
        boxes.append(
            (
                t.get_text(),
                t.get_window_extent().padded(-0.5),
            )
        )
    clashes = []
    for i, (a, x) in enumerate(boxes):
        for b, y in boxes[:i]:
            if x.overlaps(y):
                clashes.append((a, b))
    assert not clashes


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_files_are_the_same_each_time(tmp_path, suffix):
    for name in ("a", "b"):
        draw(ggnn(), tmp_path / "new folder" / f"{name}.{suffix}")
    a, b = ((tmp_path / "new folder" / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert a == b and len(a) > 1000


def test_notebooks_get_a_png():
    assert draw(ggnn())._repr_png_()[0].startswith(b"\x89PNG")


def test_another_suffix_is_an_error(tmp_path):
    with pytest.raises(
        SettingsError, match=r"expected a file name that ends in .png, .svg or .pdf, got `.docx`"
    ):
        draw(ggnn(), tmp_path / "graph.docx")
