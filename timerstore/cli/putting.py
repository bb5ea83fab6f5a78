"""Command `put`: put a message, or each line of standard input."""

import os
import select
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click

from timerstore._engine.base.message_fields import PRIORITY_MAX
from timerstore.cli.exits import CommandError
from timerstore.cli.opening import Store, opened
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import (
    INSTANT,
    PAIR,
    SPAN,
    config_of,
    config_option,
    due_arguments,
    json_option,
    ms_of,
    store_argument,
    when_options,
)
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.streams import input_descriptor
from timerstore.cli.text import iso, plural, time_text
from timerstore.errors import BusyError, FullError, MessageError
from timerstore.types.clock import SystemClock

_LINES_MAX = 10_000
_READ_BYTES = 1 << 20
_LOOK_S = 0.2


@click.command("put")
@store_argument
@click.argument("topic")
@click.argument("body", required=False)
@when_options
@click.option("--level", type=int, help="Delay by delay level N, counted from 1 (level_delays).")
@click.option("--key", "keys", multiple=True, help="Key for finding the message; repeatable.")
@click.option("--tag", "tags", help="Tag for filtering by consumers.")
@click.option("--property", "properties", multiple=True, type=PAIR, help="Property; repeatable.")
@click.option("--queue", "queue_id", type=int, help="Queue number; default: 0.")
@click.option("--priority", type=click.IntRange(0, PRIORITY_MAX), help="0 to 9; 9 comes first.")
@click.option("--message-group", help="Message group, for `receive --ordered`.")
@click.option("--id", "message_id", help="Message id; a second put with this id stores nothing.")
@click.option("--spread", type=SPAN, help="Add a random delay of up to so long.")
@click.option("--replace", is_flag=True, help="Replace the pending message with the same --key.")
@click.option("--unique", is_flag=True, help="Put nothing while one with the --key is not done.")
@click.option("--expires", type=INSTANT, help="Time from which on groups pass over the message.")
@click.option("--at-most", type=SPAN, help="With --replace: longest delay after the first put.")
@click.option("--lines", is_flag=True, help="Each line of standard input is a message.")
@click.option("--receipts", is_flag=True, help="With --lines: print the handle of each message.")
@config_option
@json_option
def put_command(**options: Any) -> None:
    """Put a message with the body BODY. If BODY is - or missing, read it from standard input.

    The message is durable when the command returns, unless it runs with `-c flush=async`. The
    printed handle is an argument of `cancel` and `move`.
    """
    path, topic, body, lines = (options[name] for name in ("path", "topic", "body", "lines"))
    due = due_arguments(options["within"], options["at"])
    if options["level"] is not None:
        due["level"] = options["level"]
    if lines and (body is not None or options["keys"] or options["message_id"]):
        raise click.UsageError("--lines: each line is a message; wanted no BODY, --key or --id")
    if options["replace"] and len(options["keys"]) != 1:
        raise click.UsageError("--replace: wanted one --key, which finds the earlier message")
    if options["unique"] and (len(options["keys"]) != 1 or options["replace"]):
        raise click.UsageError("--unique: wanted one --key, which finds the earlier message")
    if options["at_most"] is not None and not options["replace"]:
        raise click.UsageError("--at-most: only with --replace")
    if options["receipts"] and not lines:
        raise click.UsageError("--receipts: only with --lines; a single put prints its handle")
    if lines and options["expires"]:
        raise click.UsageError("--lines: wanted no --expires, which only single messages have")
    if lines and options["properties"]:
        raise click.UsageError(
            "--lines: wanted no --property; `timerstore import` reads rows with properties"
        )
    if lines and options["message_group"] is not None:
        raise click.UsageError("--lines: wanted no --message-group; put these messages one by one")
    config = config_of(options["settings"])
    if options["spread"] is not None:
        due["spread"] = options["spread"]
    if lines:
        how = {**due, **{name: options[name] for name in ("tags", "queue_id", "priority")}}
        with stopping() as stop, opened(path, config) as store:
            _put_lines(store, topic, how, stop, options)
        return
    data = (
        sys.stdin.buffer.read() if body in (None, "-") else body.encode("utf-8", "surrogateescape")
    )
    with stopping(), opened(path, config, threads=False) as store:
        receipt = store.put(
            topic,
            data,
            **due,
            tags=options["tags"],
            **_names(options),
            properties=dict(options["properties"]) or None,
            queue_id=options["queue_id"],
            priority=options["priority"],
            message_group=options["message_group"],
            message_id=options["message_id"],
            expires_ms=ms_of(options["expires"]),
        )
    _write_receipt(receipt, as_json=options["as_json"])


def _names(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `put` for the keys, or for the key of the earlier message."""
    if not (options["replace"] or options["unique"]):
        return {"keys": options["keys"]}
    [key] = options["keys"]
    if options["unique"]:
        return {"key": key, "unique": True}
    return {"key": key, "replace": True, "wait_at_most": options["at_most"]}


def _write_receipt(receipt: Any, *, as_json: bool) -> None:
    if as_json:
        emit(receipt_fields(receipt))
        return
    verb = "already put" if receipt.duplicate else "put"
    now_ms = SystemClock().now_ms
    is_pending = receipt.queue_offset is None
    when = f"due {time_text(receipt.due_ms, ahead_of=now_ms)}" if is_pending else "delivered"
    say(f"{verb} {receipt.message_id}: {when}")
    if receipt.handle and is_pending:
        say(f"  handle {receipt.handle}")


def receipt_fields(receipt: Any) -> dict[str, Any]:
    """Return the JSON fields of a receipt."""
    shard = getattr(receipt, "shard", None)
    return {
        "topic": receipt.topic,
        **({} if shard is None else {"shard": shard}),
        "queue_id": receipt.queue_id,
        "queue_offset": receipt.queue_offset,
        "log_offset": receipt.log_offset,
        "message_id": receipt.message_id,
        "handle": receipt.handle,
        "due_ms": receipt.due_ms,
        "due": iso(receipt.due_ms),
        "duplicate": receipt.duplicate,
    }


# --- lines ----------------------------------------------------------------------------------------


def _put_lines(
    store: Store, topic: str, how: dict[str, Any], stop: Stop, options: dict[str, Any]
) -> None:
    """Put lines as they arrive.

    A line is durable half a second after it was read, or when the total is printed.
    """
    done = line = empty = 0
    try:
        for batch in _lines(stop):
            bodies = [one for one in batch if one]
            empty += len(batch) - len(bodies)
            if bodies:
                try:
                    put = _put_batch(store, topic, bodies, how, line)
                except (FullError, BusyError) as error:
                    done += error.stored_count
                    raise
                done += len(put)
                if options["receipts"]:
                    _write_receipts(put, as_json=options["as_json"])
            line += len(batch)
    finally:
        store.flush()
        if empty:
            note(f"{plural(empty, 'empty line')} skipped")
        if options["as_json"]:
            emit({"topic": topic, "put": done, "empty_lines": empty})
        else:
            say(f"put {plural(done, 'message')} to {topic}")


def _put_batch(
    store: Store, topic: str, bodies: list[bytes], how: dict[str, Any], line: int
) -> Any:
    try:
        return _put_many(store, topic, bodies, how)
    except MessageError as error:
        raise CommandError(
            f"lines {line + 1:,} to {line + len(bodies):,} were not put: {error}",
            do="earlier lines were put; correct the line and put these lines again",
        ) from error


def _put_many(store: Store, topic: str, bodies: list[bytes], how: dict[str, Any]) -> Any:
    due = {name: how[name] for name in ("delay", "level", "spread") if how.get(name) is not None}
    if isinstance(due.get("delay"), timedelta):
        due["delay"] = due["delay"].total_seconds()
    if isinstance(how.get("deliver_at"), datetime):
        due["deliver_ms"] = ms_of(how["deliver_at"])
    return store.put_many(
        topic, bodies, **due, tags=how["tags"], queue_id=how["queue_id"],
        priority=how["priority"], flush="async",
    )  # fmt: skip


def _lines(stop: Stop) -> Iterator[list[bytes]]:
    """Yield lines of standard input without their line ends, as soon as they can be read."""
    rest, stdin = b"", input_descriptor()
    while not stop.is_asked:
        if not select.select([stdin], [], [], _LOOK_S)[0]:
            continue  # check again for a signal
        data = os.read(stdin, _READ_BYTES)
        if not data:
            break
        *whole, rest = (rest + data).split(b"\n")
        for begin in range(0, len(whole), _LINES_MAX):
            yield [one.removesuffix(b"\r") for one in whole[begin : begin + _LINES_MAX]]
    if rest and not stop.is_asked:
        yield [rest]


def _write_receipts(batch: Any, *, as_json: bool) -> None:
    for receipt in batch:
        if as_json:
            emit(receipt_fields(receipt))
        else:
            say(f"{receipt.message_id} {receipt.handle}")
