"""Fixtures of the tests of the workloads."""

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compile():
    """Spend no time on fast machine code: what is compiled here runs once. The HLO passes stay the same."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
