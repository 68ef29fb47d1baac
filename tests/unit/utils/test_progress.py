"""Progress in a terminal and where there is none."""

import io
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from rich.console import Console
from rich.errors import LiveError
from support import graphs

import ampjax as amp
import ampjax.graphs as ag
from ampjax.train.preparation import showing_compilations
from ampjax.utils.progress import AS_NEEDED, COMPILING, Reporter


def seen(
    jumps,
    name=COMPILING,
    total=120,
    show=True,
    terminal=False,
    compiled_until=0.0,
):
    """What is shown where a unit of work ends after each of some seconds, of which kernels are compiled in the first ones."""
    out = io.StringIO()
    clock = SimpleNamespace(seconds=0.0)
    console = Console(file=out, force_terminal=terminal, width=200)
    compiled = lambda: int(min(clock.seconds, compiled_until))
    with (
        Reporter(show, console, lambda: clock.seconds) as reporter,
        reporter.part(name, total, compiled) as advance,
    ):
        for seconds in jumps:
            clock.seconds += seconds
            advance(1)
    return out.getvalue()


def test_without_a_terminal_a_line_tells_how_far_the_compilations_are():
    assert seen([2.0] * 4) == "compiling 3 of 120 kernels, about 234 s left\n"


def test_what_is_compiled_as_needed_may_be_less():
    assert seen([2.0] * 4, AS_NEEDED) == "compiling 3 of up to 120 kernels, at most 234 s left\n"


def test_passes_are_told_by_their_names():
    assert seen([6.0], "epoch 2", 11) == "epoch 2: 1 of 11, about 60 s left\n"


def test_the_time_left_goes_by_what_was_done_lately():
    lines = seen(
        [3.0, 3.0, *[0.5] * 40],
        "epoch 1",
        100,
    ).splitlines()
    assert lines == ["epoch 1: 2 of 100, about 294 s left", "epoch 1: 22 of 100, about 39 s left"]


def test_no_time_left_is_told_while_kernels_are_compiled():
    lines = seen(
        [3.0] * 4 + [0.5] * 60,
        "epoch 1",
        100,
        compiled_until=10.0,
    ).splitlines()
    assert lines == [
        "epoch 1: 2 of 100, compiling",
        "epoch 1: 12 of 100, compiling",
        "epoch 1: 52 of 100, about 24 s left",
    ]
    assert "compiling" not in seen([6.0, 6.0], "epoch 1", 100)


def test_a_bar_tells_the_time_left_once_nothing_is_compiled():
    clock = SimpleNamespace(seconds=0.0)
    n = iter([0, 1, 1, 2, *[2] * 9])
    console = Console(file=io.StringIO(), force_terminal=True)
    told = []
    compiled = SimpleNamespace(count=0)
    with (
        Reporter(True, console, lambda: clock.seconds) as reporter,
        reporter.part("epoch 1", 20, lambda: compiled.count) as advance,
    ):
        for compiled.count in n:
            clock.seconds += 4.0
            advance(1)
            told.append(reporter._bars.columns[-1].render(reporter._bars.tasks[0]).plain)
    assert told[1:6] == ["-:--:--"] * 5
    assert "-:--:--" not in told[6:]


def test_an_hour_gives_few_lines():
    lines = seen([1.0] * 3600, total=3601).splitlines()
    assert 30 < len(lines) < 40


@pytest.mark.parametrize(
    ("jumps", "show"),
    [
        ([1.0] * 4, True),
        ([100.0] * 4, False),
    ],
)
def test_what_is_short_or_switched_off_tells_nothing(jumps, show):
    assert seen(jumps, show=show) == ""


def test_what_is_done_needs_no_line():
    assert seen([100.0], total=1) == ""


def test_a_terminal_has_a_bar_and_no_lines():
    shown = seen([10.0] * 5, terminal=True)
    assert "compiling" in shown and "kernels" not in shown


def test_a_trainer_tells_of_its_compilations_where_output_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr("ampjax.utils.progress.FIRST_S", 0.0)
    monkeypatch.setattr("rich.get_console", lambda: Console(width=200))
    amp.Trainer(
        graphs.chain(1),
        optax.sgd(1e-2),
    ).warm_up(graphs.chain_data(4))
    assert capsys.readouterr().out.startswith("compiling 1 of ")


@pytest.fixture
def shown(monkeypatch, capsys):
    """Gives what has been shown, a line for each step, as where output is no terminal."""
    monkeypatch.setattr("ampjax.utils.progress.FIRST_S", 0.0)
    monkeypatch.setattr("ampjax.utils.progress.MOST_S", 0.0)
    monkeypatch.setattr("rich.get_console", lambda: Console(width=200))
    return lambda: capsys.readouterr().out


def test_compilations_are_counted_as_they_come(shown):
    with Reporter(True) as reporter, showing_compilations(reporter, 3):
        for _ in range(2):
            jax.jit(lambda x: x + 1)(1.0)
    jax.jit(lambda x: x + 2)(1.0)
    assert [line[:22] for line in shown().splitlines()] == [
        "compiling 1 of up to 3",
        "compiling 2 of up to 3",
    ]


def test_the_first_epoch_tells_of_its_compilations(shown):
    with ag.Graph() as g:
        ag.loss("loss", lambda x: x * x)(
            ag.ppt(
                "f",
                lambda p, x: p * x,
                params=graphs.one(),
            )(ag.pump("x"))
        )
    trainer = amp.Trainer(g, optax.sgd(1e-2))
    trainer.fit([{"x": np.float32(1.0)}] * 4)
    first, *_ = shown().splitlines()
    assert first.startswith("compiling 1 of up to ")


def test_verify_tells_how_far_it_is(shown):
    instances = graphs.chain_data(2)
    assert amp.verify(graphs.chain(1), instances, quick=True)
    assert shown().startswith("reference: 1 of 2, about ")
    assert (
        amp.verify(
            graphs.chain(1),
            instances,
            quick=True,
            progress=False,
        )
        and shown() == ""
    )


def test_inference_tells_of_its_compilations_the_first_time(shown):
    with ag.Graph() as g:
        y = ag.ppt(
            "f",
            lambda p, x: p * x,
            params=graphs.one(),
        )(ag.pump("x"))
        ag.sink("y", y)
        ag.loss("loss", lambda x: x * x)(y)
    trainer = amp.Trainer(g, optax.sgd(1e-2))
    data = [{"x": np.float32(1.0)}] * 4
    for infer in (trainer.evaluate, trainer.predict):
        infer(data)
        assert shown().startswith("compiling ")
        infer(data)
        assert shown() == ""
    assert amp.Trainer(g).evaluate(data, progress=False)
    assert shown() == ""


def test_a_run_within_one_that_shows_its_bars_is_silent_where_there_is_room_for_one(monkeypatch):
    def refuse(self):
        raise LiveError("Only one live display may be active at once")

    console = Console(file=io.StringIO(), force_terminal=True)
    with Reporter(True, console), monkeypatch.context() as m:
        m.setattr("rich.progress.Progress.start", refuse)
        with Reporter(True, console) as inner, inner.part("evaluate", 2) as advance:
            inner.line("a line")
            advance(1)
    assert "a line" not in console.file.getvalue()
