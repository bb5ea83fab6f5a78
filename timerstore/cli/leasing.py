"""receive, ack, nack, extend: messages held for a time, and what becomes of them.

Holds:    (1) each opens the store, which nobody else may have open then; (2) what `receive` leased
          and could not tell comes again when its lease is over.
"""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from timerstore._engine.format.lease import read_receipt
from timerstore._engine.leases import AckResult, LeasedMessage
from timerstore._engine.leases.receive_request import ATTEMPTS_MAX, COUNT_MAX
from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.opening import Store, opened
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import SPAN, config_of, config_option, json_option, path_argument
from timerstore.cli.reading import settle
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.text import iso, message_fields, message_line, safe, time_text
from timerstore.clock import SystemClock
from timerstore.errors import LeaseLostError, MessageError

_LOOK_S = 0.25
_PAGE = 256

receipts_argument = click.argument("receipts", nargs=-1, required=True)
lease_option = click.option(
    "--lease", type=SPAN, default="30s", show_default=True, help="Hold each so long."
)


@click.command("receive")
@path_argument
@click.argument("topic")
@click.option("--group", required=True, help="For this group.")
@click.option(
    "-n", "--max", "max_count", type=click.IntRange(1, COUNT_MAX), default=1, show_default=True
)
@lease_option
@click.option("--wait", type=SPAN, help="Wait so long for the first one.")
@click.option(
    "--max-attempts",
    type=click.IntRange(0, ATTEMPTS_MAX),
    default=16,
    show_default=True,
    help="After so many to the topic %DLQ%GROUP; 0: never.",
)
@click.option(
    "--backoff",
    "backoffs",
    type=SPAN,
    multiple=True,
    help="What `nack` gives back waits so long; again for each next attempt. Default: 1s to 10m.",
)
@click.option("--tag", "tags", help='Only those with one of these, as "paid || late".')
@click.option("--sql", help='Only those whose properties meet this, as "amount > 5".')
@config_option
@json_option
def receive_command(**given: Any) -> None:
    """Lease the next messages of a topic to whoever calls, for a group; tell their receipts.

    What is due is delivered first. A message comes again when its lease is over, unless `ack`
    settles it; `nack` gives it back, `extend` holds it longer. Leases go on while nobody has the
    store open. Needs the store for itself: a process that has it open calls
    `store.receive(topic, group)`. Exit code 1 where there is none.
    """
    config = config_of(given["settings"])
    with (
        stopping() as stop,
        opened(given["path"], config, threads=given["wait"] is not None) as store,
    ):
        if given["wait"] is None:
            settle(store, stop)
        found = _receive(store, given, stop)
        for message in found:
            _tell_leased(message, as_json=given["as_json"])
    if not found:
        note(f"no messages of {given['topic']} for {given['group']}")
        raise click.exceptions.Exit(Exit.NOT_SO)


def _receive(store: Store, given: dict[str, Any], stop: Stop) -> list[LeasedMessage]:
    left_s = given["wait"].total_seconds() if given["wait"] is not None else 0.0
    asked = {
        "lease": given["lease"],
        "max_attempts": given["max_attempts"] or None,
        "backoff": list(given["backoffs"]) or None,
        "tags": given["tags"],
        "sql": given["sql"],
    }
    while True:
        step_s = min(left_s, _LOOK_S)
        found: list[LeasedMessage] = []
        found += store.receive(
            given["topic"], given["group"], max_count=given["max_count"], wait=step_s, **asked
        )
        if found or left_s <= step_s or stop.is_asked:
            return found
        left_s -= step_s


def _tell_leased(message: LeasedMessage, *, as_json: bool) -> None:
    fields = message_fields(message)
    until_ms = message.lease_until_ms
    if as_json:
        held = {
            "receipt": message.receipt,
            "attempt": message.attempt,
            "is_last_attempt": message.is_last_attempt,
            "lease_until_ms": until_ms,
            "lease_until": iso(until_ms),
        }
        emit({**fields, **held})
        return
    last = ", the last" if message.is_last_attempt else ""
    say(message_line(fields))
    say(f"  attempt {message.attempt}{last}; held until {_until_text(until_ms)}")
    say(f"  receipt {message.receipt}")


def _until_text(until_ms: int) -> str:
    return time_text(until_ms, ahead_of=SystemClock().now_ms)


# --- what becomes of them -------------------------------------------------------------------------


@click.command("ack")
@path_argument
@receipts_argument
@config_option
@json_option
def ack_command(
    path: Path, receipts: tuple[str, ...], settings: tuple[tuple[str, Any], ...], as_json: bool
) -> None:
    """Settle leases, by RECEIPTS as `receive` told them: the group is done with their messages.

    - reads them, or the JSON lines of `receive`, from standard input. ACKED; EXPIRED: too late, it
      came again; SETTLED: this receipt was used before; UNKNOWN. Durable. Needs the store for
    itself: a process that has it open calls `store.ack(receipt)`. Exit code 0 where each is ACKED.
    """
    given = _read(receipts)

    def ack(store: Store, part: list[str]) -> list[AckResult]:
        return store.ack_many(part)

    _settle(path, given, settings, ack, AckResult.ACKED, as_json=as_json)


@click.command("nack")
@path_argument
@receipts_argument
@click.option("--in", "within", type=SPAN, help="Again after this; else by `receive --backoff`.")
@config_option
@json_option
def nack_command(
    path: Path,
    receipts: tuple[str, ...],
    within: timedelta | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Give leased messages back, by RECEIPTS: each comes again, or is a dead letter.

    - reads them, or the JSON lines of `receive`, from standard input. NACKED, or what `ack` would
    answer. Durable. Needs the store for itself: a process that has it open calls
    `store.nack(receipt)`. Exit code 0 where each is NACKED.
    """
    given = _read(receipts)

    def nack(store: Store, part: list[str]) -> list[AckResult]:
        return [store.nack(one, delay=within) for one in part]

    _settle(path, given, settings, nack, AckResult.NACKED, as_json=as_json, at_a_time=1)


@click.command("extend")
@path_argument
@receipts_argument
@lease_option
@config_option
@json_option
def extend_command(
    path: Path,
    receipts: tuple[str, ...],
    lease: timedelta,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Hold leased messages longer, from now on; each gets a new receipt, the old one counts no
    more.

    - reads RECEIPTS, or the JSON lines of `receive`, from standard input. EXTENDED, or what `ack`
    would answer. Durable. Needs the store for itself: a process that has it open calls
    `store.extend(receipt)`. Exit code 0 where each is EXTENDED.
    """
    given, all_held = _read(receipts), True
    with stopping() as stop, opened(path, config_of(settings), threads=False) as store:
        for one in given:
            stop.check()
            all_held &= _extend(store, one, lease, as_json=as_json)
    _exit_unless(all_held)


def _extend(store: Store, receipt: str, lease: timedelta, *, as_json: bool) -> bool:
    try:
        longer = store.extend(receipt, lease=lease)
    except LeaseLostError as error:
        _tell_result(receipt, str(error.result), as_json=as_json)
        return False
    except MessageError as error:
        raise _refused(error) from error
    until_ms = read_receipt(longer.rpartition(".")[2]).until_ms
    if as_json:
        until = {"lease_until_ms": until_ms, "lease_until": iso(until_ms)}
        emit({"result": "EXTENDED", "was": receipt, "receipt": longer, **until})
    else:
        say(f"EXTENDED: held until {_until_text(until_ms)}\n  receipt {longer}")
    return True


def _settle(
    path: Path,
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
                raise _refused(error) from error
            results |= set(answers)
            for one, result in zip(part, answers, strict=True):
                _tell_result(one, result, as_json=as_json)
    _exit_unless(results <= {wanted})


def _tell_result(receipt: str, result: str, *, as_json: bool) -> None:
    if as_json:
        emit({"receipt": receipt, "result": result})
    else:
        say(f"{result} {safe(receipt)}")


def _read(given: tuple[str, ...]) -> list[str]:
    """Give the receipts, all of them before the store is opened: `receive` may have it still."""
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
                "no receipt",
                where=f"line {number} of standard input",
                wanted="a receipt, or a line of `receive --json`",
                got=text[:80],
            ) from error
        yield str(receipt)


def _refused(error: MessageError) -> CommandError:
    return CommandError(str(error), do="give the receipt as `receive` told it")


def _exit_unless(is_fine: bool) -> None:
    if not is_fine:
        raise click.exceptions.Exit(Exit.NOT_SO)
