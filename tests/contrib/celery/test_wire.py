"""Names and messages on their way into a store."""

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerstore.contrib.celery import wire
from timerstore.errors import MessageError

_NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _message(**headers: Any) -> dict[str, Any]:
    return {"body": "", "headers": headers, "properties": {}}


@given(st.text(min_size=1, max_size=40).filter(lambda text: text.encode("utf-8", "ignore")))
def test_names_are_escaped_both_ways(name: str) -> None:
    try:
        topic = wire.escaped(name)
    except UnicodeEncodeError:
        return  # half a surrogate pair
    assert wire.queue_of(topic) == name
    assert set(topic) <= set("%-_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@pytest.mark.parametrize(
    ("queue", "topic"),
    [("celery", "celery"), ("a.b", "a%2Eb"), ("x@host", "x%40host"), ("a%2Eb", "a%252Eb")],
)
def test_plain_names_stay_and_others_are_escaped(queue: str, topic: str) -> None:
    assert wire.topic_of(queue) == topic


@pytest.mark.parametrize("topic", [wire.BINDINGS_TOPIC, "%RETRY%celery|celery", "%DLQ%celery"])
def test_topics_of_other_uses_are_no_queues(topic: str) -> None:
    assert wire.queue_of(topic) is None
    assert wire.queue_of(wire.topic_of_exchange("e")) is None


@pytest.mark.parametrize("queue", ["", "x" * 114, "." * 38])
def test_queue_name_that_is_no_topic_is_an_error(queue: str) -> None:
    with pytest.raises(MessageError, match="queue: wanted a name of 1 to 113 characters"):
        wire.topic_of(queue)


def test_eta_in_the_future_is_the_due_time() -> None:
    at = _NOW + timedelta(seconds=1.5)
    assert wire.due_ms({"eta": at.isoformat()}, _NOW) == int(at.timestamp() * 1000)


def test_eta_is_never_rounded_down() -> None:
    at = _NOW + timedelta(microseconds=1)
    assert wire.due_ms({"eta": at.isoformat()}, _NOW) == int(_NOW.timestamp() * 1000) + 1


@pytest.mark.parametrize("eta", [None, "", _NOW.isoformat(), "1999-01-01T00:00:00+00:00"])
def test_task_without_a_future_eta_is_due_now(eta: str | None) -> None:
    assert wire.due_ms({"eta": eta}, _NOW) is None


def test_eta_without_an_offset_is_in_the_zone_of_the_application() -> None:
    at = (_NOW + timedelta(hours=1)).replace(tzinfo=None)
    found = wire.due_ms({"eta": at.isoformat()}, _NOW)
    assert found == int((_NOW.timestamp() + 3600) * 1000)  # that of the default application is UTC


@pytest.mark.parametrize("eta", ["tomorrow", 5, "2026-13-01"])
def test_invalid_eta_is_an_error(eta: Any) -> None:
    with pytest.raises(MessageError, match="eta: wanted a time in ISO 8601, got"):
        wire.due_ms({"eta": eta}, _NOW)


def test_expired_task_is_kept_for_workers_to_revoke_it() -> None:
    now_s = time.time()
    expires = datetime.fromtimestamp(now_s + 60, UTC).isoformat()
    found = wire.put_options(_message(expires=expires))["expires_ms"]
    assert found == pytest.approx((now_s + 60) * 1000 + wire.EXPIRED_KEPT_MS, abs=1)
    eta = datetime.fromtimestamp(now_s + 900, UTC).isoformat()
    found = wire.put_options(_message(expires=expires, eta=eta))["expires_ms"]
    assert found == pytest.approx((now_s + 900) * 1000 + wire.EXPIRED_KEPT_MS, abs=1)
    with pytest.raises(MessageError, match="expires: wanted a time in ISO 8601, got 'soon'"):
        wire.put_options(_message(expires="soon"))


@pytest.mark.parametrize(("given", "found"), [(None, 0), (-1, 0), (3, 3), (255, 9), ("x", 0)])
def test_priority_is_0_to_9(given: Any, found: int) -> None:
    assert wire.priority_of({"properties": {"priority": given}}) == found


def test_message_without_priority_does_not_split_its_topic() -> None:
    assert wire.put_options(_message(id="4711")) == {"keys": "4711"}


def test_task_id_of_any_characters_is_a_key() -> None:
    assert wire.put_options(_message(id="a b|c")) == {"keys": "a%20b%7Cc"}


def _run(message_id: str, expires_s: str, body: bytes) -> Any:
    return SimpleNamespace(
        body=body,
        message_id=message_id,
        due_ms=1_000_000,
        properties={wire.EVERY_PROPERTY: expires_s},
    )


def test_each_run_of_a_definition_has_a_task_id_of_its_own() -> None:
    body = wire.pack(_message(id="same", expires=None))
    first, again, second = (
        wire.unpack(_run(one, "-", body), "tag", is_redelivered=False)["headers"]
        for one in ("A", "A", "B")
    )
    assert first["id"] == again["id"] == first["root_id"]
    assert first["id"] not in {"same", second["id"]}
    assert first["expires"] is None


def test_run_expires_after_its_due_time() -> None:
    body = wire.pack(_message(id="same", expires=None))
    found = wire.unpack(_run("A", "2.5", body), "tag", is_redelivered=False)
    assert found["headers"]["expires"] == "1970-01-01T00:16:42.500000+00:00"


@pytest.mark.parametrize("body", [b"\xff", b"no json", b"[]", b"{}"])
def test_message_of_another_program_is_an_error(body: bytes) -> None:
    found = SimpleNamespace(body=body, properties={})
    with pytest.raises(ValueError, match=r"wanted an object|decode|Expecting"):
        wire.unpack(found, "tag", is_redelivered=False)
