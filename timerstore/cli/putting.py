"""put: one message, or each line of standard input."""

import os
import select
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click

from timerstore.cli.exits import CommandError
from timerstore.cli.opening import Store, opened
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import (
    PAIR,
    SPAN,
    config_of,
    config_option,
    due_arguments,
    json_option,
    ms_of,
    path_argument,
    when_options,
)
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.streams import input_descriptor
from timerstore.cli.text import iso, plural, time_text
from timerstore.clock import SystemClock
from timerstore.errors import BusyError, FullError, MessageError

_LINES_MAX = 10_000
_READ_BYTES = 1 << 20
_LOOK_S = 0.2


@click.command("put")
@path_argument
@click.argument("topic")
@click.argument("body", required=False)
@when_options
@click.option("--level", type=int, help="Wait for the n-th of the fixed delays (level_delays).")
@click.option("--key", "keys", multiple=True, help="To find it by; may come again.")
@click.option("--tag", "tags", help="For consumers to filter by.")
@click.option("--property", "properties", multiple=True, type=PAIR, help="May come again.")
@click.option("--queue", "queue_id", type=int, help="The queue; 0 where nothing is said.")
@click.option("--id", "message_id", help="Put again under this id it is not put twice.")
@click.option("--spread", type=SPAN, help="Due at some moment of so long from its time on.")
@click.option("--replace", is_flag=True, help="In place of what waits with the same --key.")
@click.option("--at-most", type=SPAN, help="With --replace: out so long after the first of them.")
@click.option("--lines", is_flag=True, help="Each line of standard input is a message.")
@click.option("--receipts", is_flag=True, help="With --lines: tell each message's handle.")
@config_option
@json_option
def put_command(**given: Any) -> None:
    """Put a message: BODY, or standard input where BODY is - or missing.

    Durable when it answers (`-c flush=async` does not wait for the disk). The handle that it tells
    is what `cancel` and `move` take.
    """
    path, topic, body, lines = (given[name] for name in ("path", "topic", "body", "lines"))
    due = due_arguments(given["within"], given["at"])
    if given["level"] is not None:
        due["level"] = given["level"]
    if lines and (body is not None or given["keys"] or given["message_id"]):
        raise click.UsageError("--lines: each line is a message; no BODY, --key or --id beside it")
    if given["replace"] and len(given["keys"]) != 1:
        raise click.UsageError("--replace: wanted one --key, by which the one before is found")
    if given["at_most"] is not None and not given["replace"]:
        raise click.UsageError("--at-most: only with --replace")
    if given["receipts"] and not lines:
        raise click.UsageError("--receipts: only with --lines; one message tells its handle anyway")
    if lines and given["properties"]:
        raise click.UsageError("--lines: no --property; `timerstore import` takes rows with them")
    config = config_of(given["settings"])
    if given["spread"] is not None:
        due["spread"] = given["spread"]
    if lines:
        how = {**due, "tags": given["tags"], "queue_id": given["queue_id"]}
        with stopping() as stop, opened(path, config) as store:
            _put_lines(store, topic, how, stop, given)
        return
    data = (
        sys.stdin.buffer.read() if body in (None, "-") else body.encode("utf-8", "surrogateescape")
    )
    with stopping(), opened(path, config, threads=False) as store:
        receipt = store.put(
            topic,
            data,
            **due,
            tags=given["tags"],
            **_names(given),
            properties=dict(given["properties"]) or None,
            queue_id=given["queue_id"],
            message_id=given["message_id"],
        )
    _tell_receipt(receipt, as_json=given["as_json"])


def _names(given: dict[str, Any]) -> dict[str, Any]:
    """The keys; or the one whose message it takes the place of."""
    if not given["replace"]:
        return {"keys": given["keys"]}
    [key] = given["keys"]
    return {"key": key, "replace": True, "wait_at_most": given["at_most"]}


def _tell_receipt(receipt: Any, *, as_json: bool) -> None:
    if as_json:
        emit(receipt_fields(receipt))
        return
    again = "was put before" if receipt.duplicate else "put"
    now_ms = SystemClock().now_ms
    waits = receipt.queue_offset is None
    when = f"due {time_text(receipt.due_ms, ahead_of=now_ms)}" if waits else "is in its topic"
    say(f"{again} {receipt.message_id}: {when}")
    if receipt.handle and waits:
        say(f"  handle {receipt.handle}")


def receipt_fields(receipt: Any) -> dict[str, Any]:
    """A receipt as JSON has it."""
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
    store: Store, topic: str, how: dict[str, Any], stop: Stop, given: dict[str, Any]
) -> None:
    """Put lines as they come; durable when the sum is told, or half a second after each."""
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
                if given["receipts"]:
                    _tell_receipts(put, as_json=given["as_json"])
            line += len(batch)
    finally:
        store.flush()
        if empty:
            note(f"{plural(empty, 'empty line')} left out")
        if given["as_json"]:
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
            f"of lines {line + 1:,} to {line + len(bodies):,} none is put: {error}",
            do="what came before is put; mend the line and give these again",
        ) from error


def _put_many(store: Store, topic: str, bodies: list[bytes], how: dict[str, Any]) -> Any:
    due = {name: how[name] for name in ("delay", "level", "spread") if how.get(name) is not None}
    if isinstance(due.get("delay"), timedelta):
        due["delay"] = due["delay"].total_seconds()
    if isinstance(how.get("deliver_at"), datetime):
        due["deliver_ms"] = ms_of(how["deliver_at"])
    return store.put_many(
        topic, bodies, **due, tags=how["tags"], queue_id=how["queue_id"], flush="async"
    )


def _lines(stop: Stop) -> Iterator[list[bytes]]:
    """Lines of standard input without their ends, as many at a time as there are."""
    rest, stdin = b"", input_descriptor()
    while not stop.is_asked:
        if not select.select([stdin], [], [], _LOOK_S)[0]:
            continue  # was the end asked for meanwhile?
        data = os.read(stdin, _READ_BYTES)
        if not data:
            break
        *whole, rest = (rest + data).split(b"\n")
        for begin in range(0, len(whole), _LINES_MAX):
            yield [one.removesuffix(b"\r") for one in whole[begin : begin + _LINES_MAX]]
    if rest and not stop.is_asked:
        yield [rest]


def _tell_receipts(batch: Any, *, as_json: bool) -> None:
    for receipt in batch:
        if as_json:
            emit(receipt_fields(receipt))
        else:
            say(f"{receipt.message_id} {receipt.handle}")
