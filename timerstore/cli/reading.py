"""Commands `get` and `follow`: read delivered messages, and new messages as they arrive.

If no other process has the store open, the commands open it, so due messages are delivered.
Otherwise they read a snapshot as of the last checkpoint (snapshot_follow.py).
"""

import importlib
import secrets
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from timerstore._engine.read.pull_request import check_queues
from timerstore._engine.snapshot.live_stats import StoreSummary, counted, look
from timerstore.cli.exits import Exit
from timerstore.cli.opening import Store, opened, parts_of, stores_in
from timerstore.cli.output import emit, note, raw, say
from timerstore.cli.params import (
    COUNT,
    INSTANT,
    PLACE,
    SPAN,
    StorePlace,
    StoreUrl,
    config_of,
    config_option,
    json_option,
    ms_of,
    store_argument,
)
from timerstore.cli.served import queue_ends
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.text import Fields, WriteMessage, body_of, message_fields, message_line, plural
from timerstore.errors import LockedError
from timerstore.shards import ShardedStore
from timerstore.store import ConnectedStore, TimerStore
from timerstore.types.config import StoreConfig
from timerstore.types.messages import PullStatus

_ENDS = {PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.NO_MESSAGE_IN_QUEUE}
_ENDS |= {PullStatus.OFFSET_OVERFLOW_BADLY, PullStatus.NO_MATCHED_LOGIC_QUEUE}
_LOOK_S = 0.25
_PAGE = 256
_MAX_HELP = "Read at most so many messages."
_LATEST_MS = 1 << 62
_FOLLOWER = "timerstore_follow"
"""The group of `follow` without --group. It never commits, so the store keeps no offset for it."""


def _reading_options(command: Any) -> Any:
    for one in (
        json_option,
        config_option,
        click.option("--body", "only_body", is_flag=True, help="Write bodies only, one per line."),
        click.option("--sql", help='Only messages whose properties match, such as "amount > 5".'),
        click.option(
            "--tag", "tags", help='Only messages with one of these tags, such as "paid || late".'
        ),
        click.option("--group", help="Read from the position of this group, and commit."),
    ):
        command = one(command)
    return command


def _message_writer(*, as_json: bool, only_body: bool) -> WriteMessage:
    if as_json:
        return emit
    if only_body:
        return lambda fields: raw(body_of(fields))
    return lambda fields: say(message_line(fields))


# --- get ------------------------------------------------------------------------------------------


@click.command("get")
@store_argument
@click.argument("topic")
@click.option("-n", "--max", "max_count", type=COUNT, default=32, show_default=True, help=_MAX_HELP)
@click.option("--queue", "queue_id", type=PLACE, help="Only this queue.")
@click.option("--offset", type=PLACE, default=0, help="Start at this offset in each queue.")
@click.option("--key", help="Only messages with this key or message id, including pending ones.")
@click.option("--wait", type=SPAN, help="With --group: wait for the first message for so long.")
@_reading_options
def get_command(**options: Any) -> None:
    """Read the delivered messages of a topic, oldest first in each queue.

    The command delivers due messages first. If another process has the store open, it reads the
    messages as of the last checkpoint. The exit code is 1 if there are no messages.
    """
    path, topic, count = options["path"], options["topic"], options["max_count"]
    write = _message_writer(as_json=options["as_json"], only_body=options["only_body"])
    _check_get(options)
    config = config_of(options["settings"])
    with stopping() as stop:
        try:
            _keep_broker_store(options, summaries(path))
            with opened(path, config, threads=options["wait"] is not None) as store:
                found = _get_open(store, options, stop, write)
        except LockedError:
            if _needs_store(options):
                raise
            snapshot = importlib.import_module("timerstore.cli.snapshot_follow")
            found = 0
            for fields in islice(snapshot.messages(path, topic, options), count):
                stop.check()
                write(fields)
                found += 1
    if not found:
        note(f"no messages of {topic}")
        raise click.exceptions.Exit(Exit.NOT_SO)


def summaries(place: StorePlace) -> list[StoreSummary]:
    """Return a summary of each store; none of a served store, whose files may be elsewhere."""
    if isinstance(place, StoreUrl):
        return []
    return [look(one, shard) for shard, one in stores_in(place).items()]


def _check_get(options: dict[str, Any]) -> None:
    if options["key"] is not None and options["group"] is not None:
        raise click.UsageError("--key and --group: wanted one of them")
    if options["wait"] is not None and options["group"] is None:
        raise click.UsageError("--wait: only with --group; use `follow` to wait without a group")


def _keep_broker_store(options: dict[str, Any], found: list[StoreSummary]) -> None:
    """Raise LockedError for the store of a broker, so that it is read without opening it.

    Opening it would take the store over from the broker.
    """
    if not _needs_store(options) and any(one.is_brokers for one in found):
        note(
            "a broker wrote the store: its files are read and no message is delivered; "
            "put and --group take the store over"
        )
        raise LockedError("the store of a broker")


def _needs_store(options: dict[str, Any]) -> bool:
    """Return whether the command cannot use a snapshot."""
    return bool(options["group"] or options.get("key") or options["sql"])


def _get_open(store: Store, options: dict[str, Any], stop: Stop, write: WriteMessage) -> int:
    topic, count = options["topic"], options["max_count"]
    if options["wait"] is None:
        settle(store, stop)
    if options["key"] is not None:
        found = store.query(topic, options["key"], max_count=count)
        for message in found:
            write(message_fields(message))
        return len(found)
    if options["group"] is not None:
        return _get_group(store, options, stop, write)
    done = 0
    for shard, one in parts_of(store).items():
        for fields in islice(_pages(one, topic, options), count - done):
            stop.check()
            write(fields if shard is None else {**fields, "shard": shard})
            done += 1
    return done


def _get_group(store: Store, options: dict[str, Any], stop: Stop, write: WriteMessage) -> int:
    done, wait = 0, options["wait"].total_seconds() if options["wait"] is not None else 0.0
    filters = {"tags": options["tags"], "sql": options["sql"]}
    with store.consumer(options["topic"], options["group"], **filters) as consumer:
        while done < options["max_count"]:
            step = min(wait, _LOOK_S)
            messages = consumer.poll(min(_PAGE, options["max_count"] - done), step)
            for message in messages:
                write(message_fields(message))
            if messages:
                consumer.commit()
                done, wait = done + len(messages), 0.0
            elif wait <= step or stop.is_asked:
                break
            else:
                wait -= step
    return done


def _pages(
    store: TimerStore | ConnectedStore, topic: str, options: dict[str, Any]
) -> Iterator[Fields]:
    queues = store.topics().get(topic, 0)
    if options["queue_id"] is not None:
        check_queues([options["queue_id"]], queues)
    for queue_id in range(queues):
        if options["queue_id"] not in (None, queue_id):
            continue
        offset = options["offset"]
        while True:
            filters = {"tags": options["tags"], "sql": options["sql"]}
            page = store.pull(topic, queue_id, offset, max_count=_PAGE, **filters)
            yield from map(message_fields, page.messages)
            if page.status in _ENDS or page.next_offset == offset:
                break
            offset = page.next_offset


def settle(store: Store, stop: Stop) -> None:
    """Step the services of a store without threads until no message is due.

    Those of a served store run in its process.
    """
    for one in parts_of(store).values():
        if not isinstance(one, TimerStore):
            continue
        services = one.services().values()
        while any(service.step() for service in services):
            stop.check()


# --- follow ---------------------------------------------------------------------------------------


@click.command("follow")
@store_argument
@click.argument("topic")
@click.option("-n", "--max", "max_count", type=COUNT, help="Exit after so many messages.")
@click.option("--from", "begin", type=INSTANT, help="Start with messages delivered at this time.")
@click.option("--all", "from_start", is_flag=True, help="Start with the oldest message.")
@click.option("--for", "within", type=SPAN, help="Exit after this time.")
@_reading_options
def follow_command(**options: Any) -> None:
    """Read messages of a topic as they arrive, until Ctrl-C.

    The command opens the store and delivers due messages while it runs. If another process has the
    store open, the command reads its files; messages then arrive at most half a second later. With
    --group each message is committed after it is written.
    """
    if options["group"] and (options["begin"] or options["from_start"]):
        raise click.UsageError(
            "--group: starts at the position of the group; wanted no --from or --all"
        )
    if options["begin"] and options["from_start"]:
        raise click.UsageError("--from and --all: wanted one of them")
    write = _message_writer(as_json=options["as_json"], only_body=options["only_body"])
    config = config_of(options["settings"])
    before = [counted(one) for one in summaries(options["path"])]
    with stopping() as stop:
        stop.end_within(options["within"])
        write = _limited(write, options["max_count"], stop)
        try:
            _keep_broker_store(options, before)
            _follow_open(options, config, before, stop, write)
        except LockedError as error:
            if _needs_store(options):
                raise
            if not any(one.is_brokers for one in before):
                holder = error.got or "another process"
                note(f"{holder} has the store open: reading a snapshot, at most half a second late")
            snapshot = importlib.import_module("timerstore.cli.snapshot_follow")
            snapshot.follow(options, before, stop, write)


def _limited(write: WriteMessage, count: int | None, stop: Stop) -> WriteMessage:
    """Return a writer that stops the command after `count` messages, and ignores later ones."""
    left = count

    def write_one(fields: Fields) -> None:
        nonlocal left
        if left == 0:
            return
        write(fields)
        if left is not None:
            left -= 1
            if not left:
                stop.finish()

    return write_one


def _follow_open(
    options: dict[str, Any],
    config: StoreConfig | None,
    before: list[StoreSummary],
    stop: Stop,
    write: WriteMessage,
) -> None:
    with opened(options["path"], config) as store:
        _note_open(store, options)
        parts = parts_of(store)
        filters = {"tags": options["tags"], "sql": options["sql"]}
        is_served = isinstance(options["path"], StoreUrl)
        group = options["group"] or (_own_follower() if is_served else _FOLLOWER)
        consumers = [
            (shard, one.consumer(options["topic"], group, **filters))
            for shard, one in parts.items()
        ]
        if not options["group"]:
            for k, (_, consumer) in enumerate(consumers):
                ends: dict[int, int] | None
                if isinstance(store, TimerStore | ShardedStore):
                    ends = _unopened_ends(before[k], options)
                else:
                    ends = queue_ends(store, options["topic"], consumer.queues)
                _seek(consumer, ends, options)
        while not stop.is_asked:
            for shard, consumer in consumers:
                _poll(consumer, shard, stop, write, commit=bool(options["group"]), of=len(parts))


def _note_open(store: Store, options: dict[str, Any]) -> None:
    waiting = store.stats()["pending_by_topic"].get(options["topic"], 0)
    note(f"following {options['topic']}: {plural(waiting, 'message')} pending; Ctrl-C ends")


def _unopened_ends(known: StoreSummary, options: dict[str, Any]) -> dict[int, int] | None:
    """Return the ends of the topic's queues before the store was opened, if they are known."""
    return None if known.counts is None else known.counts.ends.get(options["topic"], {})


def _own_follower() -> str:
    """Return a group for this command only: consumers of one group share the messages."""
    return f"{_FOLLOWER}_{secrets.token_hex(6)}"


def _seek(consumer: Any, ends: dict[int, int] | None, options: dict[str, Any]) -> None:
    """Set the start position: as requested, or after the messages that were there before."""
    if options["from_start"]:
        return
    if options["begin"] is not None:
        consumer.seek(time_ms=ms_of(options["begin"]))
    elif ends is None:
        consumer.seek(time_ms=_LATEST_MS)
    else:
        for queue_id in consumer.queues:
            consumer.seek(ends.get(queue_id, 0), queue_id=queue_id)


def _poll(
    consumer: Any, shard: int | None, stop: Stop, write: WriteMessage, *, commit: bool, of: int
) -> None:
    for message in consumer.poll(_PAGE, _LOOK_S / of):
        if stop.is_asked:
            return  # an unwritten message is not committed
        fields = message_fields(message)
        write(fields if shard is None else {**fields, "shard": shard})
        if commit:
            consumer.commit(message)
