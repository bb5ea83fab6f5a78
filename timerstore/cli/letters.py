"""Commands `dead-letters` and `requeue`: list the dead letters of a group, and deliver them again.

Locking: `dead-letters` only reads, so another process may have the store open. `requeue` opens it.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from timerstore._engine.leases import DeadLetter
from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.leasing import read_receipts
from timerstore.cli.opening import connected, opened, stores_in
from timerstore.cli.output import emit, note, say
from timerstore.cli.params import (
    COUNT,
    StorePlace,
    StoreUrl,
    config_of,
    config_option,
    json_option,
    store_argument,
    topic_option,
)
from timerstore.cli.stopping import stopping
from timerstore.cli.text import iso, message_fields, message_line, plural, safe, time_text
from timerstore.errors import MessageError
from timerstore.shards.receipt import letter_in
from timerstore.store import open as open_store
from timerstore.types.config import StoreConfig

group_argument = click.argument("group")


@click.command("dead-letters")
@store_argument
@group_argument
@topic_option
@click.option("-n", "--max", "max_count", type=COUNT, help="Print at most so many.")
@config_option
@json_option
def dead_letters_command(
    path: StorePlace,
    group: str,
    topic: str | None,
    max_count: int | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """List the dead letters of a group, oldest first in each queue, and their receipts.

    A dead letter is a message that `bury` moved to the topic %DLQ%GROUP, or whose last attempt
    ended without `ack`. Those that were requeued are not listed. The command only reads: if another
    process has the store open, it shows the store as of the last checkpoint. The exit code is 1 if
    there are no dead letters.
    """
    config, done = config_of(settings), 0
    with stopping() as stop:
        for letter in islice(_letters(path, config, group, topic), max_count):
            stop.check()
            _write_letter(letter, as_json=as_json)
            done += 1
    if not done:
        note(f"no dead letters of {group}" + ("" if topic is None else f" in {topic}"))
        raise click.exceptions.Exit(Exit.NOT_SO)


def _letters(
    path: StorePlace, config: StoreConfig | None, group: str, topic: str | None
) -> Iterator[DeadLetter]:
    if isinstance(path, StoreUrl):
        with connected(path, config) as store:
            yield from store.dead_letters(group, topic=topic)
        return
    for shard, one in stores_in(path).items():
        with open_store(one, config, read_only=True) as store:
            for letter in store.dead_letters(group, topic=topic):
                yield letter if shard is None else letter_in(shard, letter)


def _write_letter(letter: DeadLetter, *, as_json: bool) -> None:
    fields = message_fields(letter)
    if as_json:
        dead = {
            "group": letter.group,
            "receipt": letter.receipt,
            "attempt": letter.attempt,
            "dead_ms": letter.store_ms,
            "dead": iso(letter.store_ms),
            "error": letter.error,
        }
        emit({**fields, **dead})
        return
    say(message_line(fields))
    say(f"  {plural(letter.attempt, 'attempt')}; dead since {time_text(letter.store_ms)}")
    if letter.error is not None:
        say(f"  error {safe(letter.error)}")
    say(f"  receipt {letter.receipt}")


@click.command("requeue")
@store_argument
@group_argument
@click.argument("receipts", nargs=-1)
@click.option("--all", "requeues_all", is_flag=True, help="Requeue all dead letters of the group.")
@topic_option
@config_option
@json_option
def requeue_command(
    path: StorePlace,
    group: str,
    receipts: tuple[str, ...],
    requeues_all: bool,
    topic: str | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Deliver dead letters again, to their group only, as attempt 1.

    RECEIPTS are printed by `dead-letters`; - reads receipts, or the output of `dead-letters
    --json`, from standard input. Each message is requeued at most once. The result is durable. The
    exit code is 0 if each receipt was requeued, or with --all if there was a dead letter.

    No other process may have the store open. A process that has it open calls
    `store.requeue(group)`.
    """
    if requeues_all == bool(receipts):
        raise click.UsageError("wanted either RECEIPTS or --all")
    given = None if requeues_all else list(dict.fromkeys(read_receipts(receipts)))
    with stopping(), opened(path, config_of(settings), threads=False) as store:
        try:
            count = store.requeue(group, given, topic=topic)
        except MessageError as error:
            do = "give the receipt that `dead-letters` printed" if given else ""
            raise CommandError(str(error), do=do) from error
    if as_json:
        emit({"requeued": count})
    else:
        say(f"requeued {plural(count, 'message')}")
    if count < (1 if given is None else len(given)):
        raise click.exceptions.Exit(Exit.NOT_SO)
