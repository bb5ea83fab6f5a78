"""The command `timerstore`: a group whose commands are loaded when one is chosen.

An exception that a command raises becomes one error message and one exit code. A signal or a closed
output pipe ends the command without a message.

Thread safety: runs on the main thread.
"""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from timerstore import __version__
from timerstore.cli.exits import TABLE, CommandError, ErrorReport, Exit, report_of
from timerstore.cli.output import emit_error
from timerstore.cli.stopping import Stopped, raise_terminated
from timerstore.cli.streams import check_output

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "init": ("making", "Create a store, or a directory of shards."),
        "put": ("putting", "Put a message, or each line of standard input."),
        "every": ("recurring", "List, start and end recurring messages."),
        "get": ("reading", "Read the messages of a topic."),
        "follow": ("reading", "Follow a topic: read messages as they arrive."),
        "receive": ("leasing", "Lease messages of topics to a group, for a time."),
        "ack": ("leasing", "Acknowledge leased messages."),
        "nack": ("leasing", "Return leased messages for another delivery."),
        "bury": ("leasing", "Make leased messages dead letters."),
        "extend": ("leasing", "Extend leases."),
        "dead-letters": ("letters", "List the dead letters of a group."),
        "requeue": ("letters", "Deliver dead letters of a group again."),
        "ls": ("listing", "List topics with pending and delivered messages; list groups."),
        "count": ("listing", "Count pending messages."),
        "backlog": ("listing", "List what groups have to do: ready, leased, dead letters."),
        "explain": ("inspecting", "Show where a message is, its state and its history."),
        "histogram": ("inspecting", "Count pending messages by due time."),
        "cancel": ("changing", "Cancel pending messages."),
        "move": ("changing", "Reschedule pending messages."),
        "delete-topic": ("changing", "Delete a topic with all of its messages."),
        "pace": ("pacing", "Deliver due messages at a limited rate."),
        "top": ("top", "Show a live screen: wheel, pending messages, rates, lateness."),
        "serve": ("serving", "Serve a store to programs on a socket, or its dashboard."),
        "ping": ("pinging", "Ask a server whether it answers."),
        "verify": ("checking", "Check a store for damage; change nothing."),
        "repair": ("checking", "Copy the readable part of a damaged store into a new one."),
        "dump": ("exporting", "Write a table of a store's files as JSON lines."),
        "export": ("exporting", "Export pending messages or a table to Parquet or JSON lines."),
        "import": ("importing", "Put the rows of Parquet or JSON-lines files, each once."),
        "ingest": ("ingesting", "Ingest committed rows into closed shards."),
        "backup": ("making", "Back up a store, or update its backup."),
        "restore": ("making", "Restore a store from a backup."),
        "convert": ("converting", "Convert a closed store for a RocketMQ broker, or back."),
        "doctor": ("doctor", "Examine this machine and a store; say what must change."),
        "completion": ("completing", "Write a completion for bash, zsh or fish."),
        "bench": ("trials", "Measure this machine in a few seconds."),
        "demo": ("demo", "Show ten reminders, a cancel, a kill -9, and a check of each."),
    }
)
"""Command: its module, and its summary in `--help`."""

SERVICES = frozenset({"serve"})
"""Commands that run until a signal ends them. That is a success, at any time."""


class Commands(click.Group):
    """The group. A command's module is imported when the command is chosen."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A broken pipe ends it with its own exit code instead of click's."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise Stopped(Exit.READER_GONE) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls
        """List the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        name: str,
    ) -> click.Command | None:
        """Load a command."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"timerstore.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, f"{name.replace('-', '_')}_command")
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete a command's name without importing any."""
        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)


def _epilog() -> str:
    codes = "\n".join(f"  {int(code):3}  {text}" for code, text in TABLE.items())
    return f"\b\nExit codes:\n{codes}"


@click.group(cls=Commands, epilog=_epilog(), context_settings={"max_content_width": 100})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli(debug: bool) -> None:
    """Store delayed messages on disk; deliver each once, when it is due.

    PATH is the directory of a store, or a directory of shards. Commands that only read work while
    another process has the store open. URL is the address of a served store: unix:///PATH,
    tls://HOST:PORT or tcp://HOST:PORT.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    before = signal.signal(signal.SIGTERM, raise_terminated)
    try:
        code = _flushed(_run(given), given)
        if code in (Exit.INTERRUPTED, Exit.TERMINATED) and _command_of(given) in SERVICES:
            code = Exit.FINE
    except BrokenPipeError:
        code = Exit.READER_GONE
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == Exit.READER_GONE:
        _forget_output()
    return code


def _command_of(given: list[str]) -> str | None:
    """Return the name of the command: the first argument that is no option of the group."""
    return next((one for one in given if not one.startswith("-")), None)


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
        return _report(_usage(error), given)
    except Exception as error:  # noqa: BLE001 - the outermost call reports every error
        if "--debug" in given:
            traceback.print_exc()
        return _report(report_of(error), given)
    return int(code or Exit.FINE)


def _flushed(code: int, given: list[str]) -> int:
    """Flush standard output; return `code`, or the code of a failed flush if `code` is 0."""
    try:
        sys.stdout.flush()
    except CommandError as error:
        _forget_output()
        return code or _report(report_of(error), given)
    return code


def _usage(error: click.ClickException) -> ErrorReport:
    """Describe an invalid argument, with the command that shows its help."""
    context = getattr(error, "ctx", None)
    do = f"{context.command_path} --help" if context is not None else ""
    return ErrorReport(error.format_message(), "", "", "", do, Exit.ERROR, "UsageError")


def _report(error: ErrorReport, given: Sequence[str]) -> int:
    emit_error(error, as_json="--json" in given)
    return error.code


def _forget_output() -> None:
    """Discard further output, so that the interpreter's flush at exit reports no broken pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
