"""Fixtures every test can use. Simulated devices must be asked for before jax is imported."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """Folder of traces that real profilers wrote, for tests against hand counts."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("the folder of real traces is not there")
    return folder
