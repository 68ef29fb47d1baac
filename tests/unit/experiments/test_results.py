"""`python -m experiments results` with tiny commands, and the pages of the documentation beside their records."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ampjax.errors import DataError, SettingsError
from experiments.__main__ import COMMANDS
from experiments.__main__ import main as experiments
from experiments.results import driver, runs, slower, start_page
from experiments.results.driver import ResultsOptions
from experiments.results.kept_records import NAME, Ended, Kept, load
from experiments.results.markdown import table
from experiments.results.page import page, publish, setting_in_words, with_tables
from experiments.results.section import Command, Section
from experiments.results.sections import SECTIONS
from experiments.results.setting import ROOT, Setting, processor, setting_of
from experiments.results.summaries import fields, to_target

DOCS = ROOT / "docs"

PROGRAM = """
import json, sys, time
what, *_, path = sys.argv[1:]
if what != "silent":
    with open(path, "a") as file:
        file.write(json.dumps({"value": 0.1234567, "by": what, "other": 1}) + "\\n")
if what == "broken":
    sys.exit("something else\\nerror: the file: expected data, got none.")
if what == "slow":
    time.sleep(60)
"""
"""Stands in for `python -m experiments`: writes a record, and does what its first argument says."""

FAKE = sys.executable, "-c", PROGRAM

SETTING = Setting(
    "0123abcd",
    False,
    "3.11.7",
    {"jax": "0.10.2", "jaxlib": "0.10.2", "torch": "2.13.0"},
    "A processor",
    2,
    "2026-11-03",
)


def command(name: str, what: str) -> Command:
    return Command(name, (what,), 0.1, fields("value", "by"))


def lines(found) -> str:
    rows = []
    for name, records in found.items():
        rows.append([name, f"{records[0]['value']}"])
    return table(("command", "value"), rows)


def section(*commands: Command, name: str = "one") -> Section:
    return Section(name, "A part", f"Section {name}", "What it is.", commands, lines)


@pytest.fixture(autouse=True)
def setting(monkeypatch: pytest.MonkeyPatch) -> Setting:
    """The setting of a clean checkout."""
    monkeypatch.setattr(driver, "setting_of", lambda date: SETTING)
    return SETTING


def measure(folder: Path, *sections: Section, **options) -> tuple[Kept | None, str]:
    """A run's records and output."""
    console = Console(file=io.StringIO(), width=200)
    given = ResultsOptions(out=folder, **options)
    kept = driver.main(given, console, sections, FAKE)
    return kept, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_keeps_a_summary_of_each_commands_records(tmp_path: Path) -> None:
    kept, printed = measure(
        tmp_path,
        section(command("a", "good"), command("b", "good")),
    )
    assert kept is not None and kept.setting == SETTING
    assert list(kept.ended) == ["a", "b"] and "a: done" in printed
    assert kept.records() == {name: [{"value": 0.123457, "by": "good"}] for name in "ab"}
    assert kept.ended["a"].text == "python -m experiments good"
    assert load(tmp_path / NAME) == kept


def test_a_command_that_fails_stops_no_other_and_is_told_on_the_page(tmp_path: Path) -> None:
    one = section(
        command("bad", "broken"),
        command("mute", "silent"),
        command("last", "good"),
    )
    kept, printed = measure(tmp_path, one)
    assert kept is not None
    assert "bad: failed: the file: expected data, got none." in printed
    assert kept.ended["mute"].failure == "it wrote no records"
    text = page(kept, [one])
    assert "| last | 0.123457 |" in text
    assert (
        "Not all was measured: `python -m experiments broken` (the file: expected data, got none.)"
        in text
    )
    assert "Not measured: `python -m experiments silent` (it wrote no records)." in text


def test_reasons_do_not_name_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPJAX_DATA", "/somewhere/data")
    told = runs.without_folders(f"/somewhere/data/sst: no file, see {ROOT}/docs")
    assert told == "$AMPJAX_DATA/sst: no file, see ./docs"


def test_a_command_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Command, "limit_s", 0.3)
    kept, _ = measure(
        tmp_path,
        section(command("a", "slow"), command("b", "silent")),
    )
    assert kept is not None
    assert kept.ended["a"].failure == "it took more than 0 minutes"
    assert "b" in kept.ended


def test_a_run_goes_on_with_what_has_not_ended_well(tmp_path: Path) -> None:
    measure(
        tmp_path,
        section(command("a", "good"), command("b", "broken")),
    )
    kept, printed = measure(
        tmp_path,
        section(
            command("a", "good"),
            command("b", "good"),
            command("c", "good"),
        ),
        resume=True,
    )
    assert kept is not None and "2 of 3 commands" in printed
    ran = []
    for line in (tmp_path / NAME).read_text().split("\n")[1:-1]:
        ran.append(json.loads(line)["command"])
    assert ran == ["a", "b", "b", "c"]
    assert kept.records()["b"] == [{"value": 0.123457, "by": "good"}]
    assert not kept.ended["b"].failure


def test_only_some(tmp_path: Path) -> None:
    all_sections = (
        section(command("a", "good"), command("b", "good")),
        section(command("c", "good"), name="two"),
        section(command("d", "good"), name="three"),
    )
    kept, _ = measure(tmp_path, *all_sections, only=("b", "two"))
    assert kept is not None and list(kept.ended) == ["b", "c"]
    text = page(kept, all_sections)
    assert "`python -m experiments good` (it was not run)" in text
    assert "Not measured in this run." in text
    with pytest.raises(SettingsError, match=r"--only: expected some of a, b, c, d, one.*, got x"):
        measure(tmp_path, *all_sections, only=("x",))


def test_a_command_that_does_not_fit_into_the_time_is_left_for_later(tmp_path: Path) -> None:
    long = replace(command("long", "good"), minutes=10.0)
    kept, printed = measure(
        tmp_path,
        section(long, command("b", "good")),
        minutes=5.0,
    )
    assert kept is not None and list(kept.ended) == ["b"]
    assert "long: left for --resume" in printed


def test_records_are_not_written_over(tmp_path: Path) -> None:
    measure(tmp_path, section(command("a", "good")))
    with pytest.raises(SettingsError, match=r"without records, got .* Go on with --resume"):
        measure(tmp_path, section(command("a", "good")))


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ({"commit": "fedc9876"}, "expected commit 0123abcd, got commit fedc9876"),
        ({"changed": True}, "expected changed False, got changed True"),
        ({"processor": "Another"}, "expected processor A processor, got processor Another"),
        ({"packages": {"jax": "0.12.0"}}, "expected packages .*0.10.2.*, got packages .*0.12.0"),
    ],
)
def test_figures_of_different_settings_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: dict, told: str
) -> None:
    measure(tmp_path, section(command("a", "good")))
    monkeypatch.setattr(driver, "setting_of", lambda date: replace(SETTING, **then))
    with pytest.raises(SettingsError, match=f"--resume: {told}"):
        measure(
            tmp_path,
            section(command("b", "good")),
            resume=True,
            allow_dirty=True,
        )


def test_some_commands_are_measured_again_at_a_later_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = (
        section(command("a", "good")),
        section(
            command("b", "good"),
            name="two",
        ),
    )
    measure(tmp_path, *sections)
    later = replace(SETTING, commit="fedc9876")
    monkeypatch.setattr(driver, "setting_of", lambda date: later)
    kept, printed = measure(
        tmp_path,
        *sections,
        again=True,
        only=("two",),
    )
    assert "1 of 1 commands" in printed
    assert kept is not None
    assert {name: each.commit for name, each in kept.ended.items()} == {"a": "", "b": "fedc9876"}
    text = page(kept, sections)
    assert "Some commands were measured again at commit fedc9876" in text
    assert text.count("; commit 0123abcd, JAX 0.10.2,") == 1
    assert text.count("; commit fedc9876, JAX 0.10.2,") == 1
    another = replace(later, processor="Another")
    monkeypatch.setattr(driver, "setting_of", lambda date: another)
    with pytest.raises(SettingsError, match="expected processor A processor"):
        measure(tmp_path, *sections, again=True, only=("two",))


def test_a_run_of_another_day_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(tmp_path, section(command("a", "good")))
    monkeypatch.setattr(driver, "setting_of", lambda date: replace(SETTING, date="2026-11-04"))
    kept, _ = measure(
        tmp_path,
        section(command("b", "good")),
        resume=True,
    )
    assert kept is not None and list(kept.ended) == ["a", "b"]


def test_a_run_ends_when_the_commit_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([SETTING, SETTING, replace(SETTING, commit="fedc9876")])
    monkeypatch.setattr(driver, "setting_of", lambda date: next(found))
    with pytest.raises(SettingsError, match="got commit fedc9876"):
        measure(
            tmp_path,
            section(command("a", "good"), command("b", "good")),
        )
    assert list(load(tmp_path / NAME).ended) == ["a"]


def test_changed_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "setting_of", lambda date: replace(SETTING, changed=True))
    with pytest.raises(
        SettingsError, match=r"results: expected the files of commit 0123abcd, got .* --allow-dirty"
    ):
        measure(tmp_path, section(command("a", "good")))
    assert not (tmp_path / NAME).exists()
    kept, _ = measure(
        tmp_path,
        section(command("a", "good")),
        allow_dirty=True,
    )
    assert kept is not None and "0123abcd with changes" in page(kept, ())


def test_pages_are_written_without_a_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    docs = tmp_path / "docs"
    one = section(command("a", "good"))
    measure(out, one)
    docs.mkdir()
    start = "Before\n\n<!-- table: how-fast -->\nold\n<!-- end of table -->\n\nAfter\n"
    (docs / "index.md").write_text(start)
    kept, printed = measure(out, one, run=False, docs=docs)
    assert kept is not None and "written" in printed
    assert (docs / "results.md").read_text() == page(kept, [one])
    assert (docs / "measurements" / NAME).read_bytes() == (out / NAME).read_bytes()
    text = (docs / "index.md").read_text()
    assert text.startswith("Before\n\n<!-- table: how-fast -->\n| an update, or a call |")
    measured = "*commit 0123abcd, JAX 0.10.2, 3 November 2026.*"
    assert text.endswith(f"|\n\n{measured}\n<!-- end of table -->\n\nAfter\n")
    assert "old" not in text
    publish(docs / "measurements" / NAME, docs, [one])
    assert (docs / "index.md").read_text() == text, "a page is written again as it is"


def test_nothing_to_write_pages_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a line for each command .* got 0 lines .* Run `python"):
        measure(tmp_path, section(), run=False)
    kept = Kept(SETTING, {})
    with pytest.raises(DataError, match="expected a table of how-fast, got `slow`"):
        with_tables("<!-- table: slow -->\n<!-- end of table -->", kept)


def test_a_line_below_a_table_says_what_was_run_when_and_where() -> None:
    one = section(command("a", "good"))
    ended = Ended(
        "a",
        "python -m experiments good",
        1234.5,
        "2026-11-04",
        records=[{"value": 1}],
    )
    text = page(Kept(SETTING, {"a": ended}), [one])
    assert (
        "*`python -m experiments good` (1,234 s); commit 0123abcd, JAX 0.10.2, 4 November 2026.*"
        in text
    )
    told = setting_in_words(Kept(SETTING, {}))
    assert "Python 3.11.7, on 2 cores of a machine with `A processor`" in told
    assert "Compared with torch 2.13.0." in told and "blackjax, diffrax, optimistix" in told


def test_epochs_of_several_seeds_become_one_record(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    with path.open("w") as file:
        for seed, accuracies in enumerate(([0.5, 0.91], [0.5, 0.6])):
            for epoch, accuracy in enumerate(accuracies, 1):
                record = {
                    "experiment": "e",
                    "mode": "batch",
                    "max_active_keys": 4,
                    "options": {},
                    "seed": seed,
                    "epoch": epoch,
                    "target": 0.9,
                    "valid_accuracy": accuracy,
                    "train_per_s": 50.0,
                    "valid_per_s": 10.0,
                    "n_train": 100,
                    "n_valid": 20,
                    "staleness_mean": 0.0,
                }
                file.write(json.dumps(record) + "\n")
    (found,) = to_target(path)
    assert found["epochs"] == [2, None]
    assert found["seconds"] == [8, None]
    assert found["best"] == [0.91, 0.6]
    assert found["seeds"] == [0, 1]


def test_what_is_slower_is_told_again() -> None:
    found = {
        "batch": [
            {"work": "chain", "ratio": 0.8},
            {"work": "trees", "ratio": 2.0},
            {"work": "attention-64", "ratio": 0.97},
        ],
        "loops": [{"work": "newton", "to_vmap": 1.2, "map_ms": 1.0, "chosen_ms": 2.0}],
        "rates": [
            {"bench": "mnist", "program": "ampjax", "setting": "4 in flight", "train_per_s": 10.0},
            {"bench": "mnist", "program": "jax jit", "setting": "batch 100", "train_per_s": 40.0},
        ],
        "tables": [
            {"what": "one-table", "program": "ours", "times": 1.0},
            {"what": "one-table", "program": "by hand", "times": 0.9},
        ],
    }
    head, *told = [line for line in slower.slower(found).split("\n") if line.startswith("*")]
    assert head == "* training by messages, MNIST, beside plain JAX (batch 100): 0.25 times as fast"
    assert [line.rpartition(": ")[2][:4] for line in told] == ["0.50", "0.80", "0.90"]
    assert "Newton" in told[0]
    assert "10,000 steps" in told[1]
    assert "by hand" in told[2]


def test_the_start_pages_table_has_ratios_and_memory() -> None:
    records = [
        {"work": "trees", "ratio": 1.912, "temporary_bytes": [50, 100]},
        {"work": "list-reduction-16", "ratio": 0.948},
        {"work": "list-reduction-100", "ratio": 1.128},
        {"work": "nuts-funnel", "to_vmap": 11.46},
    ]
    ended = Ended("a", "text", 1.0, "2026-11-03", records=records)
    rows = start_page.how_fast(Kept(SETTING, {"a": ended})).split("\n")
    cells = {}
    for row in rows:
        cells[row.split(" | ")[0]] = row.split(" | ")[-1]
    assert cells["| Tree-LSTM, 64 trees of the Stanford treebank"] == "1.9, in half the memory |"
    assert cells["| list reduction, 16 and 100 sequences"] == "0.95, 1.1 |"
    assert cells["| NUTS of BlackJAX, 128 chains in a funnel"] == "11.5 |"
    assert cells["| encoder and decoder with attention"] == "not measured |"


FAULT = {
    "n": 2,
    "noticed_s": {"median": 0.1, "worst": 0.2},
    "to_go_on_s": {"median": 5, "worst": 6},
}
NONE = {"n": 0, "noticed_s": None, "to_go_on_s": None}
BATCH = {
    "ours_ms": 2.0,
    "plain_ms": 3.0,
    "ratio": 1.5,
    "spread": [1.4, 1.6],
}
LOOP = {"elements": 1024, "vmap_ms": 8.0, "map_ms": 4.0, "lanes_ms": 3.0, "chosen_ms": 2.0}
TRAINED = {
    "seeds": [0, 1],
    "best": [0.9712, 0.98],
    "seconds": [12.34, None],
    "train_per_s": 1234.5,
}


@pytest.mark.parametrize(
    ("name", "record", "line"),
    [
        (
            "batch",
            {"work": "trees", **BATCH, "first_s": [4.0, 2.0], "temporary_bytes": [1e6, 2e6]},
            "| level by level | 2 | 3 | **1.50** (1.40 to 1.60) | 4.0, 2.0 | 1.0, 2.0 |",
        ),
        (
            "attention",
            {"work": "attention-200-sum", **BATCH},
            "| `sum` |  | **1.50** (1.40 to 1.60), 2 |",
        ),
        (
            "lanes",
            {"work": "newton", **LOOP, "to_vmap": 4.0, "to_best": 2.0}
            | {"rows": 10, "rows_vmap": 15, "rows_lanes": 10},
            "| 1,024 | 8 | 4 | 3 | 2 | **4.00** | 2.00 | 1.5, 1.0 |",
        ),
        (
            "epochs",
            {"experiment": "sentiment", "mode": "async", "max_active_keys": 16, "target": 0.81}
            | {**TRAINED, "epochs": [2, None]},
            "| asynchronously, 16 trees in flight | 2, — | 97.1 %, 98 % | 12.3, — | 1,234 | 3 (to",
        ),
        (
            "functions",
            {"experiment": "functions-dag-lstm", "mode": "batch", "target": 0.95}
            | {**TRAINED, "epochs": [2, 3]},
            "| dag lstm | 95 % | batches | 2, 3 | 97.1 %, 98 % | 12.3, — |",
        ),
        (
            "rates",
            {"bench": "mnist", "program": "jax jit", "setting": "batch 100", "train_per_s": 1234.5},
            "| MNIST |  | 1,234 (jit batch 100) |  |",
        ),
        (
            "late",
            {"remedy": "muon", "delay": 4, "seed": 0, "rate": 0.1, "loss": 0.123456},
            "| muon | 0.123 |",
        ),
        (
            "local-sgd",
            {"name": "synchronous, sgd 0.5", "seed": 0}
            | {"losses": [1.5, 1.3], "accuracies": [0.3, 0.4], "seconds": [1.0, 333.0]},
            "| 1.3000 | 0.40 | 333 | 1.29882, 0.4, 333 |",
        ),
        (
            "replicas",
            {"what": "resnet", "ours": 0.594, "plain": 0.618, "ratio": 1.04},
            "| resnet | 594 | 618 | **1.04** |",
        ),
        (
            "cluster",
            {"where": "cluster", "model": "lm", "way": "hybrid", "per_s": 323_456, "paper": 274e3},
            "| LM, words/s |  |  |  | 323,000, 274,000 |",
        ),
        (
            "bytes",
            {"kind": "sparse", "architecture": "PS", "machines": 2}
            | {"formula": 2e6, "measured": 2.01e6},
            "| rows, by servers | 2.01 MB, +0.50 % |",
        ),
        (
            "simulated",
            {"workload": "list-reduction", "rest": "none", "train_per_s": 2_630_868},
            "only layers take time: examples a second | 2,630,868 | about 3 million |",
        ),
        (
            "simulated",
            {"model": "ggnn", "workers": 64, "speed_up": 31.24},
            "| molecules, 64 workers: throughput over one worker | 31.2 |  |",
        ),
        (
            "faults",
            {"model": "trees", "exact": True, "kill": FAULT, "hang": NONE},
            "a host killed | 2 | yes | 0.10, 0.20 | 5.0, 6.0 |",
        ),
    ],
)
def test_the_table_of_each_section(name: str, record: dict, line: str) -> None:
    (one,) = [one for one in SECTIONS if one.name == name]
    assert line in one.table({one.commands[0].name: [record]})


def test_tables_beside_other_programs() -> None:
    (one,) = [one for one in SECTIONS if one.name == "tables"]
    records = []
    for program, seconds in (("ours", 0.01), ("by hand", 0.02)):
        records.append(
            {
                "what": "one-table",
                "program": program,
                "seconds": seconds,
                "times": seconds / 0.01,
            }
        )
    assert "| by hand | 10 | 20 | **2.00** |" in one.table({"recommender": records})


def test_commands_choose_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPROC", raising=False)
    assert experiments(["results", "--show"]) == 0
    assert "NPROC" not in os.environ, "a command would take it for the user's choice"


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: A kind: of processor\n")
    assert processor(file) == "A kind: of processor"
    assert processor(tmp_path / "none")


def test_changes_of_pages_do_not_count(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        own = "-c", "user.name=A", "-c", "user.email=a@example.org"
        subprocess.run(
            ["git", *own, *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    git("init")
    for name in ("docs", "experiments", "ampjax"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("before")
    (tmp_path / "pyproject.toml").write_text("")
    git("add", ".")
    git("commit", "--message", "first")
    (tmp_path / "docs" / "file").write_text("after")
    found = setting_of("2026-11-03", tmp_path)
    assert len(found.commit) == 8
    assert not found.changed
    assert found.packages["jax"]
    (tmp_path / "experiments" / "file").write_text("after")
    assert setting_of("2026-11-03", tmp_path).changed


def test_figures_need_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"expected a checkout, .* Run it in a clone"):
        setting_of("2026-11-03", tmp_path)


# ---- the sections and pages of the documentation ------------------------------------------------


def test_the_sections_fit_into_an_hour_and_have_names_of_their_own() -> None:
    sections = [one.name for one in SECTIONS]
    names = []
    for one in SECTIONS:
        for each in one.commands:
            names.append(each.name)
            known = []
            for n in (1, 2):
                known.append(" ".join(each.arguments[:n]))
            assert set(known) & set(COMMANDS), each.text
    assert len(set(names)) == len(names)
    assert len(set(sections)) == len(sections)
    assert sum(one.minutes for one in SECTIONS) <= 55


@pytest.mark.parametrize(
    "each",
    [c for one in SECTIONS for c in one.commands],
    ids=lambda c: c.name,
)
def test_the_command_lines_of_sections_can_be_read(each: Command) -> None:
    from experiments.__main__ import parse

    more = ["--out", "folder"] if each.draws else []
    options = parse([*each.arguments, "--json", "file", *more])
    assert options.json == Path("file")


def test_the_results_page_is_what_the_records_give() -> None:
    kept = load(DOCS / "measurements" / NAME)
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    assert text == page(kept, SECTIONS), (
        "write it by `python -m experiments results --no-run --out docs/measurements --docs docs`"
    )


def test_the_start_pages_table_is_what_the_records_give() -> None:
    kept = load(DOCS / "measurements" / NAME)
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    assert "<!-- table: how-fast -->" in text
    assert text == with_tables(text, kept)


@pytest.mark.nightly
@pytest.mark.skipif(
    not (ROOT / ".git").exists(),
    reason="figures name the commit of a checkout",
)
def test_a_section_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    out = str(tmp_path / "out")
    docs = tmp_path / "docs"
    status = experiments(
        ["results", "--only", "parallax-table1", "--allow-dirty", "--out", out, "--docs", str(docs)]
    )
    assert status == 0
    assert "| LM, words/s | " in (docs / "results.md").read_text()
