"""Commands `ls` and `count`: list topics and groups, and count pending messages.

Thread safety: both read a snapshot and take no lock, except `count` with a time range.
"""

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from timerstore._engine.snapshot.store_summary import StoreSummary, look
from timerstore.cli.opening import opened, stores_in
from timerstore.cli.output import emit, note, say, table
from timerstore.cli.params import (
    INSTANT,
    config_of,
    config_option,
    json_option,
    ms_of,
    path_argument,
    topic_option,
)
from timerstore.cli.summaries import counted, groups, holder_text
from timerstore.cli.text import plural, size_text


@click.command("ls")
@path_argument
@click.option(
    "--groups", "show_groups", is_flag=True, help="List groups and their positions instead."
)
@json_option
def ls_command(path: Path, show_groups: bool, as_json: bool) -> None:
    """List the topics of a store with their queues, pending and delivered messages.

    The numbers are those of the last checkpoint. In a busy store it is at most half a second old.
    """
    found = [look(one, shard) for shard, one in stores_in(path).items()]
    if show_groups:
        _list_groups(found, as_json=as_json)
        return
    found = [counted(one) for one in found]
    rows = [
        (one.shard, topic, one.queue_counts.get(topic), one.pending(topic), one.end(topic))
        for one in found
        for topic in one.topics
    ]
    if as_json:
        for shard, topic, queues, pending, end in rows:
            of_shard = {} if shard is None else {"shard": shard}
            emit({"topic": topic, **of_shard, "queues": queues, "pending": pending, "arrived": end})
        return
    _note_store(path, found)
    if rows:
        names = ("shard", "topic", "queues", "pending", "delivered")
        skip = 1 if found[0].shard is None else 0
        table(names[skip:], [row[skip:] for row in rows])
    else:
        note("no topics yet")


def _note_store(path: Path, found: list[StoreSummary]) -> None:
    """Describe the store in one line on standard error."""
    log = sum(one.store.log_end - one.store.log_begin for one in found)
    what = "a store" if found[0].shard is None else plural(len(found), "shard")
    holders = sorted({holder_text(one) for one in found})
    note(f"{path}: {what}, log {size_text(log)}; {'; '.join(holders)}")


def _list_groups(found: list[StoreSummary], *, as_json: bool) -> None:
    rows = []
    for one in found:
        for topic, group, queue_id, offset in groups(one.path):
            ends = {} if one.counts is None else one.counts.ends.get(topic, {})
            behind = None if one.counts is None else ends.get(queue_id, 0) - offset
            rows.append((one.shard, topic, group, queue_id, offset, behind))
    names = ("shard", "topic", "group", "queue", "committed", "behind")
    if as_json:
        for row in rows:
            fields = dict(zip(names, row, strict=True))
            emit(
                {
                    name: value
                    for name, value in fields.items()
                    if name != "shard" or value is not None
                }
            )
        return
    skip = 1 if found[0].shard is None else 0
    if rows:
        table(names[skip:], [row[skip:] for row in rows])
    else:
        note("no group has committed an offset yet")


@click.command("count")
@path_argument
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
    path: Path,
    topic: str | None,
    begin: datetime | None,
    end: datetime | None,
    settings: tuple[tuple[str, Any], ...],
    as_json: bool,
) -> None:
    """Count pending messages.

    Without --from and --until the command works while another process has the store open. With one
    of them it opens the store itself.
    """
    if begin is not None or end is not None:
        config = config_of(settings)
        with opened(path, config, threads=False) as store:
            pending = store.pending(begin_ms=ms_of(begin), end_ms=ms_of(end), topic=topic)
            number: int = sum(1 for _ in pending)
        holders: list[int | None] = [None]
    else:
        found = [counted(look(one, shard)) for shard, one in stores_in(path).items()]
        number = sum(one.pending(topic) or 0 for one in found)
        holders = [one.holder for one in found]
        if topic is not None and not any(topic in one.topics for one in found):
            note(f"the store has no topic {topic!r} yet")
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
