"""Command `every`: list, start and end recurring messages.

Thread safety: listing takes no lock. It reads the store's file of definitions, which is as old as
    the last checkpoint.
"""

import sys
from collections.abc import Iterator
from typing import Any

import click

from timerstore._engine.base.message_fields import PRIORITY_MAX
from timerstore._engine.format import recurring_json
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.recurring import Recurring, describe
from timerstore._engine.recurring.definition import MISSED
from timerstore._engine.storage.disk import Disk
from timerstore.cli.exits import Exit
from timerstore.cli.opening import connected, opened, stores_in
from timerstore.cli.output import emit, note, say, table
from timerstore.cli.params import (
    DUE,
    PAIR,
    SPAN,
    StorePlace,
    StoreUrl,
    config_of,
    config_option,
    json_option,
    store_argument,
)
from timerstore.cli.stopping import stopping
from timerstore.cli.text import exact_span_text, iso, safe, time_text
from timerstore.types.clock import SystemClock

_PUT_ONLY = (
    *("step", "cron", "timezone", "start", "missed", "name"),
    *("keys", "tags", "properties", "queue_id", "priority"),
)


@click.command("every")
@store_argument
@click.argument("topic", required=False)
@click.argument("body", required=False)
@click.option("--every", "step", type=SPAN, help="Interval of at least 1s: 90s, 1h, 1d.")
@click.option("--cron", help='Five cron fields: "30 2 * * *"; or @daily (needs timerstore[cron]).')
@click.option("--timezone", help="Time zone of --cron, such as Europe/Berlin.  [default: UTC]")
@click.option(
    "--start",
    type=DUE,
    help="No run before this time; intervals count from it. If it has passed, runs start with "
    "the next interval.",
)
@click.option(
    "--missed",
    type=click.Choice(MISSED),
    help="Runs to deliver of those missed while the store was closed.  [default: one]",
)
@click.option("--name", help="Name of the recurring message; default: random.")
@click.option("--key", "keys", multiple=True, help="Key of each message; repeatable.")
@click.option("--tag", "tags", help="Tag of each message.")
@click.option("--property", "properties", multiple=True, type=PAIR, help="Property; repeatable.")
@click.option("--queue", "queue_id", type=int, help="Queue number; default: 0.")
@click.option("--priority", type=click.IntRange(0, PRIORITY_MAX), help="0 to 9; 9 comes first.")
@click.option("--cancel", "ended", multiple=True, metavar="NAME", help="End this one; repeatable.")
@config_option
@json_option
def every_command(**options: Any) -> None:
    """List recurring messages, start one, or end one.

    Without TOPIC and --cancel the command lists them. With TOPIC it starts one with the body BODY;
    if BODY is - or missing, it is read from standard input. A repeated command with the same name
    and arguments changes nothing. Messages are delivered while a process has the store open.

    The list works while another process has the store open. To start or end a recurring message,
    that process calls `store.put_every` or `store.cancel_every`. The exit code is 1 if --cancel
    names an unknown one.
    """
    set_options = [name for name in _PUT_ONLY if options[name] not in (None, ())]
    if options["ended"]:
        if options["topic"] is not None or set_options:
            raise click.UsageError(
                "--cancel: ends a recurring message; wanted no TOPIC and no other option"
            )
        _cancel(options)
    elif options["topic"] is not None:
        _put(options)
    elif set_options:
        raise click.UsageError("wanted TOPIC and BODY of the recurring message")
    else:
        _list(options["path"], as_json=options["as_json"])


def _put(options: dict[str, Any]) -> None:
    if (options["step"] is None) == (options["cron"] is None):
        raise click.UsageError("time: wanted one of --every and --cron")
    body = options["body"]
    data = (
        sys.stdin.buffer.read() if body in (None, "-") else body.encode("utf-8", "surrogateescape")
    )
    how = {name: options[name] for name in ("timezone", "missed") if options[name] is not None}
    with (
        stopping(),
        opened(options["path"], config_of(options["settings"]), threads=False) as store,
    ):
        made = store.put_every(
            options["topic"],
            data,
            every=options["step"],
            cron=options["cron"],
            start=options["start"],
            name=options["name"],
            tags=options["tags"],
            keys=options["keys"],
            properties=dict(options["properties"]) or None,
            queue_id=options["queue_id"],
            priority=options["priority"],
            **how,
        )
    if options["as_json"]:
        emit(_fields(made, getattr(made, "shard", None)))
        return
    say(f"{made.name}: {_when(made)} to {safe(made.topic)}")
    if made.next_ms is not None:
        say(f"  next {time_text(made.next_ms, ahead_of=SystemClock().now_ms)}")


def _cancel(options: dict[str, Any]) -> None:
    all_found = True
    with (
        stopping() as stop,
        opened(options["path"], config_of(options["settings"]), threads=False) as store,
    ):
        for name in options["ended"]:
            stop.check()
            is_found = store.cancel_every(name)
            all_found &= is_found
            result = "ENDED" if is_found else "UNKNOWN"
            if options["as_json"]:
                emit({"name": name, "result": result})
            else:
                say(f"{result} {safe(name)}")
    if not all_found:
        raise click.exceptions.Exit(Exit.NOT_SO)


# --- the list -------------------------------------------------------------------------------------


def _list(path: StorePlace, *, as_json: bool) -> None:
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
        note("no recurring messages")


def _read(path: StorePlace) -> Iterator[tuple[int | None, Recurring]]:
    if isinstance(path, StoreUrl):
        with connected(path) as store:
            yield from ((None, one) for one in store.recurring())
        return
    now_ms = SystemClock().now_ms
    for shard, root in stores_in(path).items():
        file = Tree(root).recurring_json
        for one in recurring_json.read(Disk().read_small(file), file):
            if not one.is_ended:
                yield shard, describe(one, now_ms)


def _when(one: Recurring) -> str:
    if one.every_ms is not None:
        return f"every {exact_span_text(one.every_ms)}"
    return f"{one.cron} {one.timezone}"


def _next_text(one: Recurring) -> str | None:
    return None if one.next_ms is None else time_text(one.next_ms)


def _fields(one: Recurring, shard: int | None) -> dict[str, Any]:
    """Return the JSON fields of a recurring message."""
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
