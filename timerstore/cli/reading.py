"""get, follow: messages that are there, and messages as they come.

Holds:    with the store free, it is opened and what is due is delivered first; where another
          process has it, both read beside that one, as of its last checkpoint.
"""

import importlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import click

from timerstore._engine.read.consumer import Consumer
from timerstore._engine.read.validation import check_queues
from timerstore._engine.snapshot.store_summary import StoreSummary, look
from timerstore.cli.exits import Exit
from timerstore.cli.opening import Store, opened, parts_of, stores_in
from timerstore.cli.output import emit, note, raw, say
from timerstore.cli.params import (
    COUNT,
    MOMENT,
    PLACE,
    SPAN,
    config_of,
    config_option,
    json_option,
    ms_of,
    path_argument,
)
from timerstore.cli.stopping import Stop, stopping
from timerstore.cli.text import Fields, body_of, message_fields, message_line, plural
from timerstore.config import StoreConfig
from timerstore.errors import LockedError
from timerstore.messages import PullStatus
from timerstore.store import TimerStore

_ENDS = {PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.NO_MESSAGE_IN_QUEUE}
_ENDS |= {PullStatus.OFFSET_OVERFLOW_BADLY, PullStatus.NO_MATCHED_LOGIC_QUEUE}
_LOOK_S = 0.25
_PAGE = 256
_LATEST_MS = 1 << 62
_FOLLOWER = "timerstore_follow"
"""The group of `follow` without one: it never commits, so nothing is kept of it."""

Tell = Callable[[Fields], None]


def _reading_options(command: Any) -> Any:
    for one in (
        json_option,
        config_option,
        click.option("--body", "only_body", is_flag=True, help="Bodies as they are, a line each."),
        click.option("--sql", help='Only those whose properties meet this, as "amount > 5".'),
        click.option("--tag", "tags", help='Only those with one of these, as "paid || late".'),
        click.option("--group", help="As this group: from where it has come, and commit."),
    ):
        command = one(command)
    return command


def _teller(*, as_json: bool, only_body: bool) -> Tell:
    if as_json:
        return emit
    if only_body:
        return lambda fields: raw(body_of(fields))
    return lambda fields: say(message_line(fields))


# --- get ------------------------------------------------------------------------------------------


@click.command("get")
@path_argument
@click.argument("topic")
@click.option("-n", "--max", "max_count", type=COUNT, default=32, show_default=True)
@click.option("--queue", "queue_id", type=PLACE, help="Of this queue only.")
@click.option("--offset", type=PLACE, default=0, help="From this place in each queue.")
@click.option("--key", help="Those with this key or message id, those that wait, too.")
@click.option("--wait", type=SPAN, help="With --group: wait so long for the first one.")
@_reading_options
def get_command(**given: Any) -> None:
    """Give messages of a topic that are there, oldest first in each queue.

    What is due is delivered first, unless another process has the store open: then they are read
    beside it. Exit code 1 where there is none.
    """
    path, topic, count = given["path"], given["topic"], given["max_count"]
    tell = _teller(as_json=given["as_json"], only_body=given["only_body"])
    _check_get(given)
    given_config = config_of(given["settings"])
    with stopping() as stop:
        try:
            _leave_brokers(given, [look(one) for one in stores_in(path).values()])
            with opened(path, given_config, threads=given["wait"] is not None) as store:
                found = _get_open(store, given, stop, tell)
        except LockedError:
            if _needs_store(given):
                raise
            beside = importlib.import_module("timerstore.cli.snapshot_follow")
            found = 0
            for fields in islice(beside.messages(path, topic, given), count):
                stop.check()
                tell(fields)
                found += 1
    if not found:
        note(f"no messages of {topic}")
        raise click.exceptions.Exit(Exit.NOT_SO)


def _check_get(given: dict[str, Any]) -> None:
    if given["key"] is not None and given["group"] is not None:
        raise click.UsageError("--key and --group: wanted one of them")
    if given["wait"] is not None and given["group"] is None:
        raise click.UsageError("--wait: only with --group; `follow` waits without one")


def _leave_brokers(given: dict[str, Any], found: list[StoreSummary]) -> None:
    """Read a broker's store as another process's: opening it would take it over."""
    if not _needs_store(given) and any(one.is_brokers for one in found):
        note(
            "a broker wrote it: read as it lies, nothing is delivered; put or --group take it over"
        )
        raise LockedError("a broker's")


def _needs_store(given: dict[str, Any]) -> bool:
    """Whether it cannot be read beside another process."""
    return bool(given["group"] or given.get("key") or given["sql"])


def _get_open(store: Store, given: dict[str, Any], stop: Stop, tell: Tell) -> int:
    topic, count = given["topic"], given["max_count"]
    if given["wait"] is None:
        settle(store, stop)
    if given["key"] is not None:
        found = store.query(topic, given["key"], max_count=count)
        for message in found:
            tell(message_fields(message))
        return len(found)
    if given["group"] is not None:
        return _get_group(store, given, stop, tell)
    done = 0
    for shard, one in parts_of(store).items():
        for fields in islice(_pages(one, topic, given), count - done):
            stop.check()
            tell(fields if shard is None else {**fields, "shard": shard})
            done += 1
    return done


def _get_group(store: Store, given: dict[str, Any], stop: Stop, tell: Tell) -> int:
    done, wait = 0, given["wait"].total_seconds() if given["wait"] is not None else 0.0
    filters = {"tags": given["tags"], "sql": given["sql"]}
    with store.consumer(given["topic"], given["group"], **filters) as consumer:
        while done < given["max_count"]:
            step = min(wait, _LOOK_S)
            messages = consumer.poll(min(_PAGE, given["max_count"] - done), step)
            for message in messages:
                tell(message_fields(message))
            if messages:
                consumer.commit()
                done, wait = done + len(messages), 0.0
            elif wait <= step or stop.is_asked:
                break
            else:
                wait -= step
    return done


def _pages(store: TimerStore, topic: str, given: dict[str, Any]) -> Iterator[Fields]:
    queues = store.topics().get(topic, 0)
    if given["queue_id"] is not None:
        check_queues([given["queue_id"]], queues)
    for queue_id in range(queues):
        if given["queue_id"] not in (None, queue_id):
            continue
        offset = given["offset"]
        while True:
            filters = {"tags": given["tags"], "sql": given["sql"]}
            page = store.pull(topic, queue_id, offset, max_count=_PAGE, **filters)
            yield from map(message_fields, page.messages)
            if page.status in _ENDS or page.next_offset == offset:
                break
            offset = page.next_offset


def settle(store: Store, stop: Stop) -> None:
    """Step the services, of a store without threads, until all that is due is delivered."""
    for one in parts_of(store).values():
        services = one.services().values()
        while any(service.step() for service in services):
            stop.check()


# --- follow ---------------------------------------------------------------------------------------


@click.command("follow")
@path_argument
@click.argument("topic")
@click.option("-n", "--max", "max_count", type=COUNT, help="End after so many.")
@click.option("--from", "begin", type=MOMENT, help="Begin with what came at this time.")
@click.option("--all", "from_start", is_flag=True, help="Begin with the first that is kept.")
@click.option("--for", "within", type=SPAN, help="End after this time.")
@_reading_options
def follow_command(**given: Any) -> None:
    """Give messages of a topic as they come, until Ctrl-C.

    The store is opened, and delivers while this runs; where another process has it open, they are
    read beside it, half a second late at most. With --group each is committed once it is written.
    """
    if given["group"] and (given["begin"] or given["from_start"]):
        raise click.UsageError("--group: goes on where it has come; no --from or --all beside it")
    if given["begin"] and given["from_start"]:
        raise click.UsageError("--from and --all: wanted one of them")
    tell = _teller(as_json=given["as_json"], only_body=given["only_body"])
    config = config_of(given["settings"])
    before = [look(one, shard) for shard, one in stores_in(given["path"]).items()]
    with stopping() as stop:
        stop.end_within(given["within"])
        tell = _counted(tell, given["max_count"], stop)
        try:
            _leave_brokers(given, before)
            _follow_open(given, config, before, stop, tell)
        except LockedError as error:
            if _needs_store(given):
                raise
            if not any(one.is_brokers for one in before):
                who = error.got or "another process"
                note(f"{who} has it open: reading beside it, half a second late at most")
            beside = importlib.import_module("timerstore.cli.snapshot_follow")
            beside.follow(given, before, stop, tell)


def _counted(tell: Tell, count: int | None, stop: Stop) -> Tell:
    """Tell at most `count` messages, then ask for the end; all beyond are not told."""
    left = count

    def tell_one(fields: Fields) -> None:
        nonlocal left
        if left == 0:
            return
        tell(fields)
        if left is not None:
            left -= 1
            if not left:
                stop.finish()

    return tell_one


def _follow_open(
    given: dict[str, Any],
    config: StoreConfig | None,
    before: list[StoreSummary],
    stop: Stop,
    tell: Tell,
) -> None:
    with opened(given["path"], config) as store:
        _tell_open(store, given)
        parts = parts_of(store)
        filters = {"tags": given["tags"], "sql": given["sql"]}
        group = given["group"] or _FOLLOWER
        consumers = [
            (shard, one.consumer(given["topic"], group, **filters)) for shard, one in parts.items()
        ]
        if not given["group"]:
            for (_, consumer), known in zip(consumers, before, strict=True):
                _place(consumer, known, given)
        while not stop.is_asked:
            for shard, consumer in consumers:
                _poll(consumer, shard, stop, tell, commit=bool(given["group"]), of=len(parts))


def _tell_open(store: Store, given: dict[str, Any]) -> None:
    waiting = store.stats()["pending_by_topic"].get(given["topic"], 0)
    note(f"following {given['topic']}: {plural(waiting, 'message')} to come; Ctrl-C ends")


def _place(consumer: Consumer, known: StoreSummary, given: dict[str, Any]) -> None:
    """Have it begin where it was asked to; else behind what was there before the store opened."""
    if given["from_start"]:
        return
    if given["begin"] is not None:
        consumer.seek(time_ms=ms_of(given["begin"]))
    elif known.counts is None:
        consumer.seek(time_ms=_LATEST_MS)
    else:
        ends = known.counts.ends.get(given["topic"], {})
        for queue_id in consumer.queues:
            consumer.seek(ends.get(queue_id, 0), queue_id=queue_id)


def _poll(
    consumer: Consumer, shard: int | None, stop: Stop, tell: Tell, *, commit: bool, of: int
) -> None:
    for message in consumer.poll(_PAGE, _LOOK_S / of):
        if stop.is_asked:
            return  # not told, so it is not committed
        fields = message_fields(message)
        tell(fields if shard is None else {**fields, "shard": shard})
        if commit:
            consumer.commit(message)
