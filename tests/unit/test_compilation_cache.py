"""JAX's persistent cache: on by default, the user's own choice otherwise."""

import os
import subprocess
import sys

import jax
import pytest

from ampjax.compilation_cache import drop_oldest, use_compilation_cache

SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_enable_compilation_cache")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """JAX's settings as they are in a new process without any of the user's; the cache folder is a new one."""
    before = {name: jax.config.values[name] for name in SETTINGS}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    monkeypatch.setattr("ampjax.compilation_cache.reset_cache", lambda: None)
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    yield lambda: [jax.config.values[name] for name in SETTINGS[:2]]
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_second_process_loads_what_the_first_has_compiled(tmp_path):
    """Also if JAX has compiled something before there is a trainer."""
    code = (
        "import jax, jax.numpy as jnp, optax; import ampjax as amp; jnp.ones(3) + 1; hits = []\n"
        "jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith('/cache_hits')))\n"
        "with amp.Graph() as g:\n"
        "  amp.loss('loss', lambda x: x.sum())(amp.ppt('f', amp.nn.Linear(3, 3))(amp.pump('x', (3,))))\n"
        "amp.Trainer(g, optax.sgd(1e-2)).accumulate([{'x': [1.0] * 3}]); print(sum(hits))"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = {**clean, "XDG_CACHE_HOME": str(tmp_path)}
    cold, warm = (int(subprocess.check_output([sys.executable, "-c", code], env=environment)) for _ in range(2))
    assert cold == 0 < warm and any((tmp_path / "ampjax" / "xla").glob("*/*loss_train*"))


def test_by_default_small_programs_are_kept_in_the_user_s_cache_folder(config, tmp_path):
    use_compilation_cache()
    folder, least_secs = config()
    assert folder.startswith(str(tmp_path / "ampjax" / "xla")) and least_secs == 0.0


def test_the_user_s_folder_stays_as_it_is(config, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    use_compilation_cache()
    assert config() == [str(tmp_path / "mine"), 1.0] and not list(tmp_path.iterdir())


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
