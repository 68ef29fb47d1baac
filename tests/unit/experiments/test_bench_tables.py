"""The benches of tables in miniature: every program trains, and options are checked."""

import importlib.util
import io

import numpy as np
import pytest
from rich.console import Console

from ampjax.errors import SettingsError
from experiments.bench import recommender, row_dtypes
from experiments.bench.recommender import RecommenderBench
from experiments.bench.row_dtypes import RowDtypesBench
from experiments.records import read


def test_rows_in_fewer_bits_have_larger_errors(tmp_path):
    console = Console(file=io.StringIO(), width=120)
    options = RowDtypesBench(
        rows=40,
        ids=20,
        steps=60,
        rate=0.25,
        json=tmp_path / "rows.jsonl",
    )
    found = row_dtypes.main(options, console)
    errors = {row["rows"]: row["errors"][0] for row in found}
    assert list(errors) == list(row_dtypes.KINDS)
    assert (
        errors["float32"] < errors["int8"] < errors["float8_e4m3fn"] < errors["float8_e5m2"] < 0.1
    )
    assert [row["bytes"] for row in found] == [64, 32, 32, 17, 17, 17]
    assert read(options.json) == found


@pytest.mark.nightly
@pytest.mark.slow
def test_every_program_trains(tmp_path):
    text = io.StringIO()
    options = RecommenderBench(
        what=("dlrm-26", "one-table", "stacked-26"),
        scale=1000,
        turns=1,
        steps=1,
        json=tmp_path / "bench.jsonl",
    )
    results = recommender.main(options, Console(file=text, width=120))
    programs = [each.program for each in results]
    expected = ["ours, row-wise", "ours", "by hand", "many tables", "one table"]
    if importlib.util.find_spec("torch") is None:
        assert "PyTorch is not installed (the extra `bench`)" in text.getvalue()
    else:
        expected[1:1] = ["torch, Adagrad", "torch, row-wise by hand"]
    assert programs == expected
    assert len(read(options.json)) == len(programs)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_step_of_torch_is_that_of_ours():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `bench`)")
    from experiments.bench.peers.recommender_torch import RecommenderTorch

    torch.set_num_threads(1)
    sizes = recommender.TableSizes(2, 50, 4, 3, 8)
    params = recommender.parameters(sizes)
    (batch,) = recommender.batches(sizes, 1)
    theirs = RecommenderTorch(params, sizes.names, recommender.LEARNING_RATE, True)
    programs = recommender._dlrm(
        sizes,
        RecommenderBench(),
        Console(file=io.StringIO()),
    )
    ours = programs["ours, row-wise"]
    loss = float(recommender.loss(sizes.names, params, batch))
    assert abs(loss - float(theirs.loss(batch).detach())) < 1e-5
    # One step: dense matrices have an accumulator a row in ours, and one an element in torch.
    ours.step(batch)
    theirs.step(batch)
    for name in sizes.names:
        weight = theirs.bags[name].weight.detach().numpy()
        np.testing.assert_allclose(
            ours.params[name],
            weight,
            rtol=1e-4,
            atol=1e-5,
        )


def test_benches_of_tables_check_their_options():
    with pytest.raises(SettingsError, match="bench recommender, options"):
        recommender.main(RecommenderBench(steps=0))
    with pytest.raises(SettingsError, match="bench row-dtypes, options"):
        row_dtypes.main(RowDtypesBench(rows=0))
