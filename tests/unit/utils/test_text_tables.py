"""What notebooks show of objects that are tables: histories, trainers, explanations."""

import re
from html.parser import HTMLParser

import jax
import numpy as np
import optax
from support import graphs

import ampjax as amp
import ampjax.parallel as px
from ampjax.train.history import Epoch, History
from ampjax.utils.text_tables import html_table


class Cells(HTMLParser):
    """Reads a page's cells, and checks that its elements nest."""

    def __init__(self, page):
        super().__init__()
        self.open = []
        self.rows = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        if tag == "br":
            self.rows[-1][-1] += "|"
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def history(n):
    numbers = {
        "train_per_s": 1234.5,
        "valid_per_s": 1.0,
        "staleness_mean": 0.25,
        "staleness_max": 3,
    }
    counts = {"messages": 1, "dispatches": 1, "updates": 1, "compilations": 0}
    return History(
        [
            Epoch(
                i,
                {"loss": 1 / i},
                {"loss": 2.0},
                seconds=float(i),
                **numbers,
                **counts,
            )
            for i in range(1, n + 1)
        ]
    )


def test_what_is_written_is_shown_as_it_is():
    page = html_table(
        ["a\nb", "c"],
        [["<b>&", "1"]],
        title="<t>",
        notes=["x < y"],
    )
    assert Cells(page).rows == [["a|b", "c"], ["<b>&", "1"]]
    assert "<t>" not in page and "&lt;t&gt;" in page and "x &lt; y" in page


def test_words_begin_at_the_left_and_code_is_marked():
    page = html_table(
        ["", "from", "n"],
        [["a", "`x < y`", "1"], ["b", "", "nan"]],
    )
    assert page.count("text-align: right") == 3
    assert "<code>x &lt; y</code>" in page


def test_a_history_is_a_row_for_each_epoch():
    rows = Cells(history(2)._repr_html_()).rows
    assert rows[0] == [
        "epoch",
        "train|loss",
        "valid|loss",
        "train/s",
        "staleness|mean, max",
        "seconds",
    ]
    assert rows[1:] == [
        ["1", "1.0000", "2.0000", "1,234", "0.2,   3", "1.0"],
        ["2", "0.5000", "2.0000", "1,234", "0.2,   3", "2.0"],
    ]
    assert "interrupted" not in history(1)._repr_html_()
    assert "interrupted" in History(interrupted=True)._repr_html_()
    assert len(history(2).table().rows) == 2


def test_a_trainer_shows_what_runs_together():
    trainer = amp.Trainer(graphs.chain(2), optax.sgd(0.1))
    rows = Cells(trainer._repr_html_()).rows
    assert [row[0] for row in rows[1:]] == [stage.name for stage in trainer.plan.stages]
    assert {name for row in rows[1:] for name in row[3].split(", ")} <= {*trainer.graph.nodes}


def test_an_explanation_and_its_parts_read_as_they_print():
    def loss(params, batch):
        return jax.numpy.mean((params["table"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)

    params = {
        "table": np.ones((100, 2), np.float32),
        "w": np.ones(2, np.float32),
    }
    runner = px.get_runner(loss, params, optax.sgd(0.1))
    n = len(jax.local_devices())
    metrics = runner.run(
        {
            "ids": np.arange(n),
            "y": np.zeros(n, np.float32),
        }
    )
    found = runner.explain(compiled=False)
    assert repr(found) == str(found) and repr(metrics) == str(metrics)
    rows = Cells(found._repr_html_()).rows
    assert [row[:2] for row in rows[1:]] == [["table [100, 2]", "sparse"], ["w [2]", "dense"]]
    assert re.search(r"table: 1 read", found._repr_html_())
