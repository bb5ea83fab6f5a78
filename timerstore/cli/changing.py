"""Commands `cancel`, `move` and `delete-topic`: change pending messages, and remove a topic."""

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import click

from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.opening import Store, opened
from timerstore.cli.output import emit, say
from timerstore.cli.params import (
    StorePlace,
    config_of,
    config_option,
    due_arguments,
    json_option,
    store_argument,
    when_options,
)
from timerstore.cli.putting import receipt_fields
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.text import safe, time_text
from timerstore.errors import MessageError, NotPendingError
from timerstore.types.clock import SystemClock
from timerstore.types.reports import CancelResult

_FOUND_MAX = 100_000


def _target_options(command: Any) -> Any:
    """Add the argument and the options that select messages."""
    command = click.option("--key", help="Messages of --topic with this key or message id.")(
        command
    )
    command = click.option("--topic", help="The topic of --key.")(command)
    return click.argument("handles", nargs=-1)(command)


def _handles(
    store: Store, handles: Iterable[str], topic: str | None, key: str | None
) -> Iterator[str]:
    """Yield the handles of the arguments (`-` reads standard input), then those found by key."""
    for handle in handles:
        if handle == "-":
            yield from (line.strip() for line in sys.stdin if line.strip())
        else:
            yield handle
    if topic is not None and key is not None:
        found = [one for one in store.query(topic, key, max_count=_FOUND_MAX) if one.waits]
        if not found:
            raise CommandError(
                f"no pending message of topic {topic!r} has the key {key!r}", code=Exit.NOT_SO
            )
        without_handle = [one.message_id for one in found if not one.handle]
        if without_handle:
            raise CommandError(
                "a message of a delay level (put --level) has no handle and cannot be changed",
                got=without_handle[0],
                code=Exit.NOT_SO,
            )
        yield from (one.handle for one in found)


def _check_target(handles: tuple[str, ...], topic: str | None, key: str | None) -> None:
    if (topic is None) != (key is None):
        raise click.UsageError("--topic and --key go together")
    if not handles and key is None:
        raise click.UsageError("wanted handles (- reads standard input), or --topic and --key")


@click.command("cancel")
@store_argument
@_target_options
@config_option
@json_option
def cancel_command(
    path: StorePlace,
    handles: tuple[str, ...],
    topic: str | None,
    key: str | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Cancel pending messages by handle, or by key.

    HANDLES are printed by `put`; - reads them from standard input. The results are durable. The
    exit code is 0 if each message is now cancelled, and 1 if one was delivered before or is
    unknown.
    """
    _check_target(handles, topic, key)
    results = set()
    with stopping() as stop, opened(path, config_of(settings), threads=False) as store:
        for handle in _checking_stop(stop, _handles(store, handles, topic, key)):
            result = _cancel(store, handle)
            results.add(result)
            if as_json:
                emit({"handle": handle, "result": result})
            else:
                say(f"{result} {safe(handle)}")
    _exit_unless(results <= {CancelResult.CANCELLED, CancelResult.ALREADY_CANCELLED})


def _cancel(store: Store, handle: str) -> CancelResult:
    try:
        return store.cancel(handle)
    except MessageError as error:
        raise _handle_error(handle, error) from error


def _handle_error(handle: str, error: MessageError) -> CommandError:
    return CommandError(
        str(error), do="give the handle that `put` printed, or --topic and --key", got=handle[:80]
    )


@click.command("move")
@store_argument
@_target_options
@when_options
@config_option
@json_option
def move_command(
    path: StorePlace,
    handles: tuple[str, ...],
    topic: str | None,
    key: str | None,
    within: timedelta | None,
    at: datetime | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Reschedule pending messages by handle, or by key. Each message gets a new handle.

    HANDLES are printed by `put`; - reads them from standard input. The old handle then counts as
    cancelled. Each change is atomic: after a crash a message has either its old due time or its new
    one. The exit code is 1 if a message is no longer pending.
    """
    _check_target(handles, topic, key)
    due = due_arguments(within, at)
    if not due:
        raise click.UsageError("wanted --in or --at")
    all_moved = True
    with stopping() as stop, opened(path, config_of(settings), threads=False) as store:
        for handle in _checking_stop(stop, list(_handles(store, handles, topic, key))):
            all_moved &= _move(store, handle, due, as_json=as_json)
    _exit_unless(all_moved)


def _move(store: Store, handle: str, due: dict[str, Any], *, as_json: bool) -> bool:
    try:
        receipt = store.reschedule(handle, **due)
    except NotPendingError as error:
        if as_json:
            emit({"handle": handle, "result": error.result})
        else:
            say(f"{error.result} {safe(handle)}")
        return False
    except MessageError as error:
        raise _handle_error(handle, error) from error
    if as_json:
        emit({"result": "MOVED", "was": handle, **receipt_fields(receipt)})
    else:
        when = time_text(receipt.due_ms, ahead_of=SystemClock().now_ms)
        say(f"MOVED {receipt.message_id}: due {when}\n  handle {receipt.handle}")
    return True


@click.command("delete-topic")
@store_argument
@click.argument("topic")
@config_option
@json_option
def delete_topic_command(
    path: StorePlace, topic: str, settings: tuple[tuple[str, Any], ...], as_json: bool
) -> None:
    """Delete a topic with all of its messages: pending, leased and dead ones, too.

    The deletion is durable. It is refused if recurring messages go to the topic. The exit code is
    1 if there is no such topic.
    """
    with opened(path, config_of(settings), threads=False) as store:
        is_deleted = store.delete_topic(topic)
    if as_json:
        emit({"topic": topic, "deleted": is_deleted})
    else:
        say(f"{'deleted' if is_deleted else 'no topic'} {safe(topic)}")
    _exit_unless(is_deleted)


def _checking_stop(stop: Stop, handles: Iterable[str]) -> Iterator[str]:
    """Yield the handles. Raise Stopped before the next one if a signal arrived."""
    for handle in handles:
        stop.check()
        yield handle


def _exit_unless(is_fine: bool) -> None:
    if not is_fine:
        raise click.exceptions.Exit(Exit.NOT_SO)
