"""Quicker compilation for tests of models whose kernels run a few times only."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Leaves most of XLA's optimisations out while a module's tests run; a test module takes part by importing this.

    Not for modules that run the engine: it shares its kernels with other modules, which may compare results bit by bit.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
