"""Does an installed ampjax work, alone? Run by `install_matrix.py`, and by the conda recipe's tests, beside the README, in an environment that has nothing else, away from the checkout."""

import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import jax
import numpy as np
import optax

import ampjax as amp
import ampjax.parallel as px

OUTSIDE = ("experiments", "flax", "orbax", "tyro", "pytest")
"""What a checkout has and what extras bring; JAX itself needs SciPy."""

package = Path(amp.__file__).parent
assert package.is_relative_to(sys.prefix), f"imported from {package}"
assert (package / "py.typed").is_file(), "says nothing of its types"
there = [name for name in OUTSIDE if importlib.util.find_spec(name) is not None]
assert not there, f"brings {there} along"
folders = {file.parts[0] for file in importlib.metadata.files("ampjax") or ()}
version = importlib.metadata.version("ampjax")
assert folders == {"ampjax", f"ampjax-{version}.dist-info"}, f"brings {folders}"
for module in pkgutil.walk_packages(amp.__path__, "ampjax."):
    importlib.import_module(module.name)

try:
    from ampjax import models
except ImportError as error:
    assert "experiments.models" in str(error), error
else:
    raise AssertionError(f"has {models}")

# The README's first program: a model as a function, trained and verified.
here = Path(__file__).parent
text = (here / "README.md").read_text(encoding="utf-8")
program = here / "readme_model.py"
program.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")
history = runpy.run_path(str(program))["history"]
assert history.best("accuracy") > 0.95, "the README says so"


def loss(params, batch):
    """Reads rows of a table."""
    return jax.numpy.mean((params["table"][batch["ids"]] @ params["w"] - batch["y"]) ** 2)


runner = px.get_runner(
    loss, {"table": np.ones((100, 2), np.float32), "w": np.ones(2, np.float32)}, optax.sgd(0.1)
)
assert runner.run({"ids": np.arange(4), "y": np.zeros(4, np.float32)}).loss == 4.0
print(
    f"ampjax {version} works in {sys.prefix}: Python {sys.version.split()[0]}, JAX {jax.__version__}"
)
