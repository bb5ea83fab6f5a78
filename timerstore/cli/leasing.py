"""Commands `receive`, `ack`, `nack`, `bury` and `extend`: lease messages, settle the leases.

Locking: each command opens the store, so no other process may have it open.
Invariants: a message that `receive` leased but could not print is delivered again after its lease.
"""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import click

from timerstore._engine.format.lease import read_receipt
from timerstore._engine.leases import AckResult, LeasedMessage
from timerstore._engine.leases.receive_request import ATTEMPTS_MAX, COUNT_MAX
from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.opening import Store, opened
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import (
    SPAN,
    StorePlace,
    config_of,
    config_option,
    json_option,
    store_argument,
)
from timerstore.cli.reading import settle
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.text import iso, message_fields, message_line, safe, time_text
from timerstore.errors import LeaseLostError, MessageError
from timerstore.types.clock import SystemClock

_LOOK_S = 0.25
_PAGE = 256

receipts_argument = click.argument("receipts", nargs=-1, required=True)
lease_option = click.option(
    "--lease", type=SPAN, default="30s", show_default=True, help="Length of the lease."
)


@click.command("receive")
@store_argument
@click.argument("topics", nargs=-1, required=True)
@click.option("--group", required=True, help="The group that gets the messages.")
@click.option(
    "-n",
    "--max",
    "max_count",
    type=click.IntRange(1, COUNT_MAX),
    default=1,
    show_default=True,
    help="Lease at most so many messages.",
)
@lease_option
@click.option("--wait", type=SPAN, help="Wait for the first message for so long.")
@click.option(
    "--max-attempts",
    type=click.IntRange(0, ATTEMPTS_MAX),
    default=16,
    show_default=True,
    help="Attempts before a message goes to the topic %DLQ%GROUP; 0: no limit.",
)
@click.option(
    "--backoff",
    "backoffs",
    type=SPAN,
    multiple=True,
    help="Delay after a `nack`; repeat it for later attempts. Default: 1s to 10m.",
)
@click.option("--tag", "tags", help='Only messages with one of these tags, such as "paid || late".')
@click.option("--sql", help='Only messages whose properties match, such as "amount > 5".')
@click.option("--ordered", is_flag=True, help="One message of a message group at a time.")
@config_option
@json_option
def receive_command(**options: Any) -> None:
    """Lease the next messages of topics for a group, and print their receipts.

    Several TOPICS take turns. The command delivers due messages first. A message is delivered again
    when its lease ends, unless `ack` settles it; `nack` returns it early, and `extend` extends the
    lease. Leases continue while the store is closed. The exit code is 1 if there are no messages.

    No other process may have the store open. A process that has it open calls
    `store.receive(topic, group)`.
    """
    config = config_of(options["settings"])
    with (
        stopping() as stop,
        opened(options["path"], config, threads=options["wait"] is not None) as store,
    ):
        if options["wait"] is None:
            settle(store, stop)
        found = _receive(store, options, stop)
        for message in found:
            _write_leased(message, as_json=options["as_json"])
    if not found:
        note(f"no messages of {', '.join(options['topics'])} for {options['group']}")
        raise click.exceptions.Exit(Exit.NOT_SO)


def _receive(store: Store, options: dict[str, Any], stop: Stop) -> list[LeasedMessage]:
    left_s = options["wait"].total_seconds() if options["wait"] is not None else 0.0
    request = {
        "lease": options["lease"],
        "max_attempts": options["max_attempts"] or None,
        "backoff": list(options["backoffs"]) or None,
        "tags": options["tags"],
        "sql": options["sql"],
        "ordered": options["ordered"],
    }
    while True:
        step_s = min(left_s, _LOOK_S)
        found: list[LeasedMessage] = []
        found += store.receive(
            options["topics"],
            options["group"],
            max_count=options["max_count"],
            wait=step_s,
            **request,
        )
        if found or left_s <= step_s or stop.is_asked:
            return found
        left_s -= step_s


def _write_leased(message: LeasedMessage, *, as_json: bool) -> None:
    fields = message_fields(message)
    until_ms = message.lease_until_ms
    if as_json:
        lease = {
            "receipt": message.receipt,
            "attempt": message.attempt,
            "is_last_attempt": message.is_last_attempt,
            "lease_until_ms": until_ms,
            "lease_until": iso(until_ms),
        }
        emit({**fields, **lease})
        return
    last = ", the last" if message.is_last_attempt else ""
    say(message_line(fields))
    say(f"  attempt {message.attempt}{last}; leased until {_until_text(until_ms)}")
    say(f"  receipt {message.receipt}")


def _until_text(until_ms: int) -> str:
    return time_text(until_ms, ahead_of=SystemClock().now_ms)


# --- settle a lease -------------------------------------------------------------------------------


@click.command("ack")
@store_argument
@receipts_argument
@config_option
@json_option
def ack_command(
    path: StorePlace,
    receipts: tuple[str, ...],
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Acknowledge leased messages: the group has processed them.

    RECEIPTS are printed by `receive`; - reads receipts, or the output of `receive --json`, from
    standard input. Each result is ACKED, EXPIRED (the lease has ended), SETTLED (the receipt was
    used before) or UNKNOWN. The results are durable. The exit code is 0 if each is ACKED.

    No other process may have the store open. A process that has it open calls `store.ack(receipt)`.
    """
    given = read_receipts(receipts)

    def ack(store: Store, part: list[str]) -> list[AckResult]:
        return store.ack_many(part)

    _settle(path, given, settings, ack, AckResult.ACKED, as_json=as_json)


error_option = click.option(
    "--error", metavar="TEXT", help="Why it failed; `dead-letters` shows the last reason."
)


@click.command("nack")
@store_argument
@receipts_argument
@click.option(
    "--in",
    "within",
    type=SPAN,
    help="Delay before the next delivery; default: by `receive --backoff`.",
)
@error_option
@config_option
@json_option
def nack_command(
    path: StorePlace,
    receipts: tuple[str, ...],
    within: timedelta | None,
    error: str | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Return leased messages: each is delivered again, or becomes a dead letter.

    RECEIPTS are printed by `receive`; - reads receipts, or the output of `receive --json`, from
    standard input. Each result is NACKED, or EXPIRED, SETTLED or UNKNOWN as for `ack`. The results
    are durable. The exit code is 0 if each is NACKED.

    No other process may have the store open. A process that has it open calls
    `store.nack(receipt)`.
    """
    given = read_receipts(receipts)

    def nack(store: Store, part: list[str]) -> list[AckResult]:
        return [store.nack(one, delay=within, error=error) for one in part]

    _settle(path, given, settings, nack, AckResult.NACKED, as_json=as_json, at_a_time=1)


@click.command("bury")
@store_argument
@receipts_argument
@error_option
@config_option
@json_option
def bury_command(
    path: StorePlace,
    receipts: tuple[str, ...],
    error: str | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Make leased messages dead letters of their group now. `requeue` delivers them again.

    RECEIPTS are printed by `receive`; - reads receipts, or the output of `receive --json`, from
    standard input. Each result is BURIED, or EXPIRED, SETTLED or UNKNOWN as for `ack`. The results
    are durable. The exit code is 0 if each is BURIED.

    No other process may have the store open. A process that has it open calls
    `store.bury(receipt)`.
    """
    given = read_receipts(receipts)

    def bury(store: Store, part: list[str]) -> list[AckResult]:
        return [store.bury(one, error=error) for one in part]

    _settle(path, given, settings, bury, AckResult.BURIED, as_json=as_json, at_a_time=1)


@click.command("extend")
@store_argument
@receipts_argument
@lease_option
@config_option
@json_option
def extend_command(
    path: StorePlace,
    receipts: tuple[str, ...],
    lease: timedelta,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Extend leases, counted from now. Each message gets a new receipt, which replaces the old one.

    RECEIPTS are printed by `receive`; - reads receipts, or the output of `receive --json`, from
    standard input. Each result is EXTENDED, or EXPIRED, SETTLED or UNKNOWN as for `ack`. The
    results are durable. The exit code is 0 if each is EXTENDED.

    No other process may have the store open. A process that has it open calls
    `store.extend(receipt)`.
    """
    given, all_extended = read_receipts(receipts), True
    with stopping() as stop, opened(path, config_of(settings), threads=False) as store:
        for one in given:
            stop.check()
            all_extended &= _extend(store, one, lease, as_json=as_json)
    _exit_unless(all_extended)


def _extend(store: Store, receipt: str, lease: timedelta, *, as_json: bool) -> bool:
    try:
        longer = store.extend(receipt, lease=lease)
    except LeaseLostError as error:
        _write_result(receipt, str(error.result), as_json=as_json)
        return False
    except MessageError as error:
        raise _receipt_error(error) from error
    until_ms = read_receipt(longer.rpartition(".")[2]).until_ms
    if as_json:
        until = {"lease_until_ms": until_ms, "lease_until": iso(until_ms)}
        emit({"result": "EXTENDED", "was": receipt, "receipt": longer, **until})
    else:
        say(f"EXTENDED: leased until {_until_text(until_ms)}\n  receipt {longer}")
    return True


def _settle(
    path: StorePlace,
    receipts: list[str],
    settings: tuple[tuple[str, Any], ...],
    call: Callable[[Store, list[str]], list[AckResult]],
    wanted: AckResult,
    *,
    as_json: bool,
    at_a_time: int = _PAGE,
) -> None:
    results = set()
    with stopping() as stop, opened(path, config_of(settings), threads=False) as store:
        for begin in range(0, len(receipts), at_a_time):
            stop.check()
            part = receipts[begin : begin + at_a_time]
            try:
                answers = call(store, part)
            except MessageError as error:
                raise _receipt_error(error) from error
            results |= set(answers)
            for one, result in zip(part, answers, strict=True):
                _write_result(one, result, as_json=as_json)
    _exit_unless(results <= {wanted})


def _write_result(receipt: str, result: str, *, as_json: bool) -> None:
    if as_json:
        emit({"receipt": receipt, "result": result})
    else:
        say(f"{result} {safe(receipt)}")


def read_receipts(given: tuple[str, ...]) -> list[str]:
    """Return all receipts, read before the store is opened, since `receive` may have it open."""
    found: list[str] = []
    for one in given:
        found += _lines() if one == "-" else [one]
    return found


def _lines() -> Iterator[str]:
    for number, line in enumerate(sys.stdin, 1):
        text = line.strip()
        if not text:
            continue
        if not text.startswith("{"):
            yield text
            continue
        try:
            receipt = json.loads(text)["receipt"]
        except (ValueError, KeyError, RecursionError) as error:
            raise CommandError(
                "a line has no receipt",
                where=f"line {number} of standard input",
                wanted="a receipt, or a line of `receive --json` or `dead-letters --json`",
                got=text[:80],
            ) from error
        yield str(receipt)


def _receipt_error(error: MessageError) -> CommandError:
    return CommandError(str(error), do="give the receipt that `receive` printed")


def _exit_unless(is_fine: bool) -> None:
    if not is_fine:
        raise click.exceptions.Exit(Exit.NOT_SO)
