"""What importing ampjax does to `XLA_FLAGS`, and that a program trains with right numbers however modules are imported."""

import json
import os
import subprocess

import pytest
from support.laws import run_python

from ampjax.cluster.hosts.local_launcher import host_environment
from ampjax.numerics import guard
from ampjax.numerics.guard import FLAG, VALUE, FlagGuard, flag_value, set_flag, with_flag
from experiments.bench.program import Entry

OURS = f"--{FLAG}={VALUE}"
pytestmark = pytest.mark.users


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """An empty environment and cache, a backend that has not started, and a jaxlib that is known to need the flag."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(guard, "_backend_has_started", lambda: False)
    monkeypatch.setattr(guard, "_wrong_without_flag", lambda: ["a pattern"])


def test_the_flag_is_set():
    assert set_flag() == FlagGuard("guard", VALUE, in_time=True)
    assert os.environ["XLA_FLAGS"] == OURS


def test_other_flags_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false --xla_dump_to=/tmp/x")
    set_flag()
    assert (
        os.environ["XLA_FLAGS"] == f"--xla_cpu_enable_fast_math=false --xla_dump_to=/tmp/x {OURS}"
    )


@pytest.mark.parametrize("value", ["", "individual_dot", "-dot"])
def test_the_user_s_own_value_stays_and_is_not_vouched_for(value, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/tmp/x --{FLAG}={value}")
    found = set_flag()
    assert found == FlagGuard("environment", value, in_time=True) and not found.certain
    assert os.environ["XLA_FLAGS"] == f"--xla_dump_to=/tmp/x --{FLAG}={value}"


def test_a_child_process_inherits_the_flag_and_need_not_check(monkeypatch):
    set_flag()
    assert set_flag() == FlagGuard("environment", VALUE, in_time=True)
    assert set_flag().certain
    assert os.environ["XLA_FLAGS"] == OURS


def test_flags_in_a_file_stay(tmp_path, monkeypatch):
    file = tmp_path / "flags"
    file.write_text("--xla_cpu_enable_fast_math=false\n--xla_dump_to=/tmp/x\n")
    monkeypatch.setenv("XLA_FLAGS", str(file))
    set_flag()
    assert (
        os.environ["XLA_FLAGS"] == f"--xla_cpu_enable_fast_math=false --xla_dump_to=/tmp/x {OURS}"
    )


def test_the_last_value_counts():
    assert flag_value(f"--{FLAG}=a --other=b --{FLAG}=c") == "c"
    assert flag_value(f"--other_{FLAG}=a") is None


def test_a_value_takes_the_place_of_another():
    assert with_flag(f"--a=1 --{FLAG}=-dot --b", "-reduce") == f"--a=1 --b --{FLAG}=-reduce"
    assert with_flag("", "") == f"--{FLAG}="


def test_where_the_backend_has_started_the_flag_is_for_child_processes(monkeypatch):
    monkeypatch.setattr(guard, "_backend_has_started", lambda: True)
    found = set_flag()
    assert found == FlagGuard("guard", VALUE, in_time=False) and not found.certain
    assert os.environ["XLA_FLAGS"] == OURS


def test_a_jaxlib_that_does_not_know_the_flag_is_left_alone(monkeypatch):
    monkeypatch.setattr(guard, "FLAG", "xla_no_such_flag")
    found = set_flag()
    assert found == FlagGuard("unknown", None, in_time=True) and not found.certain
    assert "XLA_FLAGS" not in os.environ


def test_where_the_patterns_are_right_nothing_is_set_and_the_answer_is_kept(monkeypatch):
    asked = []
    monkeypatch.setattr(guard, "_wrong_without_flag", lambda: asked.append("once") or [])
    for _ in range(2):
        assert set_flag() == FlagGuard("unneeded", None, in_time=True)
        assert set_flag().certain
    assert asked == ["once"] and "XLA_FLAGS" not in os.environ


def test_each_installation_has_its_own_answer(monkeypatch):
    assert set_flag().source == "guard"
    monkeypatch.setattr(guard, "_installation", lambda: "another")
    monkeypatch.setattr(guard, "_wrong_without_flag", lambda: [])
    monkeypatch.delenv("XLA_FLAGS")
    assert set_flag().source == "unneeded"


@pytest.mark.parametrize(
    "error", [OSError("no process"), subprocess.TimeoutExpired("python", 60), ValueError("no JSON")]
)
def test_where_the_check_can_t_run_the_flag_is_set_and_nobody_waits_again(error, monkeypatch):
    asked = []

    def fails():
        asked.append("once")
        raise error

    monkeypatch.setattr(guard, "_wrong_without_flag", fails)
    assert set_flag().source == "guard"
    monkeypatch.delenv("XLA_FLAGS")
    assert set_flag().source == "guard" and asked == ["once"]


def test_an_import_that_is_killed_while_it_asks_leaves_one_file_that_is_on_the_safe_side(
    tmp_path, monkeypatch
):
    def killed():
        raise KeyboardInterrupt

    monkeypatch.setattr(guard, "_wrong_without_flag", killed)
    with pytest.raises(KeyboardInterrupt):
        set_flag()
    assert set_flag().source == "guard"
    assert len(list((tmp_path / "cache").rglob("*.txt"))) == 1


@pytest.mark.parametrize("place", ["a file", "no home"])
def test_without_a_place_for_the_answer_no_process_is_started(place, tmp_path, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    if place == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr("pathlib.Path.home", no_home)
    monkeypatch.setattr(guard, "_wrong_without_flag", lambda: pytest.fail("a process was started"))
    assert set_flag().source == "guard"


def test_flags_that_are_overwritten_after_the_import_are_not_vouched_for(monkeypatch):
    found = set_flag()
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    assert found.overwritten and not found.certain


def test_every_process_that_we_start_has_the_flag():
    set_flag()
    assert host_environment({})["XLA_FLAGS"] == OURS
    assert (
        Entry("a peer", "", "module:function", environment={"NPROC": "1"}).variables()["XLA_FLAGS"]
        == OURS
    )


PROGRAM = """
{imports}
import json, warnings
import jax, jax.numpy as jnp, numpy as np, optax
import ampjax as amp, ampjax.graphs as ag, ampjax.parallel as px
from ampjax.errors import NumericsError, NumericsWarning

rng = np.random.default_rng(0)
x, w = (rng.standard_normal((5, 60, 60)).astype(np.float32) for _ in range(2))
want = np.sum((x.astype(float) @ np.full((60, 60), 0.7)) * w)
pattern = lambda x, w: ((x @ jnp.full_like(x, 0.7)) * w).sum()

with ag.Graph() as graph:
    summed = ag.ppt("scale", lambda p, x, w: p * pattern(x, w), params=jnp.ones(()))(ag.pump("x", x.shape), ag.pump("w", x.shape))
    ag.sink("out", summed)
    ag.loss("sum", lambda y: y)(summed)
loss = lambda p, batch: p * pattern(batch["x"][0], batch["w"][0])
data = [{{"x": x, "w": w}}]
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    trainer = amp.Trainer(graph, optax.sgd(1e-3), compile_ahead=False)
    config = px.ParallaxConfig(check_finite=False)  # wrong kernels give NaN in some runs, which would be an error
    runner = px.get_runner(loss, jnp.ones(()), optax.sgd(1e-3), config=config)
predicted = trainer.predict(data, progress=False)["out"].payload[0]
trained = trainer.fit(data, progress=False).epochs[0].train["loss"]
step = runner.run({{"x": x[None], "w": w[None]}})
try:
    checked = amp.check_numerics()
except NumericsError as error:
    checked = str(error)
right = {{
    "predicted": predicted / want, "trained": trained / want, "step": step.loss / want,
    "update": (1 - trainer.params["scale"]) / 1e-3 / want, "step's update": (1 - runner.params) / 1e-3 / want,
}}
print(json.dumps({{
    "right": {{name: bool(abs(ratio - 1) < 1e-3) for name, ratio in right.items()}},
    "warned": [str(t.message) for t in told if t.category is NumericsWarning], "checked": checked,
}}))
"""


def result_of(imports: str, **environment: str) -> dict:
    return json.loads(
        run_python(PROGRAM.format(imports=imports), JAX_NUM_CPU_DEVICES="1", **environment)
    )


SLOW = [
    pytest.param(imports, marks=pytest.mark.slow)
    for imports in ("import ampjax", "import ampjax.parallel")
]


@pytest.mark.parametrize("imports", ["import jax; import ampjax", *SLOW])
def test_numbers_are_right_however_modules_are_imported(imports):
    result = result_of(imports)
    assert all(result["right"].values()) and result["warned"] == []
    assert "rightly on this CPU" in result["checked"]


@pytest.mark.slow
def test_where_jax_was_used_before_the_user_is_warned_once_or_all_is_right():
    result = result_of("import jax; jax.numpy.ones(3)")
    if "rightly" in result["checked"]:
        assert all(result["right"].values()) and result["warned"] == []
    else:
        (warning,) = result["warned"]
        assert warning.startswith(
            "Trainer: expected XLA's kernels on this CPU to agree with NumPy, got other numbers for"
        )
        assert warning.endswith(
            f"import ampjax first, or set XLA_FLAGS={OURS} before Python starts."
        )


@pytest.mark.slow
def test_the_user_s_own_value_is_checked():
    result = result_of("", XLA_FLAGS=f"--{FLAG}=-dot")
    if "rightly" not in result["checked"]:
        (warning,) = result["warned"]
        assert f"XLA_FLAGS sets --{FLAG}=-dot" in warning
        assert result["checked"].startswith(
            "check_numerics: expected XLA"
        )  # wrong numbers differ from run to run
