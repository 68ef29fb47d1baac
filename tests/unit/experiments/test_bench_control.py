"""The benches of unfolding and of control: that they count what they should."""

import io
import json

import pytest
from rich.console import Console

from ampjax.errors import SettingsError
from experiments.bench import control, unfold

pytestmark = pytest.mark.slow


def quiet():
    return Console(file=io.StringIO(), width=120)


def test_control_measures_every_message(tmp_path):
    path = tmp_path / "rows.jsonl"
    options = control.ControlOptions(
        sizes=(4,),
        messages=100,
        passes=1,
        json=path,
    )
    (row,) = control.main(options, quiet())
    # Four sequences: ten steps and the feed of the first state, forth and back; the loss, which has the last layer in it.
    assert row["messages"] == 4 * 23 and row["dispatch_size"] == 4
    assert (
        all(row[f"{name}_us"] > 0 for name in ("singly", "ahead", "unfolding")) and row["ratio"] > 0
    )
    assert json.loads(path.read_text()) == row


def test_unfold_counts_messages_and_bytes():
    (row,) = unfold.main(
        unfold.UnfoldOptions(
            models=("sequences",),
            waves=(3,),
            passes=1,
        ),
        quiet(),
    )
    assert row["messages"] > 0 and row["bytes"] == pytest.approx(
        row["bytes_a_message"] * row["messages"]
    )
    assert row["unfold_us"] > 0 and row["dry_run_us"] > 0


@pytest.mark.parametrize(
    "options",
    [
        control.ControlOptions(sizes=(0,)),
        unfold.UnfoldOptions(passes=0),
    ],
)
def test_options_that_measure_nothing(options):
    bench = control if isinstance(options, control.ControlOptions) else unfold
    with pytest.raises(SettingsError, match="expected more than 0"):
        bench.main(options, quiet())
