"""Does an installed ampjax work, alone? Run by `.ci/package` in an environment that has nothing else, away from the checkout."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np
import optax

import ampjax as amp
import ampjax.parallel as px
from ampjax.data import list_reduction
from ampjax.models import list_reduction_rnn

package = Path(amp.__file__).parent
assert package.is_relative_to(sys.prefix), f"imported from {package}"
assert (package / "py.typed").is_file(), "says nothing of its types"
assert importlib.util.find_spec("experiments") is None, "brings experiments along"
folders = {file.parts[0] for file in importlib.metadata.files("ampjax") or ()}
version = importlib.metadata.version("ampjax")
assert folders == {"ampjax", f"ampjax-{version}.dist-info"}, f"brings {folders}"

model = list_reduction_rnn(hidden=8)
data = model.data(list_reduction.plain(list_reduction.generate(40, seed=0)))
trainer = amp.Trainer(model.graph, optax.adam(1e-2), max_active_keys=8, min_update_interval=8)
history = trainer.fit(data, epochs=2, progress=False)
assert np.isfinite(history[-1].train["loss"])


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
