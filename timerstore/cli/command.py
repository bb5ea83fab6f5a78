"""The command `timerstore`: a group whose commands are loaded when one is chosen.

Threads:  the main one.
Holds:    whatever a command raises ends as one message and one exit code; a signal or a reader that
          has gone ends it without a message.
"""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from timerstore.cli.exits import TABLE, CommandError, Exit, Told, told
from timerstore.cli.output import emit_error
from timerstore.cli.stopping import Stopped, raise_terminated
from timerstore.cli.streams import check_output

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "init": ("making", "Make a store, or a directory of shards."),
        "put": ("putting", "Put a message, now or for later; or each line of standard input."),
        "every": ("recurring", "Put a message again and again; list that, end it."),
        "get": ("reading", "Give messages of a topic that are there."),
        "follow": ("reading", "Give messages of a topic as they come."),
        "receive": ("leasing", "Lease messages of a topic to a group, for a time."),
        "ack": ("leasing", "Settle leases: done with their messages."),
        "nack": ("leasing", "Give leased messages back."),
        "extend": ("leasing", "Hold leased messages longer."),
        "ls": ("listing", "List topics: what waits, what was delivered; groups."),
        "count": ("listing", "Count what waits."),
        "explain": ("inspecting", "Tell where a message is, and why it is not out."),
        "histogram": ("inspecting", "Count what waits by when it is due."),
        "cancel": ("changing", "Cancel messages that wait."),
        "move": ("changing", "Give messages that wait another time."),
        "pace": ("pacing", "Deliver, of a topic at most so many a second."),
        "top": ("top", "A live screen: the wheel, what waits, rates, lateness."),
        "serve": ("serving", "The same and more in a browser: find a message, cancel it."),
        "verify": ("checking", "Read everything, name what is damaged; change nothing."),
        "repair": ("checking", "Save what reads of a damaged store into a new one."),
        "dump": ("tables", "A table of a store's files as JSON lines."),
        "export": ("tables", "Messages or a table into a file: Parquet or JSON lines."),
        "import": ("importing", "Put the rows of files, once: Parquet or JSON lines."),
        "backup": ("making", "Copy a store, or bring its backup up to now."),
        "restore": ("making", "Make a store of a backup."),
        "convert": ("converting", "Make a closed store a broker's to open, or ours again."),
        "bench": ("trials", "Measure this machine in a few seconds."),
        "demo": ("trials", "Put, deliver and count some thousands; watch the wheel."),
    }
)
"""Name: the file it is in, and what it does."""


class Commands(click.Group):
    """The group; no command's file is imported before it is asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run one; who reads its output may go: not click's to answer."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise Stopped(Exit.READER_GONE) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls
        """Name them in the table's order."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        name: str,
    ) -> click.Command | None:
        """Load one."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"timerstore.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """List them without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete a command's name without loading any."""
        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)


def _version() -> str:
    try:
        return version("timerstore")
    except PackageNotFoundError:  # a checkout in PYTHONPATH
        return "of a checkout"


def _epilog() -> str:
    codes = "\n".join(f"  {int(code):3}  {text}" for code, text in TABLE.items())
    shell = 'eval "$(_TIMERSTORE_COMPLETE=bash_source timerstore)"'
    return (
        f"\b\nExit codes:\n{codes}\n\n"
        f"\b\nCompletion (bash; zsh_source and fish_source, too):\n  {shell}"
    )


@click.group(cls=Commands, epilog=_epilog(), context_settings={"max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show where an error came from.")
@click.version_option(_version(), message="%(prog)s %(version)s")
def cli(debug: bool) -> None:
    """Keep messages that are due later; hand each out once, at its time.

    PATH is a store's folder, or a directory of shards. What only looks runs beside the process that
    has the store open.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        code = _flushed(_run(given), given)
    except BrokenPipeError:
        code = Exit.READER_GONE
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == Exit.READER_GONE:
        _forget_output()
    return code


def _run(given: list[str]) -> int:
    try:
        check_output()
        code = cli.main(given, prog_name="timerstore", standalone_mode=False)
    except Stopped as stopped:
        return stopped.code
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return Exit.ERROR
    except click.ClickException as error:
        return _tell(_usage(error), given)
    except Exception as error:  # noqa: BLE001 - the outermost call: each error is told
        if "--debug" in given:
            traceback.print_exc()
        return _tell(told(error), given)
    return int(code or Exit.FINE)


def _flushed(code: int, given: list[str]) -> int:
    """Have the whole answer out; the code, where that was an error already or this is none."""
    try:
        sys.stdout.flush()
    except CommandError as error:
        _forget_output()
        return code or _tell(told(error), given)
    return code


def _usage(error: click.ClickException) -> Told:
    """A wrong argument, with the way to its help."""
    context = getattr(error, "ctx", None)
    do = f"{context.command_path} --help" if context is not None else ""
    return Told(error.format_message(), "", "", "", do, Exit.ERROR, "UsageError")


def _tell(error: Told, given: Sequence[str]) -> int:
    emit_error(error, as_json="--json" in given)
    return error.code


def _forget_output() -> None:
    """Nobody reads on: let the interpreter not complain when it flushes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
