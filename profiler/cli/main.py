"""The command line: global options, lazy loading of commands, and what becomes of errors.

Starting must be fast, so this module imports click alone. A command's module, and with it jax, numpy, pandas
or rich, is imported only when that command runs or shows its own help.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NamedTuple

import click
from click.shell_completion import get_completion_class

from analyzers.errors import UserError

PROGRAM = "moe-prof"
COMPLETION_VARIABLE = "_MOE_PROF_COMPLETE"


class LazyCommand(NamedTuple):
    """Where a command lives and the line that `moe-prof --help` prints for it."""

    module: str
    summary: str


COMMANDS = {
    "capture": LazyCommand("profiler.cli.capture", "Run a workload's variants under the profiler, side by side."),
    "check": LazyCommand("profiler.cli.check", "Hold a run, a trace or a compile result against a budget file."),
    "compile": LazyCommand("profiler.cli.compile", "Compile for a TPU that is not there: count sorts, size buffers."),
    "diff": LazyCommand("profiler.cli.diff", "What changed between two traces: sorts, time, buffers."),
    "report": LazyCommand("profiler.cli.report", "A comparison as one HTML page, or as Markdown for a pull request."),
    "show": LazyCommand("profiler.cli.show", "One trace: sorts, time per layer and chunk, buffers."),
    "verify": LazyCommand("profiler.cli.verify", "Do the variants compute the same values, gradients and loss curve?"),
    "view": LazyCommand("profiler.cli.view", "Open a run or a trace in XProf, or write it for ui.perfetto.dev."),
    "workloads": LazyCommand("profiler.cli.workloads", "List workloads, their variants, and presets."),
    "version": LazyCommand("profiler.cli.version", "Versions of everything a capture depends on."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed; each is the `command` of its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the table."""
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command = importlib.import_module(COMMANDS[cmd_name].module).command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a reader of the output that left early, as `head` does, ends it quietly."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _discard_output()
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, importing none of them."""
        own = {name: command.get_short_help_str() for name, command in self.commands.items()}
        rows = [(name, lazy.summary) for name, lazy in COMMANDS.items()] + list(own.items())
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colours: on a terminal unless NO_COLOR is set, always, or never.",
)
@click.pass_context
def cli(ctx: click.Context, color: str) -> None:
    """Measure what a routing change saves in a Mixture-of-Experts model.

    \b
    moe-prof capture ring --preset tiny -o RUN    profile two variants, side by side
    moe-prof diff RUN                             what the second one removed
    """
    never = color == "never" or (color == "auto" and bool(os.environ.get("NO_COLOR")))
    ctx.color = True if color == "always" else False if never else None


@cli.command(short_help="Print the script that completes commands and names in a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands and names in a shell.

    \b
    eval "$(moe-prof completion bash)"            in ~/.bashrc
    """
    kind = get_completion_class(shell)
    assert kind is not None  # every choice of the argument has one
    click.echo(kind(cli, {}, PROGRAM, COMPLETION_VARIABLE).source())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code.

    0 done, 1 done with what could be read, but some files could not, 2 something the user can mend (one sentence
    on standard error), 130 interrupted.
    """
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    from workloads.errors import WorkloadError

    try:
        result = cli.main(arguments, PROGRAM, COMPLETION_VARIABLE, standalone_mode=False)
        sys.stdout.flush()
    except (UserError, WorkloadError) as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        return 2
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"{PROGRAM}: {error.format_message()}{_help_hint(error)}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{PROGRAM}: interrupted", err=True)
        return 130
    except BrokenPipeError:
        _discard_output()
        return 0
    return result if isinstance(result, int) else 0


def _help_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f" See `{context.command_path} --help`." if context else ""


def _discard_output() -> None:
    # Python flushes standard output once more on exit; let that go nowhere instead of failing again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
