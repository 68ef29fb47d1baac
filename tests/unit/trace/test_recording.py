"""Files of decisions: whole, cut off, damaged, foreign."""

import pytest

from ampjax.errors import ReplayError
from ampjax.trace.journal import FINISHED, INTERRUPTED, End, Issue, Settle, pack
from ampjax.trace.recording import BUFFER, MAGIC, Recorder, Recording

MADE = [Settle(i, 2 * i) for i in range(5)]


def write(path, decisions=MADE, reason=FINISHED):
    recorder = Recorder(path, {"epochs": 3})
    for decision in decisions:
        recorder.take(decision)
    recorder.close(reason)
    return path


def cut(path, n):
    path.write_bytes(path.read_bytes()[:-n])
    return path


def test_a_recording_round_trips(tmp_path):
    recording = Recording(write(tmp_path / "folder" / "run.trace", reason=INTERRUPTED))
    assert recording.header == {"epochs": 3}
    assert list(recording.decisions()) == [*MADE, End(INTERRUPTED, 5)]
    assert repr(recording) == f"Recording({str(tmp_path / 'folder' / 'run.trace')!r}, 5 decisions)"


def test_a_recording_is_longer_than_what_is_kept_of_it(tmp_path):
    many = []
    for i in range(3 * BUFFER // 9):
        many.append(Settle(i, 0))
    path = write(tmp_path / "run.trace", many)
    assert path.stat().st_size > 3 * BUFFER - 9
    assert list(Recording(path).decisions()) == [*many, End(FINISHED, len(many))]


def test_a_run_that_is_killed_leaves_what_has_been_written(tmp_path):
    recorder = Recorder(tmp_path / "run.trace", {})
    for i in range(2 * BUFFER // 9):
        recorder.take(Settle(i, 0))
    found = list(Recording(tmp_path / "run.trace", partial=True).decisions())
    assert len(found) >= BUFFER // 9
    assert found == [Settle(i, 0) for i in range(len(found))]
    recorder.close(FINISHED)


@pytest.mark.parametrize("n", [1, 10, 14])
def test_a_recording_that_is_cut_off(tmp_path, n):
    path = cut(write(tmp_path / "run.trace"), n)
    with pytest.raises(ReplayError) as caught:
        Recording(path)
    assert str(caught.value) == (
        f"recording `{path}`: expected one that has been written to its end, got one that was cut off after {path.stat().st_size} bytes: "
        "the run was killed, or the file is not whole. Pass `partial=True` to replay it up to there."
    )
    recording = Recording(path, partial=True)
    assert list(recording.decisions()) == (MADE if n <= 10 else MADE[:-1])
    assert "cut off" in repr(recording)


def test_a_damaged_recording(tmp_path):
    path = write(tmp_path / "run.trace")
    data = bytearray(path.read_bytes())
    start = len(MAGIC) + 4 + len('{"epochs": 3}')
    data[start + 9] = 200
    path.write_bytes(data)
    with pytest.raises(ReplayError) as caught:
        list(Recording(path).decisions())
    assert str(caught.value) == (
        f"recording `{path}`: expected a whole recording of this version's format, got byte {start + 9}, where no decision begins with 200. "
        "Pass a file that `fit(..., record=...)` has written."
    )


def test_a_foreign_file(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"epoch": 1}\n')
    with pytest.raises(
        ReplayError, match=r"got a file that begins with b'\{\"epoch\": 1\}\\n'\. Pass a file that"
    ):
        Recording(tmp_path / "log.jsonl")
    (tmp_path / "half").write_bytes(MAGIC + bytes([99, 0, 0, 0]) + b'{"epo')
    with pytest.raises(ReplayError, match="got a header that can't be read"):
        Recording(tmp_path / "half", partial=True)
    with pytest.raises(FileNotFoundError):
        Recording(tmp_path / "nothing")


def test_a_recording_of_an_earlier_format(tmp_path):
    (tmp_path / "run.trace").write_bytes(b"ampjax recording 1\n" + bytes(40))
    with pytest.raises(ReplayError) as caught:
        Recording(tmp_path / "run.trace")
    assert str(caught.value) == (
        f"recording `{tmp_path / 'run.trace'}`: expected one of format 2, which says by instance and state what was in each dispatch, "
        "got one of format 1, which an earlier version has written. "
        "Replay it with that version, or record the run anew: the same seed makes the same run if its clock is virtual."
    )


def test_a_header_that_claims_more_than_there_is(tmp_path):
    path = tmp_path / "run.trace"
    for text, got in {
        (2**32 - 1).to_bytes(4, "little")
        + b"{}": "a header that can't be read (4294967295 bytes where 2 are left)",
        (2).to_bytes(4, "little") + b"[]": "a header that is no object",
        (100_000).to_bytes(4, "little")
        + b"[" * 100_000: "a header that can't be read (brackets that are nested too deeply)",
    }.items():
        path.write_bytes(MAGIC + text)
        with pytest.raises(ReplayError) as caught:
            Recording(path, partial=True)
        assert caught.value.got == got


@pytest.mark.parametrize(
    ("decisions", "got"),
    [
        ([Settle(1, 1), End(FINISHED, 2)], "where 1 decisions end that should be 2"),
        (
            [
                End(FINISHED, 0),
                Settle(1, 1),
                End(FINISHED, 2),
            ],
            "where more follows the end",
        ),
    ],
)
def test_an_end_that_counts_other_decisions(tmp_path, decisions, got):
    path = cut(
        write(tmp_path / "run.trace", []),
        len(pack(End(0, 0))),
    )
    path.write_bytes(path.read_bytes() + b"".join(map(pack, decisions)))
    with pytest.raises(ReplayError) as caught:
        list(Recording(path).decisions())
    assert caught.value.got.endswith(got)


@pytest.mark.parametrize(
    ("decision", "error"),
    [
        (End(3, 0), "no reason to end has the number 3"),
        (
            Issue(
                0,
                0,
                4,
                1,
                1,
                0,
                0,
                0,
            ),
            "no direction has the number 4",
        ),
    ],
)
def test_numbers_that_stand_for_nothing(tmp_path, decision, error):
    path = cut(
        write(tmp_path / "run.trace", [decision]),
        len(pack(End(0, 0))),
    )
    with pytest.raises(ReplayError, match=f"where {error}"):
        list(Recording(path, partial=True).decisions())


def test_decisions_that_do_not_end_where_the_file_does(tmp_path):
    path = write(tmp_path / "run.trace")
    data = bytearray(path.read_bytes())
    data[-len(pack(End(0, 0))) - 9] = pack(Issue(0, 0, 0, 0, 0, 0, 0, 0))[
        0
    ]  # now the last but one reaches beyond the end
    path.write_bytes(data)
    with pytest.raises(ReplayError, match="where no whole decision is"):
        list(Recording(path).decisions())
