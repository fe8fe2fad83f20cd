"""Fixtures every test can use. Simulated devices must be asked for before jax is imported."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import importlib.util
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """Folder of traces that real profilers wrote, for tests against hand counts."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("the folder of real traces is not there")
    return folder


@pytest.fixture(scope="session")
def ring_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that is the same on every machine: ring, 2 layers × 2 chunks, 2 devices, 2 rounds × 2 steps."""
    return _unpacked("ring-run", tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def compiled_ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `moe-prof compile ring --target tpu7x:2x2x1 --ep 8 -o compiled-ring` wrote: 2 layers × 4 chunks."""
    return _unpacked("compiled-ring", tmp_path_factory.mktemp("compiled"))


def _unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(Path(__file__).parent / "data" / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a whole output with the file of that name in tests/golden; `--update-golden` writes it instead."""

    def compare(name: str, output: str) -> None:
        file = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            file.write_text(output)
        assert output == file.read_text()

    return compare


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what compiles for a TPU where libtpu is not there, unless those tests are asked for by `-m tpu`."""
    if config.getoption("-m") == "tpu" or importlib.util.find_spec("libtpu") is not None:
        return
    for item in items:
        if item.get_closest_marker("tpu"):
            item.add_marker(pytest.mark.skip(reason="libtpu (the extra `tpu`) is not installed: `make test-tpu`"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")
