"""every: what is put again and again: list it, begin it, end it.

Holds:    to list takes no lock and changes nothing: the store's file of definitions is read, as of
          the last checkpoint.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from timerstore._engine.format import recurring_json
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.recurring import Recurring, describe
from timerstore._engine.recurring.definition import MISSED
from timerstore._engine.storage.disk import Disk
from timerstore.cli.exits import Exit
from timerstore.cli.opening import opened, stores_in
from timerstore.cli.output import emit, note, say, table
from timerstore.cli.params import (
    DUE,
    PAIR,
    SPAN,
    config_of,
    config_option,
    json_option,
    path_argument,
)
from timerstore.cli.stopping import stopping
from timerstore.cli.text import exact_span_text, iso, safe, time_text
from timerstore.clock import SystemClock
from timerstore.errors import CorruptError

_PUT_ONLY = (
    *("step", "cron", "timezone", "start", "missed", "name"),
    *("keys", "tags", "properties", "queue_id"),
)


@click.command("every")
@path_argument
@click.argument("topic", required=False)
@click.argument("body", required=False)
@click.option("--every", "step", type=SPAN, help="A step of time, from 1s on: 90s, 1h, 1d.")
@click.option("--cron", help='Or five fields: "30 2 * * *" (timerstore[cron]).')
@click.option("--timezone", help="Of --cron, as Europe/Berlin.  [default: UTC]")
@click.option(
    "--start",
    type=DUE,
    help="Not before this time; steps count from it. Of one that has passed: from the next step.",
)
@click.option(
    "--missed",
    type=click.Choice(MISSED),
    help="Of runs that nobody was there for: none comes, one, or all.  [default: one]",
)
@click.option("--name", help="To say it again, and to end it by; drawn where none is given.")
@click.option("--key", "keys", multiple=True, help="Of each run's message; may come again.")
@click.option("--tag", "tags", help="Of each run's message.")
@click.option("--property", "properties", multiple=True, type=PAIR, help="May come again.")
@click.option("--queue", "queue_id", type=int, help="The queue; 0 where nothing is said.")
@click.option("--cancel", "ended", multiple=True, metavar="NAME", help="End it; may come again.")
@config_option
@json_option
def every_command(**given: Any) -> None:
    """List what is put again and again; or with TOPIC put BODY (- or missing: standard input)
    again and again; or end it by its name.

    The same name with the same arguments again changes nothing. Runs come out while somebody has
    the store open. The list is read beside the process that has it open; to begin and to end
    needs the store for itself: that process calls `store.put_every` and `store.cancel_every`.
    Exit code 1 where --cancel names what does not recur.
    """
    asked = [name for name in _PUT_ONLY if given[name] not in (None, ())]
    if given["ended"]:
        if given["topic"] is not None or asked:
            raise click.UsageError(
                "--cancel: ends what recurs; no TOPIC and nothing else beside it"
            )
        _cancel(given)
    elif given["topic"] is not None:
        _put(given)
    elif asked:
        raise click.UsageError(
            "wanted TOPIC and BODY: what is to be put again and again, and where"
        )
    else:
        _list(given["path"], as_json=given["as_json"])


def _put(given: dict[str, Any]) -> None:
    if (given["step"] is None) == (given["cron"] is None):
        raise click.UsageError("time: wanted one of --every and --cron")
    body = given["body"]
    data = (
        sys.stdin.buffer.read() if body in (None, "-") else body.encode("utf-8", "surrogateescape")
    )
    how = {name: given[name] for name in ("timezone", "missed") if given[name] is not None}
    with stopping(), opened(given["path"], config_of(given["settings"]), threads=False) as store:
        made = store.put_every(
            given["topic"],
            data,
            every=given["step"],
            cron=given["cron"],
            start=given["start"],
            name=given["name"],
            tags=given["tags"],
            keys=given["keys"],
            properties=dict(given["properties"]) or None,
            queue_id=given["queue_id"],
            **how,
        )
    if given["as_json"]:
        emit(_fields(made, getattr(made, "shard", None)))
        return
    say(f"{made.name}: {_when(made)} to {safe(made.topic)}")
    if made.next_ms is not None:
        say(f"  next {time_text(made.next_ms, ahead_of=SystemClock().now_ms)}")


def _cancel(given: dict[str, Any]) -> None:
    all_there = True
    with (
        stopping() as stop,
        opened(given["path"], config_of(given["settings"]), threads=False) as store,
    ):
        for name in given["ended"]:
            stop.check()
            is_there = store.cancel_every(name)
            all_there &= is_there
            result = "ENDED" if is_there else "UNKNOWN"
            if given["as_json"]:
                emit({"name": name, "result": result})
            else:
                say(f"{result} {safe(name)}")
    if not all_there:
        raise click.exceptions.Exit(Exit.NOT_SO)


# --- the list -------------------------------------------------------------------------------------


def _list(path: Path, *, as_json: bool) -> None:
    found = sorted(_read(path), key=lambda one: one[1].name)
    if as_json:
        for shard, one in found:
            emit(_fields(one, shard))
    elif found:
        columns = ["name", "topic", "when", "missed", "runs", "next"]
        rows = [
            [one.name, one.topic, _when(one), one.missed, one.run_count, _next_text(one)]
            for _, one in found
        ]
        table(columns, rows)
    else:
        note("nothing recurs")


def _read(path: Path) -> Iterator[tuple[int | None, Recurring]]:
    now_ms = SystemClock().now_ms
    for shard, root in stores_in(path).items():
        file = Tree(root).recurring_json
        try:
            definitions = recurring_json.read(Disk().read_small(file))
        except CorruptError as error:
            raise CorruptError(f"what recurs cannot be read: {error}", where=file) from error
        for one in definitions:
            if not one.is_ended:
                yield shard, describe(one, now_ms)


def _when(one: Recurring) -> str:
    if one.every_ms is not None:
        return f"every {exact_span_text(one.every_ms)}"
    return f"{one.cron} {one.timezone}"


def _next_text(one: Recurring) -> str | None:
    return None if one.next_ms is None else time_text(one.next_ms)


def _fields(one: Recurring, shard: int | None) -> dict[str, Any]:
    """What recurs as JSON has it."""
    return {
        "name": one.name,
        **({} if shard is None else {"shard": shard}),
        "topic": one.topic,
        "every_ms": one.every_ms,
        "cron": one.cron,
        "timezone": one.timezone,
        "missed": one.missed,
        "made_ms": one.made_ms,
        "runs": one.run_count,
        "next_ms": one.next_ms,
        "next": iso(one.next_ms),
    }
