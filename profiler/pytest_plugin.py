"""A pytest plugin: the fixture `moe_prof` compiles a function for a target and counts what is left of it.

    def test_routing(moe_prof):
        assert moe_prof.compile(step, args, target="tpu7x:2x2x1").sorts(pass_="backward") <= 1

Importing this module imports pytest alone, so that a test suite that does not use the fixture pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from analyzers.comparing.funnel import FunnelRow
    from analyzers.compiled import CompiledProgram
    from analyzers.counting.buffers import Buffer


@dataclass(frozen=True)
class Compiled:
    """A compiled function to assert on. Counts are executions per call on one device."""

    program: CompiledProgram

    def sorts(self, *, pass_: str | None = None, in_loop: str | None = None, level: str = "compiled") -> int:
        """Sorts of any kind but top-k, in a pass (`forward`, `recompute`, `backward`), in loops of a scope's name.

        `level` is `traced`, `lowered` or `compiled`. Raises UserError where a loop's trip count is not known.
        """
        from analyzers.comparing.funnel import sorts
        from analyzers.errors import UserError

        found = sorts(self._level(level), pass_, in_loop)
        if found.unknown:
            raise UserError(f"{found.unknown} sorts stand in loops or branches that run nobody knows how often.")
        return found.times

    def count(self, kind: str, *, name: str | None = None, pass_: str | None = None, level: str = "compiled") -> int:
        """Executions of one kind of work: `argsort`, `gather`, `scatter`, `custom call`, `collective`, `copy`, …"""
        from analyzers.counting.sites import COUNTED
        from analyzers.errors import UserError

        known = [k.value for k in COUNTED]
        if kind not in known:
            raise UserError(f"unknown kind {kind!r}; choose one of {', '.join(known)}.")
        found = [
            s for s in self._level(level) if s.kind == kind and name in (None, s.name) and pass_ in (None, s.pass_)
        ]
        unknown = [s for s in found if s.times is None]
        if unknown:
            raise UserError(f"{kind} in {unknown[0].path or 'no scope'} cannot be counted: {unknown[0].why_unknown}.")
        return sum(s.times or 0 for s in found)

    def _level(self, level: str) -> Any:
        from analyzers.errors import UserError

        if level not in self.program.levels:
            raise UserError(f"unknown level {level!r}; choose one of {', '.join(self.program.levels)}.")
        return self.program.levels[level]

    @property
    def funnel(self) -> tuple[FunnelRow, ...]:
        """All counts by kind, pass and level."""
        from analyzers.comparing.funnel import funnel

        return funnel(self.program.levels)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Buffers that the program writes in main memory, largest first."""
        return self.program.buffers.buffers if self.program.buffers else ()

    @property
    def peak_bytes(self) -> int | None:
        """Most memory one device needs."""
        return self.program.peak_bytes

    @property
    def temp_bytes(self) -> int | None:
        """Temporary memory one device needs."""
        return self.program.buffers.temp_bytes if self.program.buffers else None


@dataclass(frozen=True)
class MoeProf:
    """What the fixture gives."""

    def compile(
        self,
        function: Callable[..., Any],
        args: Any,
        *,
        target: str = "cpu",
        xla_flags: str = "",
        libtpu_args: str = "",
        num_devices: int = 1,
        use_cache: bool = True,
    ) -> Compiled:
        """Compile `function` for `args` in a worker process; nothing runs, and the target need not be there.

        `function` stands at the top level of a module, plain or under `jax.jit`. `args` is a tuple of arrays or
        `jax.ShapeDtypeStruct`s, or a top-level function that takes the target's devices and returns one (for
        shardings). Raises UserError if the program does not compile, or the target's compiler is not installed.
        """
        from profiler.compile import CompileRequest, compile_all
        from profiler.user_function import user_function

        request = CompileRequest(user_function(function, args), target, xla_flags, libtpu_args, num_devices)
        results = compile_all([request], use_cache=use_cache)
        return Compiled(results[0].programs[0])

    def compile_workload(
        self,
        workload: str,
        variant: str,
        *,
        target: str = "cpu",
        preset: str = "tiny",
        mode: str = "backward",
        use_cache: bool = True,
        **overrides: Any,
    ) -> Compiled:
        """Compile a variant of a workload of moe-prof; `overrides` are fields of `workloads.Config`."""
        from dataclasses import asdict

        from profiler.compile import CompileRequest, Workload, compile_all
        from workloads.registry import check, preset_config

        config = preset_config(preset, 1, **overrides)
        check(workload, variant, config, mode)
        source = Workload(workload, variant, mode, asdict(config))
        request = CompileRequest(source, target, num_devices=config.num_devices)
        results = compile_all([request], use_cache=use_cache)
        return Compiled(results[0].programs[0])


@pytest.fixture(scope="session")
def moe_prof() -> MoeProf:
    """Compile a function for a TPU that is not there and assert on its sorts and buffers."""
    return MoeProf()
