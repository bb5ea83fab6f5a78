"""`revoke` and `inspect scheduled`, with the tasks in the store."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery

import timerstore.contrib.celery
from tests.contrib.celery.kombu_bench import KombuBench
from timerstore.contrib.celery import control as control_module


@pytest.fixture
def app(kombu_bench: KombuBench) -> Iterator[Any]:
    found = Celery("shop", set_as_current=False, control=timerstore.contrib.celery.Control)
    found.conf.broker_url = kombu_bench.url
    yield found
    found.close()


def _send(app: Any, queue: str = "celery", **options: Any) -> Any:
    return app.send_task("close", [4711], queue=queue, **options)


def test_revoked_task_leaves_the_store_without_any_worker(
    app: Any, kombu_bench: KombuBench
) -> None:
    result, other = _send(app, countdown=3600), _send(app, "a.b", countdown=3600)
    result.revoke()
    [left] = kombu_bench.store.pending()
    assert left.topic == "a%2Eb"
    assert app.control.remove([result.id, other.id, "none"]) == {
        result.id: "UNKNOWN",  # it is gone
        other.id: "CANCELLED",
        "none": "UNKNOWN",
    }


def test_answer_to_revoke_is_truthful(app: Any) -> None:
    due, waits = _send(app), _send(app, countdown=3600)
    replies = app.control.revoke([due.id, waits.id], reply=True, timeout=0.1)
    assert replies == [{"timerstore": {"ok": {due.id: "ALREADY_DELIVERED", waits.id: "CANCELLED"}}}]


def test_retried_task_that_waits_again_is_removed(app: Any, kombu_bench: KombuBench) -> None:
    """A retry has the id of its task."""
    first = _send(app)
    _send(app, task_id=first.id, countdown=3600)
    assert app.control.remove([first.id]) == {first.id: "CANCELLED"}
    assert list(kombu_bench.store.pending()) == []


def test_inspect_scheduled_lists_the_tasks_of_the_store(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "SCHEDULED_MAX", 3)
    sent = [_send(app, countdown=3600 + k, priority=k).id for k in range(4)]
    said: list[Any] = []
    found = app.control.inspect(timeout=0.1, callback=said.append).scheduled()
    rows = found["timerstore"]
    assert [one["request"]["id"] for one in rows] == sent[:3]
    assert (rows[2]["priority"], rows[2]["request"]["name"]) == (2, "close")
    assert rows[2]["request"]["args"] == "[4711]"
    assert datetime.fromisoformat(rows[0]["eta"]) > datetime.now(UTC)
    assert said == [found]
    assert [one["request"]["id"] for one in app.control.pending()] == sent
    assert list(app.control.pending("other")) == []


def test_question_to_one_worker_is_not_answered_by_the_store(app: Any) -> None:
    _send(app, countdown=3600)
    assert app.control.inspect(["w@host"], timeout=0.05).scheduled() is None


def test_application_with_another_broker_has_no_store() -> None:
    app = Celery("shop", set_as_current=False, control=timerstore.contrib.celery.Control)
    app.conf.broker_url = "memory://"
    assert app.control.remove(["x"]) == {}
    assert next(app.control.pending(), None) is None
    app.close()
