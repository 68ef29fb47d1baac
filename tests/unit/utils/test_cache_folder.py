from ampjax.utils.cache_folder import cache_folder


def test_by_default_the_cache_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "ampjax"


def test_the_variable_for_caches_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ampjax"


def test_a_relative_folder_for_caches_is_ignored(tmp_path, monkeypatch):
    """The XDG Base Directory Specification says so; the cache would be wherever the program is started."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert cache_folder() == tmp_path / ".cache" / "ampjax"
