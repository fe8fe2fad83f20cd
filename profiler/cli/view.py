"""`moe-prof view`: the installed XProf on a run or a trace, or a file for ui.perfetto.dev."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import click

from analyzers.errors import UserError
from profiler.cli.writing import check_output, write_output

_STARTS_WITHIN_S = 90.0


@click.command(short_help="Open a run or a trace in XProf, or write it for ui.perfetto.dev.")
@click.argument("path", type=click.Path(path_type=str))
@click.option("--port", type=click.IntRange(1, 65535), help="Port of XProf; a free one by default.")
@click.option("--browser/--no-browser", default=None, help="Open a browser; only on a terminal by default.")
@click.option("--perfetto", type=click.Path(path_type=Path), metavar="FILE", help="Write FILE.json.gz instead.")
@click.option("--variant", metavar="NAME", help="Variant of a run to write with --perfetto.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def command(
    path: str, port: int | None, browser: bool | None, perfetto: Path | None, variant: str | None, force: bool
) -> None:
    """Start XProf on PATH, print its address, and stay until Ctrl-C.

    XProf keeps caches beside the traces that it reads, so it is given links to them in a folder that goes away
    with it. It answers on every network interface of this machine.

    \b
    moe-prof view RUN
    moe-prof view logs/plugins/profile/2026_01_31_12_00_00
    moe-prof view RUN --variant cached --perfetto cached.json.gz      open it in ui.perfetto.dev
    """
    if perfetto is not None:
        check_output(perfetto, force)
        _write_perfetto(path, variant, perfetto)
        return
    if importlib.util.find_spec("xprof") is None:
        raise UserError("XProf is not installed: pip install xprof.")
    with tempfile.TemporaryDirectory(prefix="moe-prof-view-") as folder:
        for session, name, file in _files(path):
            target = Path(folder) / session / "plugins" / "profile" / "session" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, Path):
                target.symlink_to(file.resolve())
            else:
                target.write_bytes(file)
        _serve(folder, port or _free_port(), sys.stdout.isatty() if browser is None else browser)


def _files(path: str) -> Iterator[tuple[str, str, Path | bytes]]:
    """Yield what XProf should show: session, file name, and the file, or its bytes where XProf cannot read it."""
    from analyzers.reading.run import is_run, load_run
    from analyzers.reading.sources import find_sources

    if "://" not in path and is_run(Path(path)):
        run = load_run(Path(path))
        for session in run.manifest.sessions:
            for file in session.xplane_files:
                yield f"{session.variant}_round_{session.round}", Path(file.path).name, run.path / file.path
        return
    sources = find_sources(path, None)
    for source in sources.files:
        if source.format != "xspace":
            raise UserError(f"{source.path} is a Chrome trace, which XProf does not open; drop it on ui.perfetto.dev.")
        plain = "://" not in source.path and source.path.endswith(".xplane.pb")
        name = f"{source.hostname or 'host'}.xplane.pb"
        yield sources.session or "trace", name, Path(source.path) if plain else bytes(source.read())


def _serve(folder: str, port: int, browser: bool) -> None:
    address = f"http://localhost:{port}/"
    arguments = ["--logdir", folder, "--port", str(port), "--grpc_port", str(_free_port())]
    process = subprocess.Popen([sys.executable, "-m", "xprof.server", *arguments], stdout=subprocess.DEVNULL)
    try:
        _wait_until_up(process, port)
        click.echo(f"XProf: {address}  (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser:
            webbrowser.open(address)
        process.wait()
        raise UserError(f"XProf ended by itself with exit code {process.returncode}.")
    except KeyboardInterrupt:
        click.echo("")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], port: int) -> None:
    started = time.monotonic()
    while time.monotonic() - started < _STARTS_WITHIN_S:
        if process.poll() is not None:
            raise UserError(f"XProf ended with exit code {process.returncode} before it answered on port {port}.")
        try:
            socket.create_connection(("localhost", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise UserError(f"XProf did not answer on port {port} within {_STARTS_WITHIN_S:.0f} s.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _write_perfetto(path: str, variant: str | None, output: Path) -> None:
    from analyzers.counting.executions import executions
    from analyzers.counting.hlo import Module
    from analyzers.reading.run import is_run, load_run
    from analyzers.reading.sources import find_sources
    from analyzers.reading.xspace import read_xspace
    from analyzers.showing.perfetto import perfetto

    if "://" not in path and is_run(Path(path)):
        run = load_run(Path(path))
        names = ", ".join(v.name for v in run.manifest.variants)
        if variant is None:
            raise UserError(f"{path} is a run with the variants {names}: name one of them with --variant.")
        chosen = run.variant(variant)
        columns = read_xspace(run.path / run.sessions_of(variant)[0].xplane_files[0].path)
        done = executions(columns, {chosen.module: Module((run.path / chosen.hlo_proto).read_bytes())})
    else:
        done = executions(read_xspace(find_sources(path, None).files[0]))
    write_output(output, perfetto(done))
