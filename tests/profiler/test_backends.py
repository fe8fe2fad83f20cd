import importlib.metadata
from pathlib import Path

import jax
import pytest

from analyzers.errors import UserError
from profiler import backends


def test_a_mesh_gets_as_many_host_devices_and_other_flags_stay() -> None:
    environ = {"XLA_FLAGS": "--xla_a=1"}
    backends.prepare_environment(4, environ)
    assert environ["XLA_FLAGS"] == "--xla_a=1 --xla_force_host_platform_device_count=4"


def test_one_device_needs_no_flag() -> None:
    environ: dict[str, str] = {}
    assert backends.prepare_environment(1, environ) == ()
    assert environ == {}


def test_enough_host_devices_are_left_alone() -> None:
    environ = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    backends.prepare_environment(4, environ)
    assert environ == {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def test_too_few_host_devices_are_refused() -> None:
    with pytest.raises(UserError) as error:
        backends.prepare_environment(4, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})
    assert str(error.value) == (
        "XLA_FLAGS asks for 2 host devices, the mesh has 4; "
        "remove --xla_force_host_platform_device_count from XLA_FLAGS, or lower --ep."
    )


def test_command_buffers_are_turned_off_where_a_gpu_plugin_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "version_of", lambda name: "0.10.2" if name == "jax-cuda12-plugin" else None)
    environ: dict[str, str] = {}
    (note,) = backends.prepare_environment(1, environ)
    assert environ == {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
    assert note.startswith("command buffers (CUDA graphs) are off")


def test_more_devices_than_the_process_has_are_refused() -> None:
    there = len(jax.devices())
    with pytest.raises(UserError) as error:
        backends.find_devices(there + 1)
    assert str(error.value) == (
        f"the mesh needs {there + 1} devices, this process sees {there} (cpu); "
        f"set XLA_FLAGS=--xla_force_host_platform_device_count={there + 1} before jax is imported."
    )


@pytest.mark.parametrize(("libtpu", "fits"), [(None, True), ("0.0.42", True), ("0.0.42.1", True), ("0.0.420", False)])
def test_libtpu_must_be_the_one_jax_names(monkeypatch: pytest.MonkeyPatch, libtpu: str | None, fits: bool) -> None:
    monkeypatch.setattr(backends, "version_of", {"libtpu": libtpu, "jax": "0.10.2"}.get)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["numpy>=2", 'libtpu==0.0.42.*; extra == "tpu"'])
    if fits:
        backends.check_versions()
        return
    with pytest.raises(UserError) as error:
        backends.check_versions()
    assert str(error.value) == (
        "libtpu 0.0.420 does not belong to jax 0.10.2, which needs libtpu 0.0.42; "
        "install the pair with `pip install 'jax[tpu]==0.10.2'`, or uninstall libtpu."
    )


def test_jax_names_a_libtpu_in_the_form_the_check_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "version_of", {"libtpu": "0", "jax": "x"}.get)
    with pytest.raises(UserError, match="libtpu 0 does not belong"):
        backends.check_versions()


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 4096 * 1024), ("3000000", 2000000), (None, 4096 * 1024), ("999999999", 4096 * 1024)]
)
def test_free_memory_is_the_lesser_of_system_and_control_group(
    tmp_path: Path, limit: str | None, expected: int
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    4096 kB\n")
    if limit:
        group = tmp_path / "sys/fs/cgroup"
        group.mkdir(parents=True)
        (group / "memory.max").write_text(limit + "\n")
        (group / "memory.current").write_text("1000000\n")
    assert backends.free_host_bytes(tmp_path) == expected


def test_an_accelerator_that_does_not_say_what_is_free_is_not_guessed_at() -> None:
    class Silent:
        platform = "gpu"

        def memory_stats(self) -> None:
            return None

    class Telling(Silent):
        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 100, "bytes_in_use": 30}

    assert backends.available_bytes([Silent()]) is None
    assert backends.available_bytes([Telling(), Telling()]) == 140
