"""The fixture `moe_prof`, as a test suite elsewhere would use it."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from analyzers.errors import UserError
from profiler.pytest_plugin import MoeProf
from tests.profiler.compile_examples import step

ARGS = (jax.ShapeDtypeStruct((64,), jnp.float32),)


@pytest.fixture
def moe(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return MoeProf()


def test_a_function_is_compiled_and_counted(moe):
    found = moe.compile(step, ARGS)
    assert found.sorts() == 2
    assert found.sorts(pass_="backward") == 0
    assert found.sorts(level="traced") == found.count("argsort") == 2
    assert found.count("scatter") == 0
    assert found.peak_bytes >= 3 * 64 * 4
    assert {row.kind for row in found.funnel} >= {"argsort"}
    with pytest.raises(UserError, match="unknown kind"):
        found.count("argsorts")
    with pytest.raises(UserError, match="unknown level"):
        found.sorts(level="optimised")


def test_arrays_and_a_jitted_function_are_welcome(moe):
    assert moe.compile(jax.jit(step), (jnp.zeros(64),)).sorts() == 2


def test_what_a_worker_cannot_import_is_refused(moe):
    with pytest.raises(UserError, match="at the top level of a module"):
        moe.compile(lambda x: x, ARGS)


def test_importing_the_plugin_imports_no_jax():
    code = "import sys, profiler.pytest_plugin; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
