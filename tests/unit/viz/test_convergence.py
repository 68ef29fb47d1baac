import pytest

from ampjax.errors import SettingsError
from ampjax.viz.convergence import convergence


def run(accuracies, seconds=10.0):
    result = []
    for i, a in enumerate(accuracies, 1):
        result.append(
            {
                "epoch": i,
                "seconds": seconds * i,
                "valid_accuracy": a,
                "valid_loss": 1 - a,
            }
        )
    return result


RUNS = {
    "mak 1": run([0.5, 0.9, 0.98]),
    "mak 4": run([0.4, 0.8, 0.96], 3.0),
}


def legend(figure):
    result = []
    for t in figure.legends[0].get_texts():
        result.append(t.get_text())
    return result


def test_both_panels_show_every_run():
    figure = convergence(RUNS)
    by_epoch, by_time = figure.axes
    for axes, x in ((by_epoch, "epoch"), (by_time, "seconds")):
        assert len(axes.lines) == 2
        for line, epochs in zip(
            axes.lines,
            RUNS.values(),
            strict=True,
        ):
            assert list(line.get_xdata()) == [e[x] for e in epochs]
            assert list(line.get_ydata()) == [e["valid_accuracy"] for e in epochs]
    assert (
        by_epoch.get_xlabel(),
        by_time.get_xlabel(),
        by_epoch.get_ylabel(),
    ) == (
        "epoch",
        "time [s]",
        "validation accuracy",
    )
    assert legend(figure) == ["mak 1", "mak 4"]


def test_the_target_is_a_line_and_the_legend_says_when():
    figure = convergence(RUNS, target=0.97)
    assert legend(figure) == ["mak 1: epoch 3, 30 s", "mak 4: not reached (best 96.0 %)"]
    for axes in figure.axes:
        assert [list(line.get_ydata()) for line in axes.lines][-1] == [0.97, 0.97]
        assert axes.texts[0].get_text() == "target 97.0 %"


def test_a_loss_is_to_fall():
    assert legend(convergence(RUNS, metric="valid_loss", target=0.1))[0] == "mak 1: epoch 2, 20 s"


def test_many_runs_can_be_told_apart():
    lines = convergence({f"run {i}": run([0.1, 0.2]) for i in range(20)}).axes[0].lines
    assert (
        len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 20
    )


def test_the_legend_is_within_the_picture():
    figure = convergence(
        {f"a run with {i} workers": run([0.1, 0.2]) for i in range(7)},
        target=0.9,
    )
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= 0
    assert box.y1 < min(axes.get_window_extent().y0 for axes in figure.axes)


def test_file(tmp_path):
    convergence(RUNS, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_errors(tmp_path):
    with pytest.raises(SettingsError, match="expected at least one run"):
        convergence({})
    with pytest.raises(SettingsError, match="run `a`: expected at least one epoch"):
        convergence({"a": []})
    with pytest.raises(
        SettingsError, match="run `mak 1`, entry 0: expected the number `valid_error`"
    ):
        convergence(RUNS, metric="valid_error")
