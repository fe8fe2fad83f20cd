"""`moe-prof compile`."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzers.errors import UserError
from profiler.cli.parameters import config_options, variant_names, variant_options
from workloads.registry import MODES, check, preset_config

if TYPE_CHECKING:
    from analyzers.comparing.executed import Executed
    from analyzers.compiled import CompiledProgram
    from profiler.compile import CompileRequest


def _optional_workload(function: Any) -> Any:
    return variant_options(function, workload_required=False)


@click.command("compile", short_help="Compile for a TPU that is not there: count sorts, size buffers.")
@_optional_workload
@click.option(
    "--target",
    default="cpu",
    show_default=True,
    metavar="TARGET",
    help="cpu, or a TPU topology: tpu7x:2x2x1, v6e:2x2, …",
)
@click.option("--mode", type=click.Choice(MODES), default="backward", show_default=True, help="What a step runs.")
@click.option(
    "--module", metavar="FILE.py:FUNCTION", help="Your own: FUNCTION([devices]) returns (function, abstract arguments)."
)
@click.option("--xla-flags", default="", metavar="FLAGS", help="Further XLA_FLAGS of the compiler.")
@click.option("--libtpu-args", default="", metavar="ARGS", help="Further LIBTPU_INIT_ARGS of the TPU compiler.")
@click.option("--no-cache", is_flag=True, help="Compile again, even if the result is known.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Keep the result in this folder, for check.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Buffers to list.")
@click.option(
    "--run", "run_path", metavar="RUN | TRACE", help="A capture of the same programs: adds the level executed."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@config_options
def command(
    workload: str | None,
    preset: str,
    scale: Fraction,
    variants: tuple[str, ...] | None,
    all_variants: bool,
    target: str,
    mode: str,
    module: str | None,
    xla_flags: str,
    libtpu_args: str,
    no_cache: bool,
    output: Path | None,
    top: int,
    run_path: str | None,
    as_json: bool,
    **overrides: Any,
) -> None:
    """Compile variants of WORKLOAD, or a function of your own, for a device that need not be there.

    Shows how many sorts, gathers and kernels are left on each level, where they went, and what fills the memory.
    Nothing is run. Results are kept in the user's cache folder.

    \b
    moe-prof compile ring --target tpu7x:2x2x1 --ep 8
    moe-prof compile permute --target v6e:2x2 --ep 4 --top-k 6
    moe-prof compile --module model.py:step --target v5p:2x2x1
    """
    from profiler.compile import check_output, check_target, compile_all, merged

    check_target(target)
    given = {name: value for name, value in overrides.items() if value is not None}
    if module is not None:
        if workload is not None:
            raise click.UsageError("WORKLOAD and --module exclude each other.")
        requests = [_own(module, target, xla_flags, libtpu_args)]
    else:
        if workload is None:
            raise click.UsageError("name a WORKLOAD, or a function of your own with --module.")
        names = variant_names(workload, variants, all_variants)
        requests = _requests(workload, names, preset, scale, mode, target, xla_flags, libtpu_args, given)

    def report(number: int, total: int, name: str, known: bool) -> None:
        click.echo(f"[{number + 1}/{total}] {'known' if known else 'compile'} {name} for {target}", err=True)

    if output is not None:
        check_output(output)
    results = compile_all(requests, use_cache=not no_cache, report=report)
    if output is not None:
        results = (merged(results, output),)
    programs = [program for result in results for program in result.programs]
    executed = _executed(programs, run_path)
    if as_json:
        from analyzers.showing.compile_document import compile_json

        click.echo(compile_json(programs, executed))
    else:
        _show(programs, top, executed)


def _requests(
    workload: str,
    names: tuple[str, ...],
    preset: str,
    scale: Fraction,
    mode: str,
    target: str,
    xla_flags: str,
    libtpu_args: str,
    given: dict[str, Any],
) -> list[CompileRequest]:
    from profiler.compile import CompileRequest, Workload

    config = preset_config(preset, scale, **given)
    for name in names:
        check(workload, name, config, mode)
    return [
        CompileRequest(
            Workload(workload, name, mode, asdict(config)), target, xla_flags, libtpu_args, config.num_devices
        )
        for name in names
    ]


def _own(module: str, target: str, xla_flags: str, libtpu_args: str) -> CompileRequest:
    from profiler.compile import CompileRequest, UserModule

    file, colon, function = module.rpartition(":")
    if not colon or not function.isidentifier():
        raise UserError(f"--module {module!r} is not of the form FILE.py:FUNCTION.")
    path = Path(file).resolve()
    if not path.is_file():
        raise UserError(f"{file} does not exist; give --module FILE.py:FUNCTION.")
    return CompileRequest(UserModule(str(path), function), target, xla_flags, libtpu_args)


def _executed(programs: list[CompiledProgram], run_path: str | None) -> list[Executed | None]:
    if run_path is None:
        return [None] * len(programs)
    from analyzers.comparing.executed import executed

    return [executed(run_path, program, alone=len(programs) == 1) for program in programs]


def _show(programs: list[CompiledProgram], top: int, executed: list[Executed | None]) -> None:
    from analyzers.showing.compile_document import compile_diff_document, compile_document
    from analyzers.showing.text import print_document

    color = click.get_current_context().color
    for number, (program, found) in enumerate(zip(programs, executed, strict=True)):
        if number:
            click.echo()
        print_document(compile_document(program, top, found), color=color)
    for other in programs[1:]:
        click.echo()
        print_document(compile_diff_document(programs[0], other, top), color=color)
