"""`celery beat -S timerstore.contrib.celery:Scheduler`: entries are definitions in the store.

The store delivers each run, so beat has nothing to do after it has written the definitions. Several
beat processes write the same ones. A definition's name ends in a digest of all that it has: a
changed entry is a new definition, and the old one is removed.

    beat.APPLICATION.ENTRY.DIGEST

Celery itself makes the message of an entry, with its routes and options; a channel takes it down
instead of publishing it.

Raises: ImproperlyConfigured for an entry that cannot be a definition, with the reason.
"""

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from celery import beat
from celery.exceptions import ImproperlyConfigured
from celery.schedules import crontab, schedule

from timerstore.contrib.celery.store_channel import StoreChannel
from timerstore.contrib.celery.wire import EVERY_PROPERTY, pack, priority_of, topic_of

_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")
_TASK_IDS = uuid.UUID("0d3f8f52-8f0e-5d0b-9a43-9c35a1f5a0be")
_RETRY_S = 5.0
_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day_of_month", 1, 31),
    ("month_of_year", 1, 12),
    ("day_of_week", 0, 6),
)

_log = logging.getLogger(__name__)


class BeatDefinition(NamedTuple):
    """The arguments of `put_every` for an entry."""

    name: str
    topic: str
    body: bytes
    options: dict[str, Any]


class Scheduler(beat.Scheduler):
    """Celery's scheduler, on recurring definitions of the store."""

    def setup_schedule(self) -> None:
        """Take the entries of the configuration. The first tick writes them: a signal handler of
        beat makes the scheduler if it is missing, and must not wait for a server.
        """
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)

    def tick(self, *_args: Any, **_options: Any) -> float:
        """Write changes of this process; return the seconds until the next look."""
        if not self.schedules_equal(self.old_schedulers, self.schedule):
            try:
                self.define()
            except self.connection.connection_errors as error:
                _log.error("beat: the schedule could not be written: %s", error)
                return _RETRY_S
        return float(self.max_interval)

    def define(self) -> None:
        """Make the definitions in the store those of the schedule."""
        self._ensure_connected()
        recorder = Recorder(self.connection.transport)
        try:
            wanted = [
                one for entry in self.schedule.values() for one in self._made(recorder, entry)
            ]
            store, prefix = recorder.broker.store, f"beat.{_slug(self.app.main or 'celery', 16)}."
            wanted = [one._replace(name=prefix + one.name) for one in wanted]
            names = {one.name for one in wanted}
            there = {one.name for one in store.recurring() if one.name.startswith(prefix)}
            for name in sorted(there - names):
                store.cancel_every(name)
                _log.info("beat: removed %s", name)
            for one in wanted:
                if one.name not in there:
                    store.put_every(one.topic, one.body, name=one.name, **one.options)
                    _log.info("beat: defined %s", one.name)
        finally:
            recorder.close()
        self.old_schedulers = dict(self.schedule)

    def _made(self, recorder: "Recorder", entry: beat.ScheduleEntry) -> list[BeatDefinition]:
        """Return the definitions of an entry: one for each queue that gets its task."""
        terms = terms_of(entry)
        options = dict(entry.options)
        terms["missed"] = options.pop("missed", "one")
        expires_s = options.pop("expires", getattr(self.app.tasks.get(entry.task), "expires", None))
        arguments = (*(entry.args or ()), *(entry.kwargs or {}).values())
        if any(isinstance(one, beat.BeatLazyFunc) for one in arguments):
            _refuse(entry, "BeatLazyFunc is called for each run; call it in the task")
        for name in ("countdown", "eta"):
            if name in options:
                _refuse(entry, f"the option {name} is counted from the call; change the schedule")
        options.update(task_id=str(uuid.uuid5(_TASK_IDS, entry.name)), retry=False)
        sent = self.Entry(**{**dict(entry), "options": options})
        recorder.recorded.clear()
        self.apply_async(sent, producer=self.Producer(recorder, auto_declare=False), advance=False)
        return [_definition(entry, *one, terms, expires_s) for one in recorder.recorded]


class Recorder(StoreChannel):
    """A channel that keeps the published messages."""

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self.recorded: list[tuple[str, dict[str, Any]]] = []

    def _put(self, queue: str, message: dict[str, Any], **_options: Any) -> None:
        self.recorded.append((queue, message))

    def _put_broadcast(self, exchange: str, _key: str, _message: dict[str, Any]) -> NoReturn:
        raise ImproperlyConfigured(
            f"beat: exchange {exchange!r} sends to broadcast queues, which a recurring definition "
            "does not reach; use a queue"
        )


def terms_of(entry: beat.ScheduleEntry) -> dict[str, Any]:
    """Return the schedule of an entry as arguments of `put_every`."""
    found = entry.schedule
    if isinstance(found, crontab):
        zone = getattr(found.tz, "key", None) or str(found.tz)
        return {"cron": cron_of(entry, found), "timezone": zone}
    if type(found) is not schedule:
        _refuse(entry, f"{type(found).__name__} is no fixed interval and no crontab, and the store "
                "knows no other schedules; run a second beat without -S for it")  # fmt: skip
    if found.relative:
        _refuse(entry, "relative=True rounds the time of each run; use crontab")
    return {"every": found.run_every}


def cron_of(entry: beat.ScheduleEntry, found: crontab) -> str:
    """Return a crontab as the text of a cron expression."""
    texts = []
    for name, first, last in _FIELDS:
        values = getattr(found, name)
        is_all = len(values) == last - first + 1
        texts.append("*" if is_all else ",".join(map(str, sorted(values))))
    if "*" not in (texts[2], texts[4]):
        _refuse(entry, "Celery runs it on days that match day_of_month and day_of_week, cron on "
                "days that match one of them; leave one at *")  # fmt: skip
    return " ".join(texts)


def _refuse(entry: beat.ScheduleEntry, reason: str) -> NoReturn:
    raise ImproperlyConfigured(f"beat_schedule[{entry.name!r}] cannot be kept in a store: {reason}")


def _definition(
    entry: beat.ScheduleEntry,
    queue: str,
    message: dict[str, Any],
    terms: Mapping[str, Any],
    expires_s: Any,
) -> BeatDefinition:
    """Return a definition whose body is the same for each process and each start of beat."""
    message["headers"]["origin"] = "beat"
    message["properties"]["delivery_tag"] = ""
    message["properties"].pop("reply_to", None)  # drawn for each process; only rpc:// reads it
    is_counted = isinstance(expires_s, int | float)
    if is_counted or expires_s is None:
        message["headers"]["expires"] = None  # counted from each run by its receiver
    options = {**terms, "properties": {EVERY_PROPERTY: str(expires_s) if is_counted else "-"}}
    if priority := priority_of(message):
        options["priority"] = priority
    topic, body = topic_of(queue), pack(message)
    text = json.dumps([entry.name, topic, body.decode(), options], default=str, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return BeatDefinition(f"{_slug(entry.name, 20)}.{digest}", topic, body, options)


def _slug(name: str, length: int) -> str:
    return _OTHERS.sub("-", name)[:length] or "-"
