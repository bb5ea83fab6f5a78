"""Commands `ls` and `count`: list topics and groups, and count pending messages.

Thread safety: both read a snapshot and take no lock, except `count` with a time range.
"""

from collections.abc import Container, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from timerstore._engine.snapshot.live_stats import StoreSummary, counted, look
from timerstore.cli.opening import connected, opened, stores_in
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
from timerstore.cli.served import backlogs_of, served_groups, topics_of
from timerstore.cli.stopping import stopping
from timerstore.cli.summaries import groups, holder_text
from timerstore.cli.text import plural, size_text, span_text
from timerstore.errors import FullError
from timerstore.store import ReadOnlyStore
from timerstore.types.config import StoreConfig
from timerstore.types.reports import GroupBacklog


@click.command("ls")
@store_argument
@click.option(
    "--groups", "show_groups", is_flag=True, help="List groups and their positions instead."
)
@json_option
def ls_command(path: StorePlace, show_groups: bool, as_json: bool) -> None:
    """List the topics of a store with their queues, pending and delivered messages.

    The numbers are those of now. If another process has the store open, they are those of its last
    checkpoint, which is at most half a second old in a busy store. Those of a served store are as
    of now.
    """
    if isinstance(path, StoreUrl):
        _list_served(path, show_groups=show_groups, as_json=as_json)
        return
    found = [counted(look(one, shard)) for shard, one in stores_in(path).items()]
    if show_groups:
        _write_groups(_group_rows(found), as_json=as_json)
        return
    if not as_json:
        _note_store(path, found)
    _write_topics(
        [
            (one.shard, topic, one.queue_counts.get(topic), one.pending(topic), one.end(topic))
            for one in found
            for topic in one.topics
        ],
        as_json=as_json,
    )


def _list_served(place: StoreUrl, *, show_groups: bool, as_json: bool) -> None:
    with connected(place) as store:
        if show_groups:
            _write_groups(served_groups(store), as_json=as_json)
            return
        topics = topics_of(store)
        stats = store.stats()
    if not as_json:
        log = size_text(stats["log_end_bytes"] - stats["log_begin_bytes"])
        note(f"{place}: a served store, log {log}")
    _write_topics([(None, name, *one) for name, one in topics.items()], as_json=as_json)


def _write_topics(rows: Sequence[tuple[Any, ...]], *, as_json: bool) -> None:
    names = ("shard", "topic", "queues", "pending", "delivered")
    _write_rows(names, rows, as_json=as_json, empty="no topics yet")


def _write_groups(rows: Sequence[tuple[Any, ...]], *, as_json: bool) -> None:
    names = ("shard", "topic", "group", "queue", "committed", "behind")
    _write_rows(names, rows, as_json=as_json, empty="no group has committed an offset yet")


def _write_rows(
    names: Sequence[str], rows: Sequence[tuple[Any, ...]], *, as_json: bool, empty: str
) -> None:
    """Write rows whose first field is the shard, which is left out for a single store."""
    if as_json:
        for row in rows:
            fields = dict(zip(names, row, strict=True))
            if fields["shard"] is None:
                del fields["shard"]
            emit(fields)
    elif rows:
        skip = 1 if rows[0][0] is None else 0
        table(names[skip:], [row[skip:] for row in rows])
    else:
        note(empty)


def _note_store(path: Path, found: list[StoreSummary]) -> None:
    """Describe the store in one line on standard error."""
    log = sum(one.store.log_end - one.store.log_begin for one in found)
    what = "a store" if found[0].shard is None else plural(len(found), "shard")
    holders = sorted({holder_text(one) for one in found})
    note(f"{path}: {what}, log {size_text(log)}; {'; '.join(holders)}")


def _group_rows(found: list[StoreSummary]) -> list[tuple[Any, ...]]:
    rows = []
    for one in found:
        for topic, group, queue_id, offset in groups(one.path):
            ends = {} if one.counts is None else one.counts.ends.get(topic, {})
            behind = None if one.counts is None else ends.get(queue_id, 0) - offset
            rows.append((one.shard, topic, group, queue_id, offset, behind))
    return rows


@click.command("count")
@store_argument
@topic_option
@click.option(
    "--from",
    "begin",
    type=INSTANT,
    help="Only messages due at this time or later; opens the store.",
)
@click.option(
    "--until", "end", type=INSTANT, help="Only messages due before this time; opens the store."
)
@config_option
@json_option
def count_command(
    path: StorePlace,
    topic: str | None,
    begin: datetime | None,
    end: datetime | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Count pending messages.

    Without --from and --until the command works while another process has the store open. With one
    of them it opens the store itself. With the address of a server it asks the server.
    """
    config = config_of(settings)
    holders: list[int | None] = [None]
    if begin is not None or end is not None:
        number = _count_due(path, config, ms_of(begin), ms_of(end), topic)
    elif isinstance(path, StoreUrl):
        with connected(path, config) as served:
            stats = served.stats()
            number = stats["pending_messages"]
            if topic is not None:
                number = stats["pending_by_topic"].get(topic, 0)
                _note_unknown(topic, served.topics())
    else:
        found = [counted(look(one, shard)) for shard, one in stores_in(path).items()]
        number = sum(one.pending(topic) or 0 for one in found)
        holders = [one.holder for one in found]
        if topic is not None:
            _note_unknown(topic, [name for one in found for name in one.topics])
    if as_json:
        emit(
            {
                "pending": number,
                **({} if topic is None else {"topic": topic}),
                "open_in": holders[0],
            }
        )
    else:
        say(str(number))


def _count_due(
    path: StorePlace,
    config: StoreConfig | None,
    begin_ms: int | None,
    end_ms: int | None,
    topic: str | None,
) -> int:
    """Count messages by due time. Read the files if the disk is too full to open the store."""
    try:
        with opened(path, config, threads=False) as store:
            return sum(1 for _ in store.pending(begin_ms=begin_ms, end_ms=end_ms, topic=topic))
    except FullError:
        if isinstance(path, StoreUrl):
            raise
    count = 0
    for one in stores_in(path).values():
        with ReadOnlyStore(one) as reader:
            count += sum(1 for _ in reader.pending(begin_ms=begin_ms, end_ms=end_ms, topic=topic))
    return count


def _note_unknown(topic: str, known: Container[str]) -> None:
    if topic not in known:
        note(f"the store has no topic {topic!r} yet")


@click.command("backlog")
@store_argument
@topic_option
@click.option("--group", help="Only this group.")
@config_option
@json_option
def backlog_command(
    path: StorePlace,
    topic: str | None,
    group: str | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """List what the groups have to do: messages to receive, leased, in back-off, dead letters.

    "oldest" is how long the oldest message to receive has been in its queue. A group is listed once
    it has committed or leased. Deliver due messages first with `get`, if no process has the store
    open: the command opens the store, and delivers nothing.
    """
    with stopping(), opened(path, config_of(settings), threads=False) as store:
        found = [
            one
            for one in backlogs_of(store.stats())
            if topic in (None, one[0]) and group in (None, one[1])
        ]
    if as_json:
        for name, of_group, one in found:
            emit({"topic": name, "group": of_group, **asdict(one)})
    elif found:
        names = ("topic", "group", "ready", "leased", "in back-off", "dead letters", "oldest")
        table(names, [(name, of_group, *_cells(one)) for name, of_group, one in found])
    else:
        note("no group has committed or leased yet")


def _cells(one: GroupBacklog) -> tuple[object, ...]:
    oldest = span_text(one.oldest_ms) if one.ready else None
    return one.ready, one.leased, one.in_backoff, one.dead_letters, oldest
