"""Commands `histogram` and `explain`: count pending messages by due time; trace one message."""

from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from timerstore._engine.introspection.calendar import UNIT_S
from timerstore.cli.exits import CommandError, Exit
from timerstore.cli.opening import opened, stores_in
from timerstore.cli.output import emit, note, say, table
from timerstore.cli.params import (
    INSTANT,
    StorePlace,
    StoreUrl,
    config_of,
    config_option,
    json_option,
    ms_of,
    store_argument,
    topic_option,
)
from timerstore.cli.text import iso, plural, safe, span_text, time_text
from timerstore.errors import FullError, LockedError, MessageError
from timerstore.shards.receipt import split_handle
from timerstore.store import ReadOnlyStore
from timerstore.types.clock import SystemClock
from timerstore.types.config import StoreConfig
from timerstore.types.reports import Explanation, Histogram

_SHOWN_MAX = 48  # a longer table omits its empty buckets
_BAR = 40


@click.command("histogram")
@store_argument
@topic_option
@click.option("--by", type=click.Choice(list(UNIT_S)), default="hour", show_default=True)
@click.option("--from", "begin", type=INSTANT, help="Default: now.")
@click.option("--until", "end", type=INSTANT, help="Default: a day after --from.")
@config_option
@json_option
def histogram_command(
    path: StorePlace,
    topic: str | None,
    by: str,
    begin: datetime | None,
    end: datetime | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Count pending messages by due time, in exact buckets of a second, minute, hour or day (UTC).

    If another process has the store open, the command reads its log, which takes about a second for
    each GB. With the address of its server, that process counts.
    """
    config = config_of(settings)
    try:
        with opened(path, config, threads=False) as store:
            found = store.histogram(ms_of(begin), ms_of(end), by, topic)
    except (LockedError, FullError):
        if isinstance(path, StoreUrl):
            raise
        found = _from_snapshot(path, topic, by, begin, end)
    edges = found.edges.tolist()
    rows = list(zip(edges[:-1], edges[1:], found.counts.tolist(), strict=True))
    if as_json:
        for low, high, count in rows:
            emit({"begin": iso(low), "end": iso(high), "begin_ms": low, "count": count})
        return
    total = sum(count for _, _, count in rows)
    if len(rows) > _SHOWN_MAX:
        rows = [row for row in rows if row[2]]
    top = max((count for _, _, count in rows), default=0)
    cut = 16 if UNIT_S[by] >= 60 else 19
    if rows:
        table(
            (f"due, by {by}", "count", ""),
            [(time_text(low)[:cut], count, "█" * _width(count, top)) for low, _, count in rows],
        )
    first, last = time_text(int(found.edges[0]))[:19], time_text(int(found.edges[-1]))[:19]
    note(f"{plural(total, 'message')} from {first} until {last}")


def _width(count: int, top: int) -> int:
    return -(-count * _BAR // top) if top else 0


def _from_snapshot(
    path: Path, topic: str | None, by: str, begin: datetime | None, end: datetime | None
) -> Histogram:
    """Count the pending messages of a store that cannot be opened: it is open, or the disk full."""
    begin_ms = SystemClock().now_ms if begin is None else ms_of(begin)  # the same for all shards
    found = []
    for one in stores_in(path).values():
        with ReadOnlyStore(one) as store:
            found.append(store.histogram(begin_ms, ms_of(end), by, topic))
    return Histogram(found[0].edges, np.sum([one.counts for one in found], axis=0))


@click.command("explain")
@store_argument
@click.argument("message")
@click.option("--topic", help="MESSAGE is a message id of this topic, not a handle.")
@config_option
@json_option
def explain_command(
    path: StorePlace,
    message: str,
    topic: str | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Show where a message is, why it is not delivered yet, and its history.

    MESSAGE is a handle, or with --topic a message id. The exit code is 1 if the message is unknown.
    """
    try:
        found = _explain(path, config_of(settings), message, topic)
    except MessageError as error:
        raise CommandError(
            str(error), do="give the handle that `put` printed, or a message id and --topic"
        ) from error
    if as_json:
        emit(_fields(found))
    else:
        _write_explanation(found)
    if found.state == "unknown":
        raise click.exceptions.Exit(Exit.NOT_SO)


def _explain(
    path: StorePlace, config: StoreConfig | None, message: str, topic: str | None
) -> Explanation:
    try:
        with opened(path, config, threads=False) as store:
            return store.explain(message, topic=topic)
    except FullError:
        if isinstance(path, StoreUrl):
            raise
    stores = stores_in(path)
    if topic is None and None not in stores:
        shard, message = split_handle(message, len(stores))
        stores = {shard: stores[shard]}
    found = []
    for one in stores.values():
        with ReadOnlyStore(one) as reader:
            found.append(reader.explain(message, topic=topic))
    return next((one for one in found if one.state != "unknown"), found[0])


def _fields(found: Explanation) -> dict[str, Any]:
    names = [name for name in Explanation.__slots__ if name != "history"]
    history = [{**one._asdict(), "at": iso(one.at_ms)} for one in found.history]
    return {**{name: getattr(found, name) for name in names}, "history": history}


def _write_explanation(found: Explanation) -> None:
    say(f"{safe(found.message_id)} of {safe(found.topic)}: {found.state}")
    rows = [("why", safe(found.why)), ("where", _place(found))]
    if found.due_ms:
        rows.append(("due", time_text(found.due_ms, ahead_of=SystemClock().now_ms)))
    if found.slot is not None and found.slot_ms is not None:
        text = f"{found.slot:,}, read at {time_text(found.slot_ms)}"
        if found.chain_place is not None:
            text += f"; entry {found.chain_place:,} of {found.chain_length:,} in its chain"
        rows.append(("slot", text))
    for name, text in rows:
        say(f"  {name:8} {text}")
    before = None
    for one in found.history:
        since = "" if before is None else f", {span_text(one.at_ms - before)} later"
        due = f", due {time_text(one.due_ms)}" if one.due_ms else ""
        say(f"  {one.what:8} {time_text(one.at_ms)}{since}{due}, log offset {one.log_offset:,}")
        before = one.at_ms


def _place(found: Explanation) -> str:
    if found.where == "queue":
        return f"queue {found.queue_id}, offset {found.queue_offset}"
    return found.where
