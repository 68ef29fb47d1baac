"""A compiled model, and an error, name the user's lines: no line of a library, and in a notebook the line itself."""

import linecache

import jax
import pytest

import ampjax as amp
from ampjax.errors import GraphError

LAYER = amp.nn.Linear(2, 2)
PARAMS = {"a": LAYER.init(jax.random.key(0))}
SPEC = {"x": "float32[t,2]"}


def test_what_a_layer_of_ours_computes_comes_from_the_line_that_calls_it():
    def model(params, example):
        return amp.sum(amp.map(lambda x: LAYER(params["a"], x).sum(), example["x"]))

    (line,) = [line for name, kind, _, line in amp.compile(model, PARAMS, SPEC).explain().nodes if name == "a"]
    assert line.startswith("test_lines.py:")


CELL = """\
def model(params, example):
    return amp.scan(lambda carry, x: (x[0], None), x0, example["x"])[0].sum()
"""


def test_a_line_of_a_notebook_is_told_itself(tmp_path):
    file = str(tmp_path / "ipykernel_1" / "123.py")
    linecache.cache[file] = (len(CELL), None, CELL.splitlines(keepends=True), file)
    names = {"amp": amp, "x0": jax.numpy.zeros(2)}
    exec(compile(CELL, file, "exec"), names)
    with pytest.raises(
        GraphError, match=r'`return amp.scan\(.*example\["x"\]\)\[0\].sum\(\)`, `model`: expected a carry'
    ):
        amp.compile(names["model"], PARAMS, SPEC)
