"""Answers of each call, in each way in which it can be made, come when they are durable.

A row has a call and one form of it, which is stored in a way of its own. The answer is durable:

    put, put_many        as the flush of the call says, else that of the store
    receive, ack         as the flush of the store says
    the others           always
"""

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.bench import Bench
from tests.support.durable.answering import WAYS, Answering
from tests.support.durable.recorder import Recorder
from tests.support.inside import inside
from timerstore import AckResult, TimerStore
from timerstore.api import StoreApi

FLUSHES = ("sync", "async")
_NEW = "{new}"  # in a text: replaced by one that was not used before
_BODIES = [b"x"] * 4
_LARGE = bytes(300_000)
_IDS = [f"{_NEW}{k}" for k in range(4)]

_SOON = {"delay": 10}
_PUTS: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("put", "t", b"x", _SOON),
    ("put", "t", b"x", {}),
    ("put", f"topic-{_NEW}", b"x", _SOON),
    ("put", "t", b"x", {"level": 2}),
    ("put", "t", b"x", _SOON | {"tags": "a", "keys": ["k"], "properties": {"p": "v"}}),
    ("put", "t", b"x", _SOON | {"message_id": _NEW}),
    ("put", "t", b"x", {"check_after": 10}),
    ("put", "prior", b"x", _SOON | {"priority": 3}),
    ("put", "t", b"x", {"spread": 60}),
    ("put", "t", b"x", _SOON | {"key": _NEW, "replace": True}),
    ("put", "t", b"x", _SOON | {"key": "kept", "replace": True}),
    ("put", "t", _LARGE, _SOON),
    ("put_many", "t", _BODIES, _SOON),
    ("put_many", "t", _BODIES, {}),
    ("put_many", f"topic-{_NEW}", _BODIES, _SOON),
    ("put_many", "t", _BODIES, _SOON | {"message_ids": _IDS}),
    ("put_many", "t", _BODIES, _SOON | {"message_ids": [_NEW, None, None, f"{_NEW}b"]}),
    ("put_many", "t", _BODIES, {"delay": [1, 2, 3, 4], "keys": ["a", ["b", "c"], "d", []]}),
    ("put_many", "t", _BODIES, {"level": 2}),
    ("put_many", "prior", _BODIES, _SOON | {"priority": [1, 1, 2, 3]}),
    ("put_many", "t", _BODIES, {"spread": 60}),
    ("put_many", "t", [_LARGE] * 4, _SOON),
    ("put_many", "t", _BODIES, _SOON | {"atomic": True}),
    ("put_many", "t", _BODIES, _SOON | {"atomic": True, "message_ids": _IDS}),
]


def _filled(value: Any, new: str) -> Any:
    """Return arguments with new names in place of `_NEW`."""
    if isinstance(value, str):
        return value.replace(_NEW, new)
    if isinstance(value, list):
        return [_filled(one, new) for one in value]
    if isinstance(value, dict):
        return {name: _filled(one, new) for name, one in value.items()}
    return value


class Row(NamedTuple):
    """A call that is no put."""

    by: str
    prepare: Callable[[TimerStore], Any]
    call: Callable[[Any, Any], Any]


def _timer(store: TimerStore) -> Any:
    return store.put("t", b"prepared", delay=3600, flush="async")


def _timers(store: TimerStore) -> list[Any]:
    return [_timer(store) for _ in range(4)]


def _ready(store: TimerStore) -> None:
    log = inside(store).log
    log.sync_through(store.put("leased", b"prepared").log_offset + 1)  # else it is not visible


def _leased(store: TimerStore) -> Any:
    _ready(store)
    (found,) = store.receive("leased", "g", lease=600)
    return found


def _some_leased(store: TimerStore) -> list[Any]:
    return [_leased(store) for _ in range(4)]


def _buried(store: TimerStore) -> None:
    assert store.bury(_leased(store)) is AckResult.BURIED


def _half(store: TimerStore) -> Any:
    return store.put("t", b"prepared", check_after=3600, flush="async")


def _checked(store: TimerStore) -> Any:
    log = inside(store).log
    log.sync_through(store.put("t", b"prepared", check_after=0).log_offset + 1)
    (found,) = store.receive("%HALF%t", "shop", lease=600)
    return found


def _recurring(store: TimerStore) -> None:
    store.put_every("t", b"r", every=3600, name="prepared")


def _topic(store: TimerStore) -> None:
    store.put("prepared", b"prepared", delay=3600)


_ROWS = {
    "cancel": Row("always", _timer, lambda one, store: store.cancel(one)),
    "cancel by handle": Row("always", _timer, lambda one, store: store.cancel(one.handle)),
    "cancel_many": Row("always", _timers, lambda some, store: store.cancel_many(some)),
    "reschedule": Row("always", _timer, lambda one, store: store.reschedule(one, delay=60)),
    "reschedule to now": Row("always", _timer, lambda one, store: store.reschedule(one, delay=0)),
    "receive": Row("store", _ready, lambda _, store: store.receive("leased", "g", lease=600)),
    "receive of topics": Row(
        "store", _ready, lambda _, store: store.receive(["t", "leased"], "h", max_count=50)
    ),
    "ack": Row("store", _leased, lambda one, store: store.ack(one)),
    "ack_many": Row("store", _some_leased, lambda some, store: store.ack_many(some)),
    "nack": Row("always", _leased, lambda one, store: store.nack(one, delay=600)),
    "nack at once": Row("always", _leased, lambda one, store: store.nack(one, delay=0)),
    "extend": Row("always", _leased, lambda one, store: store.extend(one, lease=900)),
    "renew": Row("always", _leased, lambda one, store: store.renew(one, lease=900)),
    "bury": Row("always", _leased, lambda one, store: store.bury(one)),
    "bury with a reason": Row("always", _leased, lambda one, store: store.bury(one, error="e")),
    "nack with a reason": Row("always", _leased, lambda one, store: store.nack(one, error="e")),
    "commit": Row("always", _half, lambda one, store: store.commit(one)),
    "commit of a check": Row("always", _checked, lambda one, store: store.commit(one)),
    "rollback": Row("always", _half, lambda one, store: store.rollback(one)),
    "rollback of a check": Row("always", _checked, lambda one, store: store.rollback(one)),
    "requeue": Row("always", _buried, lambda _, store: store.requeue("g")),
    "put_every": Row(
        "always", lambda _: None, lambda _, store: store.put_every("t", b"r", every=3600)
    ),
    "delete_topic": Row("always", _topic, lambda _, store: store.delete_topic("prepared")),
    "cancel_every": Row("always", _recurring, lambda _, store: store.cancel_every("prepared")),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FLUSHES)
def answering(way: str, request: pytest.FixtureRequest, disk: Path, recorder: Recorder) -> Any:
    one = Answering(disk, recorder, way, request.param)
    with one.opened():
        one.store.put("t", b"first", delay=3600)
        one.store.put("t", b"first", delay=3600, key="kept", replace=True)
        one.store.put("prior", b"first", delay=3600, priority=1)
        _leased(one.store)
        yield one


NOT_APPENDING = {
    "begin_pull", "begin_pull_batch", "begin_receive", "committed", "congestion", "consumer",
    "dead_letters", "explain", "flush", "histogram", "lease_consumer", "offset_at", "pace",
    "pending", "pull", "pull_batch", "query", "recurring", "stats", "timing_distribution",
    "topics", "backlog", "heartbeat",
}  # fmt: skip
"""Calls that read, that make other calls, or whose result is not kept."""


def test_table_has_each_call_that_appends() -> None:
    calls = {
        name for name, one in vars(StoreApi).items() if not name.startswith("_") and callable(one)
    }
    in_table = {name.split(" ")[0] for name in _ROWS} | {name for name, *_ in _PUTS}
    assert calls - NOT_APPENDING == in_table


def _reopened(answering: Answering, root: Path) -> Bench:
    return Bench(root, answering.config, answering.clock.now_ms)


def _state(store: TimerStore) -> list[tuple[str, int]]:
    return sorted((one.message_id, one.due_ms) for one in store.pending())


def test_put_is_answered_as_durable_as_its_flush_says(
    answering: Answering, recorder: Recorder, tmp_path: Path
) -> None:
    store, wrong = answering.store, []
    other = next(one for one in FLUSHES if one != answering.config.flush)
    for number, (name, topic, body, given) in enumerate(_PUTS):
        for flush in (None, other):
            text = f"{name} {topic} {given}, flush={flush}"
            options = given if flush is None else given | {"flush": flush}
            new = f"n{number}{flush}"
            answering.sync()
            _, problem = answering.make(
                methodcaller(name, *_filled([topic, body], new), **_filled(options, new))
            )
            if (flush or answering.config.flush) == "sync":
                wrong += [f"{text}: {problem}"] if problem else []
            elif not problem and body is not _LARGE and _LARGE not in body:
                wrong.append(f"{text}: it waited for a sync")
    assert not wrong, "\n".join(wrong)
    store.flush()
    found = _reopened(answering, recorder.cut(answering.root, tmp_path / "cut"))
    assert _state(found.store) == _state(store)
    found.close()


_REPEATED: list[tuple[str, Any, dict[str, Any]]] = [
    ("put", b"x", {"message_id": _NEW}),
    ("put_many", [b"x"], {"message_ids": [_NEW]}),
    ("put_many", [b"x"], {"message_ids": [_NEW], "atomic": True}),
    ("put_many", _BODIES, {"message_ids": [_NEW, f"{_NEW}b", f"{_NEW}c", None]}),
    ("put_many", _BODIES, {"message_ids": [None, f"{_NEW}b", f"{_NEW}c", _NEW]}),
]


@pytest.mark.parametrize("is_first_durable", [True, False])
def test_repeated_id_is_answered_when_the_first_message_is_durable(
    answering: Answering, is_first_durable: bool
) -> None:
    store, wrong = answering.store, []
    other = next(one for one in FLUSHES if one != answering.config.flush)
    for number, (name, body, given) in enumerate(_REPEATED):
        for flush in (None, other):
            new = f"n{number}{flush}"
            first = store.put("t", b"x", delay=10, message_id=new, flush="async")
            if is_first_durable:
                answering.sync()
            options = (
                _filled(given, new) | {"delay": 10} | ({} if flush is None else {"flush": flush})
            )
            is_sync = (flush or answering.config.flush) == "sync"

            def first_is_durable(log_offset: int = first.log_offset) -> str:
                return "" if answering.is_durable(log_offset) else "the first is not durable"

            _, problem = answering.make(
                methodcaller(name, "t", body, **options),
                answering.wrong if is_sync else first_is_durable,
            )
            wrong += [f"{name} {options}: {problem}"] if problem else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("is_prepared_durably", [True, False])
def test_change_is_answered_when_it_is_durable(
    answering: Answering, recorder: Recorder, tmp_path: Path, is_prepared_durably: bool
) -> None:
    store, wrong = answering.store, []
    for name, row in _ROWS.items():
        prepared = row.prepare(store)
        if is_prepared_durably:
            answering.sync()
        found, problem = answering.make(partial(row.call, prepared))
        assert found, name
        if row.by == "always" or answering.config.flush == "sync":
            wrong += [f"{name}: {problem}"] if problem else []
    assert not wrong, "\n".join(wrong)
    store.flush()
    found = _reopened(answering, recorder.cut(answering.root, tmp_path / "cut"))
    assert _state(found.store) == _state(store)
    found.close()
