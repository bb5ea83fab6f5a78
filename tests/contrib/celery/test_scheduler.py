"""`celery beat` with its schedule in the store."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, crontab, schedule

from tests.contrib.celery.kombu_bench import KombuBench
from timerstore.contrib.celery import Scheduler
from timerstore.contrib.celery.scheduler import terms_of
from timerstore.errors import UnavailableError


@pytest.fixture
def app(kombu_bench: KombuBench) -> Iterator[Any]:
    found = Celery("shop", set_as_current=False)
    found.conf.broker_url = kombu_bench.url
    found.conf.timezone = "Europe/Berlin"
    found.conf.result_expires = None  # no entry for a clean-up of results
    yield found
    found.close()


def _define(app: Any, **entries: dict[str, Any]) -> Scheduler:
    app.conf.beat_schedule = {name: {"task": "report", **one} for name, one in entries.items()}
    found = Scheduler(app)
    found.tick()
    found.close()
    return found


def _names(kombu_bench: KombuBench) -> list[str]:
    return [one.name.rpartition(".")[0] for one in kombu_bench.store.recurring()]


def test_entries_are_definitions_of_the_store(app: Any, kombu_bench: KombuBench) -> None:
    _define(
        app,
        hourly={"schedule": timedelta(hours=1), "options": {"queue": "reports", "missed": "skip"}},
        nightly={"schedule": crontab(minute="*/20", hour=2), "args": [1]},
    )
    hourly, nightly = kombu_bench.store.recurring()
    assert hourly.name.startswith("beat.shop.hourly.")
    assert (hourly.topic, hourly.every_ms, hourly.missed) == ("reports", 3_600_000, "skip")
    assert (nightly.topic, nightly.cron) == ("celery", "0,20,40 2 * * *")
    assert (nightly.timezone, nightly.missed) == ("Europe/Berlin", "one")


def test_second_beat_writes_the_same_definitions(app: Any, kombu_bench: KombuBench) -> None:
    entries: dict[str, Any] = {"a": {"schedule": 60, "args": [1], "options": {"expires": 5}}}
    _define(app, **entries)
    before = kombu_bench.store.recurring()
    other = Celery("shop", set_as_current=False)
    for name in ("broker_url", "timezone", "result_expires"):
        other.conf[name] = app.conf[name]
    thread = threading.Thread(target=_define, args=(other,), kwargs=entries)  # as another process
    thread.start()
    thread.join()
    after = kombu_bench.store.recurring()
    assert [(one.name, one.made_ms) for one in after] == [(one.name, one.made_ms) for one in before]


def test_changed_and_removed_entries_follow(app: Any, kombu_bench: KombuBench) -> None:
    kombu_bench.store.put_every("other", b"x", every=60, name="other")
    _define(app, a={"schedule": 60}, b={"schedule": 60}, c={"schedule": 60})
    _define(app, a={"schedule": 60}, b={"schedule": 90})
    found = {one.name.rpartition(".")[0]: one.every_ms for one in kombu_bench.store.recurring()}
    assert found == {"": 60_000, "beat.shop.a": 60_000, "beat.shop.b": 90_000}


def test_tick_writes_what_was_added(app: Any, kombu_bench: KombuBench) -> None:
    found = _define(app, a={"schedule": 60})
    assert found.tick() == found.max_interval
    found.add(name="b", task="report", schedule=60)
    found.tick()
    found.close()
    assert _names(kombu_bench) == ["beat.shop.a", "beat.shop.b"]


def test_scheduler_is_made_without_a_server(app: Any, tmp_path: Path) -> None:
    """A signal handler of beat makes it if it is missing; beat could not be stopped by one."""
    app.conf.broker_url = f"timerstore://{tmp_path / 'absent.sock'}"
    app.conf.broker_connection_max_retries = 1
    app.conf.beat_schedule = {"a": {"task": "report", "schedule": 60}}
    found = Scheduler(app)
    assert "a" in found.schedule
    found.close()


def test_tick_without_a_server_comes_again(
    app: Any, kombu_bench: KombuBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.conf.broker_connection_max_retries = 1
    found = _define(app, a={"schedule": 60})
    monkeypatch.setattr(found, "_ensure_connected", _no_server)
    found.add(name="b", task="report", schedule=60)
    assert found.tick() == 5
    assert _names(kombu_bench) == ["beat.shop.a"]
    found.close()


def _no_server() -> None:
    raise UnavailableError("no server was found")


def test_each_run_is_a_task_of_its_own(app: Any, kombu_bench: KombuBench) -> None:
    _define(app, a={"schedule": 1, "args": ["x"], "options": {"expires": 60, "priority": 3}})
    with kombu_bench.connect() as connection:
        queue = app.amqp.queues["celery"](connection.default_channel)
        found: list[Any] = []
        while len(found) < 2:
            if (message := queue.get(no_ack=True)) is not None:
                found.append(message)
    first, second = found
    assert first.headers["id"] != second.headers["id"]
    assert first.headers["id"] == first.properties["correlation_id"] == first.headers["root_id"]
    assert first.headers["task"] == "report"
    assert first.payload[0] == ["x"]
    assert first.headers["expires"] < second.headers["expires"]


def test_entry_for_a_broadcast_exchange_is_refused(app: Any, kombu_bench: KombuBench) -> None:
    with kombu_bench.connect() as connection:
        exchange = kombu.Exchange("news", "fanout")
        kombu.Queue("own", exchange, auto_delete=True)(connection.default_channel).declare()
        options = {"exchange": "news", "routing_key": "x", "exchange_type": "fanout"}
        with pytest.raises(Exception, match="sends to broadcast queues"):
            _define(app, a={"schedule": 60, "options": options})


# --- schedules ---


class Sunset(BaseSchedule):  # type: ignore[misc]
    """As Celery's solar, which needs a package for astronomy."""


def _entry(app: Any, found: Any, **more: Any) -> ScheduleEntry:
    return ScheduleEntry("e", "report", schedule=found, app=app, **more)


@pytest.mark.parametrize(
    ("given", "cron"),
    [
        ({}, "* * * * *"),
        ({"minute": 0, "hour": "*/6"}, "0 0,6,12,18 * * *"),
        ({"minute": "5,7-9", "day_of_week": "mon-fri"}, "5,7,8,9 * * * 1,2,3,4,5"),
        ({"minute": 0, "hour": 0, "day_of_month": "1", "month_of_year": "*/6"}, "0 0 1 1,7 *"),
    ],
)
def test_crontab_becomes_a_cron_expression(app: Any, given: dict[str, Any], cron: str) -> None:
    assert terms_of(_entry(app, crontab(**given, app=app))) == {
        "cron": cron,
        "timezone": "Europe/Berlin",
    }


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Sunset(), "Sunset is no fixed interval and no crontab"),
        (crontab(day_of_month=13, day_of_week=5), "leave one at"),
        (schedule(60, relative=True), "relative=True rounds the time"),
    ],
)
def test_other_schedules_are_refused_with_the_reason(app: Any, found: Any, reason: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=rf"beat_schedule\['e'\] cannot .* {reason}"):
        terms_of(_entry(app, found))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"options": {"countdown": 5}}, "the option countdown is counted from the call"),
        ({"args": [BeatLazyFunc(int)]}, "BeatLazyFunc is called for each run"),
    ],
)
def test_option_that_differs_from_run_to_run_is_refused(
    app: Any, kombu_bench: KombuBench, entry: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ImproperlyConfigured, match=reason):
        _define(app, a={"schedule": 60, **entry})
    assert kombu_bench.store.recurring() == []
