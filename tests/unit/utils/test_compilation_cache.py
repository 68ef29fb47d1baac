"""JAX's persistent cache: on by default, the user's own choice otherwise."""

import os
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

import ampjax as amp
from ampjax.utils import compilation_cache
from ampjax.utils.compilation_cache import drop_damaged, drop_oldest, use_compilation_cache

pytestmark = pytest.mark.slow

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_enable_compilation_cache",
)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """JAX's settings as they are in a new process without any of the user's; the cache folder is a new one."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    use_compilation_cache.cache_clear()  # it acts once in a process
    yield lambda: [jax.config.values[name] for name in SETTINGS[:2]]
    for name, value in before.items():
        jax.config.update(name, value)
    use_compilation_cache.cache_clear()
    reset_cache()  # JAX goes back to the folder of the tests' run


@pytest.mark.nightly
def test_a_second_process_loads_what_the_first_has_compiled(tmp_path):
    """Also if JAX has compiled something before there is a trainer."""
    code = (
        "import jax, jax.numpy as jnp, optax; import ampjax as amp; jnp.ones(3) + 1; hits = []\n"
        "jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith('/cache_hits')))\n"
        "with amp.graphs.Graph() as g:\n"
        "  amp.graphs.loss('loss', lambda x: x.sum())(amp.graphs.ppt('f', amp.nn.Linear(3, 3))(amp.graphs.pump('x', (3,))))\n"
        "amp.Trainer(g, optax.sgd(1e-2)).accumulate([{'x': [1.0] * 3}]); print(sum(hits))"
    )
    clean = {}
    for name, value in os.environ.items():
        if not name.startswith("JAX_"):
            clean[name] = value
    environment = {**clean, "XDG_CACHE_HOME": str(tmp_path)}
    cold, warm = (
        int(subprocess.check_output([sys.executable, "-c", code], env=environment))
        for _ in range(2)
    )
    assert cold == 0 < warm
    assert any((tmp_path / "ampjax" / "xla").glob("*/*loss_train*"))


def test_by_default_small_programs_are_kept_in_the_user_s_cache_folder(config, tmp_path):
    use_compilation_cache()
    folder, least_secs = config()
    assert folder.startswith(str(tmp_path / "ampjax" / "xla")) and least_secs == 0.0


def test_a_batch_as_one_function_is_kept(config, tmp_path):
    batched = amp.vmap(
        lambda p, s: amp.sum(
            amp.map(
                lambda x: p * x,
                s["x"],
            )
        ),
        {"x": "float32[t]"},
    )
    batched(1.5, [{"x": [1.0, 2.0]}])
    assert config()[0].startswith(str(tmp_path / "ampjax" / "xla"))
    assert any((tmp_path / "ampjax" / "xla").glob("*/*"))


def test_the_user_s_folder_stays_as_it_is(config, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    use_compilation_cache()
    assert config() == [str(tmp_path / "mine"), 1.0]
    assert not list(tmp_path.iterdir())


def test_what_the_user_chooses_later_stays(config):
    """Trainers that are made afterwards leave it alone."""
    use_compilation_cache()
    jax.config.update("jax_compilation_cache_dir", None)
    use_compilation_cache()
    assert config()[0] is None


def test_a_cache_that_is_switched_off_stays_off(config, tmp_path):
    jax.config.update("jax_enable_compilation_cache", False)
    use_compilation_cache()
    assert config()[0] is None and not list(tmp_path.iterdir())


def test_the_user_s_choice_of_what_is_kept_stays(config):
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 5.0)
    use_compilation_cache()
    assert config()[1] == 5.0


def test_where_no_folder_can_be_nothing_is_written(config, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    use_compilation_cache()
    assert config()[0] is None
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_user_without_a_home_folder_has_no_cache(config, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", no_home)
    use_compilation_cache()
    assert config()[0] is None


def test_the_oldest_files_make_room(tmp_path):
    for age, name in enumerate(["new", "old", "oldest"]):
        file = tmp_path / "machine" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(100))
        os.utime(file, (1000 - age, 1000 - age))
    drop_oldest(tmp_path, 300)
    assert len(list(tmp_path.glob("*/*"))) == 3
    drop_oldest(tmp_path, 299)
    assert [file.name for file in tmp_path.glob("*/*")] == ["new"]


def test_a_file_that_cannot_be_deleted_does_not_keep_the_others(tmp_path, monkeypatch):
    """Nor one that another process has deleted in the meantime: the clean-up goes on with the next."""
    for age, name in enumerate(["new", "old", "held", "gone"]):
        (tmp_path / name).write_bytes(bytes(200 if name == "gone" else 100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    unlink = Path.unlink

    def held(file, missing_ok=False):
        if file.name == "held":
            raise PermissionError(file)
        if file.name == "gone":
            unlink(file)
        unlink(file, missing_ok)

    monkeypatch.setattr(Path, "unlink", held)
    drop_oldest(tmp_path, 450)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["held", "new"]


@pytest.fixture(params=["zlib", "zstandard"])
def compressed(request):
    """An entry of JAX's cache, in either of the ways in which JAX compresses it."""
    raw = bytes(range(256)) * 20
    if request.param == "zlib":
        return zlib.compress(raw)
    name = "compression.zstd" if sys.version_info >= (3, 14) else "zstandard"
    return pytest.importorskip(name).compress(raw)


def test_pythons_that_compress_otherwise_have_folders_of_their_own(config, monkeypatch):
    """JAX warns in every process of an entry that it can't decompress, and keeps it."""
    folders = []
    for installed in (None, (zlib.decompress, zlib.error)):
        monkeypatch.setattr(compilation_cache, "_zstandard", lambda installed=installed: installed)
        compilation_cache._machine.cache_clear()
        use_compilation_cache.cache_clear()
        jax.config.update("jax_compilation_cache_dir", None)
        use_compilation_cache()
        folders.append(config()[0])
    compilation_cache._machine.cache_clear()
    assert len(set(folders)) == 2


def test_empty_and_cut_off_entries_are_deleted(tmp_path, compressed):
    """JAX would warn of them in every process, and never replace them."""
    for name, entry in {
        "whole": compressed,
        "cut_off": compressed[:-9],
        "empty": b"",
    }.items():
        (tmp_path / f"jit_{name}-cache").write_bytes(entry)
    drop_damaged(tmp_path)
    assert [file.name for file in tmp_path.glob("*-cache")] == ["jit_whole-cache"]


def test_an_entry_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    file = tmp_path / "jit_f-cache"
    read = []
    file.write_bytes(zlib.compress(b"program"))
    os.utime(file, (1000, 1000))
    read_bytes = Path.read_bytes
    monkeypatch.setattr(
        Path,
        "read_bytes",
        lambda file: read.append(file) or read_bytes(file),
    )
    drop_damaged(tmp_path)
    drop_damaged(tmp_path)
    assert read == [file]
    file.write_bytes(b"")
    drop_damaged(tmp_path)
    assert read == [file, file] and not file.exists()


def test_a_new_process_replaces_a_damaged_entry(config):
    """As JAX reads it: without the clean-up it warns of the entry, and leaves it as it is."""

    def compile_in_a_new_process():
        use_compilation_cache.cache_clear()
        jax.config.update("jax_compilation_cache_dir", None)
        use_compilation_cache()
        assert jax.jit(lambda x: 2 * x + 1)(3.0) == 7.0

    compile_in_a_new_process()
    (entry,) = Path(config()[0]).glob("*lambda*-cache")
    size = entry.stat().st_size
    os.truncate(entry, size // 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_in_a_new_process()
    assert entry.stat().st_size > size // 2
