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
) -> int:
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
        return _write_perfetto(path, variant, perfetto)
    if variant is not None:
        raise UserError(
            "--variant goes with --perfetto; XProf lists all variants of a run, as sessions to choose from."
        )
    if importlib.util.find_spec("xprof") is None:
        raise UserError("XProf is not installed: pip install xprof.")
    with tempfile.TemporaryDirectory(prefix="moe-prof-view-") as folder:
        for session, name, file in _files(path):
            target = Path(folder) / session / "plugins" / "profile" / "session" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target = _unused(target)
            if isinstance(file, Path):
                target.symlink_to(file.resolve())
            else:
                target.write_bytes(file)
        _serve(folder, port or _free_port(), sys.stdout.isatty() if browser is None else browser)
    return 0


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


def _unused(file: Path) -> Path:
    """Return `file`, or that name with a number: hosts may share a host name, or have none (TRACE_FACTS trap 19)."""
    host, number, name = file.name.removesuffix(".xplane.pb"), 2, file
    while name.is_symlink() or name.exists():
        name = file.with_name(f"{host}-{number}.xplane.pb")
        number += 1
    return name


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


def _write_perfetto(path: str, variant: str | None, output: Path) -> int:
    """Write all hosts of the first session of a variant, or of a trace; return 1 where some could not be read."""
    from analyzers.counting.executions import executions
    from analyzers.counting.hlo import Module
    from analyzers.reading.run import is_run, load_run
    from analyzers.reading.sources import find_sources, source
    from analyzers.reading.xspace import read_xspace
    from analyzers.showing.perfetto import perfetto

    own = None
    if "://" not in path and is_run(Path(path)):
        run = load_run(Path(path))
        names = [v.name for v in run.manifest.variants]
        if variant is None and len(names) > 1:
            raise UserError(f"{path} is a run with the variants {', '.join(names)}: name one of them with --variant.")
        chosen = run.variant(variant or names[0])
        files = [source(str(run.path / file.path)) for file in run.sessions_of(chosen.name)[0].xplane_files]
        own = {chosen.module: Module((run.path / chosen.hlo_proto).read_bytes())}
    elif variant is not None:
        raise UserError(f"{path} is a trace, not a run: it has no variants to choose from.")
    else:
        files = list(find_sources(path, None).files)
    hosts, unread = {}, []
    for file in files:
        try:
            columns = read_xspace(file)
        except UserError as error:
            unread.append(str(error))
            continue
        name = columns.hostname if columns.hostname and columns.hostname not in hosts else file.path
        hosts[name] = executions(columns, own)
    if not hosts:
        raise UserError(unread[0])
    if not any(len(done.events.op) for done in hosts.values()):
        raise UserError(f"{path} holds no ops that a device ran, so there is nothing to show.")
    write_output(output, perfetto(hosts))
    if unread:
        click.echo(f"{len(unread)} of {len(files)} files left out: {unread[0]}", err=True)
    return 1 if unread else 0
