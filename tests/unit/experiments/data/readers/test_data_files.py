import hashlib
import http.client

import pytest

from ampjax.errors import DataError
from experiments.data.readers import data_files
from experiments.data.readers.data_files import Remote, find

CONTENT = b"some bytes"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No data folder and an empty cache; the cache's folder."""
    monkeypatch.delenv("AMPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ampjax"


@pytest.fixture
def served(tmp_path):
    """A file that can be downloaded, without a network."""
    path = tmp_path / "served.gz"
    path.write_bytes(CONTENT)
    return Remote(
        "toy",
        "a.gz",
        path.as_uri(),
        SHA256,
        also=("a",),
    )


def put(path, content=CONTENT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("place", ["toy/a.gz", "a.gz", "toy/a", "a"])
def test_both_layouts_and_other_names_are_found(tmp_path, served, place):
    path = put(tmp_path / "given" / place)
    assert find(served, tmp_path / "given") == path


def test_the_given_folder_comes_before_the_environment(tmp_path, served, monkeypatch):
    path = put(tmp_path / "given" / "a.gz")
    put(tmp_path / "env" / "a.gz")
    monkeypatch.setenv("AMPJAX_DATA", str(tmp_path / "env"))
    assert find(served, tmp_path / "given") == path


def test_the_environment_comes_before_the_cache(tmp_path, served, monkeypatch, nowhere):
    put(nowhere / "toy" / "a.gz")
    path = put(tmp_path / "env" / "toy" / "a.gz")
    monkeypatch.setenv("AMPJAX_DATA", str(tmp_path / "env"))
    assert find(served) == path


def test_a_data_folder_for_other_sets_does_not_stop_the_download(
    tmp_path, served, monkeypatch, nowhere
):
    monkeypatch.setenv("AMPJAX_DATA", str(tmp_path / "env"))
    assert find(served) == nowhere / "toy" / "a.gz"


def test_a_download_goes_to_the_cache_once(tmp_path, served, nowhere):
    path = find(served)
    assert path == nowhere / "toy" / "a.gz" and path.read_bytes() == CONTENT
    (tmp_path / "served.gz").unlink()
    assert find(served) == path
    assert [p.name for p in path.parent.iterdir()] == ["a.gz"]  # no partial file stays


def test_a_wrong_checksum_is_refused_and_leaves_nothing(tmp_path, served, nowhere):
    put(tmp_path / "served.gz", b"other bytes")
    with pytest.raises(
        DataError,
        match=rf"download of file:.*expected a file with SHA-256 {SHA256}, got [0-9a-f]{{64}}\. The file was damaged",
    ):
        find(served)
    assert list((nowhere / "toy").iterdir()) == []


def test_a_failed_download_says_what_to_do(tmp_path, served, nowhere):
    (tmp_path / "served.gz").unlink()
    with pytest.raises(
        DataError,
        match=r"expected an answer with the file, got URLError: .*get a\.gz or a elsewhere.*AMPJAX_DATA",
    ):
        find(served)
    assert list((nowhere / "toy").iterdir()) == []


def test_a_download_that_breaks_off_leaves_nothing(served, nowhere, monkeypatch):
    def fetch(url, out):
        out.write(CONTENT[:3])
        raise http.client.IncompleteRead(CONTENT[:3], 7)

    monkeypatch.setattr(data_files, "_fetch", fetch)
    with pytest.raises(DataError, match="IncompleteRead"):
        find(served)
    assert list((nowhere / "toy").iterdir()) == []


def test_a_cache_that_can_not_be_written_is_a_clear_error(tmp_path, served, monkeypatch):
    put(tmp_path / "file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # a file where a folder has to be
    with pytest.raises(
        DataError,
        match=r"expected a folder .* that can be written, got .*Set AMPJAX_DATA, or XDG_CACHE_HOME",
    ):
        find(served)


def test_a_missing_file_in_a_given_folder_is_not_downloaded(tmp_path, served):
    with pytest.raises(DataError) as error:
        find(served, tmp_path / "given")
    text = str(error.value)
    assert text.startswith("data set `toy`: expected the file a.gz or a, got no such file in ")
    assert (
        str(tmp_path / "given" / "toy") in text
        and served.url in text
        and "--data-dir" in text
        and "AMPJAX_DATA" in text
    )


def test_a_file_without_an_address_names_its_source(nowhere):
    with pytest.raises(
        DataError,
        match=rf"no such file in {nowhere / 'toy'} and {nowhere}\. Get it from the authors' page,",
    ):
        find(Remote("toy", "a.gz", source="the authors' page"))


@pytest.mark.parametrize("sha256", [None, "abc"])
def test_an_address_needs_a_checksum(sha256):
    with pytest.raises(
        DataError,
        match=r"Remote `toy/a\.gz`: expected a SHA-256 of 64 hexadecimal digits beside a url, got",
    ):
        Remote("toy", "a.gz", "https://example.org/a.gz", sha256)
