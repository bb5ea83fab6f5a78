"""Puts that are sent again: every form of ids, the windows of both servers, each lost part, and
both clients. A put is stored once, or it raises ConnectionLostError and is stored at most once.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import timerstore
import timerstore.aio
from tests.support.relay import Relay
from tests.support.served_bench import ServedBench
from timerstore import BusyError, ConnectionLostError, PutBatch, PutReceipt, UnavailableError
from timerstore.net import async_remote_store, attempt_limits, connector, repeating
from timerstore.net.attempt_limits import RetryLimit
from timerstore.net.byte_stream import SocketStream
from timerstore.net.call_table import STORE_CALLS
from timerstore.net.repeating import CallAttempt, ClientIds
from timerstore.net.wire_values import column_extension

_HOUR_MS = 3_600_000
_BODIES = [b"0", b"1", b"2"]

Put = tuple[str, tuple[Any, ...], dict[str, Any]]


def _column(*ids: bytes) -> Any:
    return b"".join(ids), np.cumsum([0, *map(len, ids)])


_PUTS: dict[str, Put] = {
    "put": ("put", (b"0",), {}),
    "put, id": ("put", (b"0",), {"message_id": "a"}),
    "none": ("put_many", (_BODIES,), {}),
    "none, column of bodies": ("put_many", (_column(*_BODIES),), {}),
    "none, atomic": ("put_many", (_BODIES,), {"atomic": True}),
    "list": ("put_many", (_BODIES,), {"message_ids": ["a", "b", "c"]}),
    "tuple": ("put_many", (tuple(_BODIES),), {"message_ids": ("a", "b", "c")}),
    "pair": ("put_many", (_BODIES[:2],), {"message_ids": ("a", "b")}),
    "list, atomic": ("put_many", (_BODIES,), {"message_ids": ["a", "b", "c"], "atomic": True}),
    "column": ("put_many", (_BODIES,), {"message_ids": _column(b"a", b"b", b"c")}),
    "list with gaps": ("put_many", (_BODIES,), {"message_ids": ["a", None, ""]}),
    "pair with a gap": ("put_many", (_BODIES[:2],), {"message_ids": (None, "b")}),
    "list of gaps": ("put_many", (_BODIES,), {"message_ids": [None, None, None]}),
    "column with gaps": ("put_many", (_BODIES,), {"message_ids": _column(b"", b"b", b"")}),
    "column of gaps": ("put_many", (_BODIES,), {"message_ids": _column(b"", b"", b"")}),
}
_NEVER_REPEATED: dict[str, Put] = {
    "atomic with gaps": ("put_many", (_BODIES,), {"message_ids": ["a", None, "c"], "atomic": True}),
    "key": ("put", (b"0",), {"key": "k", "delay": 60}),
    "replace": ("put", (b"0",), {"key": "k", "replace": True, "delay": 60}),
    "unique": ("put", (b"0",), {"key": "k", "unique": True, "delay": 60}),
}

_WINDOWS = {  # of the first server, and of the next ones
    "long, long": (_HOUR_MS, _HOUR_MS),
    "long, off": (_HOUR_MS, 0),
    "off, long": (0, _HOUR_MS),
    "long, short": (_HOUR_MS, 1000),
    "short, long": (1000, _HOUR_MS),
}

_PASSED_S = {"0.999 s pass": 0.999, "1 s passes": 1.0}
_LOSSES = {
    "call": ["call"],
    "answer": ["answer"],
    "half": ["half"],
    "call and answer": ["call", "answer"],
    "answers": ["answer", "half", "answer"],
}


def _blocking(url: str, put: Put, **times: float) -> Any:
    name, args, options = put
    with timerstore.connect(url, **times) as store:
        return getattr(store, name)("t", *args, **options)


def _awaited(url: str, put: Put, **times: float) -> Any:
    name, args, options = put

    async def main() -> Any:
        async with timerstore.aio.connect(url, **times) as store:
            return await getattr(store, name)("t", *args, **options)

    return asyncio.run(asyncio.wait_for(main(), 60))


_CLIENTS = pytest.mark.parametrize("made", [_blocking, _awaited])


class _Clock(SimpleNamespace):
    """The clock of the client's rules: it stands still until it is turned."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(repeating, "time", clock)
    return clock


@pytest.fixture
def relay(served: ServedBench) -> Iterator[Relay]:
    one = Relay(served.path, served.path.with_name("relay.sock"))
    yield one
    one.close()


def _stored(served: ServedBench) -> list[bytes]:
    served.bench.turn()
    pending = len(list(served.bench.store.pending()))
    pulled = served.bench.store.pull("t", 0, 0, max_count=100).messages
    return sorted([one.body for one in pulled] + [b"pending"] * pending)


def _duplicates(found: PutReceipt | PutBatch) -> list[bool]:
    return [one.duplicate for one in ([found] if isinstance(found, PutReceipt) else found)]


@_CLIENTS
@pytest.mark.parametrize("losses", _LOSSES)
@pytest.mark.parametrize("form", _PUTS)
def test_put_is_stored_once_whatever_is_lost(
    served: ServedBench, relay: Relay, made: Callable[..., Any], form: str, losses: str
) -> None:
    put = _PUTS[form]
    relay.losses = list(_LOSSES[losses])
    found = made(relay.url, put)
    bodies = _BODIES[:2] if form.startswith("pair") else _BODIES
    assert _stored(served) == (bodies if put[0] == "put_many" else [b"0"])
    assert len(relay.calls) == 1 + sum(one != "call" for one in _LOSSES[losses])
    given = put[2].get("message_ids", [put[2].get("message_id")])
    if "column" in form and "bodies" not in form:
        given = [b"" if form == "column of gaps" else one for one in _texts(given)]
    for one, is_duplicate in itertools.zip_longest(given, _duplicates(found)):
        assert not is_duplicate or one, "an id of the client shows no duplicate"


def _texts(column: Any) -> list[bytes]:
    data, offsets = column
    return [data[begin:end] for begin, end in itertools.pairwise(offsets)]


@_CLIENTS
@pytest.mark.parametrize("losses", _LOSSES)
def test_series_without_a_name_is_stored_once_whatever_is_lost(
    served: ServedBench, relay: Relay, made: Callable[..., Any], losses: str
) -> None:
    relay.losses = list(_LOSSES[losses])
    series = made(relay.url, ("put_every", (b"0",), {"every": 60}))
    assert [one.name for one in served.bench.store.recurring()] == [series.name]


@_CLIENTS
@pytest.mark.parametrize("form", ["list with gaps", "column with gaps"])
def test_message_with_the_callers_id_that_was_stored_before_is_a_duplicate(
    served: ServedBench, relay: Relay, made: Callable[..., Any], form: str
) -> None:
    given = _PUTS[form][2]["message_ids"]
    ids = _texts(given) if "column" in form else given
    assert _duplicates(made(relay.url, _PUTS[form])) == [False] * 3
    assert _duplicates(made(relay.url, _PUTS[form])) == [bool(one) for one in ids]


@_CLIENTS
@pytest.mark.parametrize("form", _NEVER_REPEATED)
def test_put_that_cannot_happen_once_is_not_sent_again(
    served: ServedBench, relay: Relay, made: Callable[..., Any], form: str
) -> None:
    relay.losses = ["answer"]
    with pytest.raises(ConnectionLostError):
        made(relay.url, _NEVER_REPEATED[form])
    assert len(relay.calls) == 1


@_CLIENTS
@pytest.mark.parametrize("passed", _PASSED_S)
@pytest.mark.parametrize("windows", _WINDOWS)
@pytest.mark.parametrize("form", ["put", "put, id", "none", "list with gaps", "column"])
def test_windows_of_all_servers_count(
    served: ServedBench,
    relay: Relay,
    clock: _Clock,
    made: Callable[..., Any],
    form: str,
    windows: str,
    passed: str,
) -> None:
    first_ms, next_ms = _WINDOWS[windows]
    relay.windows_ms, relay.losses = [first_ms, next_ms], ["answer"]

    def pass_time() -> None:
        clock.now_s += _PASSED_S[passed]

    relay.before_loss = pass_time
    is_repeated = min(first_ms, next_ms) > _PASSED_S[passed] * 1000
    if is_repeated:
        made(relay.url, _PUTS[form])
    else:
        with pytest.raises(ConnectionLostError):
            made(relay.url, _PUTS[form])
    assert len(relay.calls) == 1 + is_repeated
    assert len(_stored(served)) == len(_PUTS[form][1][0])


@_CLIENTS
def test_shortest_window_since_the_first_server_counts(
    served: ServedBench, relay: Relay, made: Callable[..., Any]
) -> None:
    """The one in the middle has forgotten the id."""
    relay.windows_ms, relay.losses = [_HOUR_MS, _HOUR_MS, 0, _HOUR_MS], ["answer", "answer"]
    with pytest.raises(ConnectionLostError, match="0 ms"):
        made(relay.url, _PUTS["put"])
    assert relay.calls == ["put", "put"]


@pytest.mark.parametrize("next_ms", [1000, _HOUR_MS])
@pytest.mark.parametrize("repeat_s", [0.999, 1.0])
def test_window_that_ends_during_the_search_for_a_server(
    served: ServedBench, relay: Relay, clock: _Clock, repeat_s: float, next_ms: int
) -> None:
    """The time passes after the connection was lost, before the next one is there."""
    relay.windows_ms, relay.losses = [1000, next_ms], ["answer"]
    with timerstore.connect(relay.url) as store:
        connector = store._connector
        attempt = connector._attempt

        def slow(timeout_s: float) -> Any:
            clock.now_s += repeat_s
            return attempt(timeout_s)

        connector._attempt = slow  # type: ignore[method-assign]
        if repeat_s < 1:
            assert not store.put("t", b"0").duplicate
        else:
            with pytest.raises(ConnectionLostError, match="window of deduplication of 1000 ms"):
                store.put("t", b"0")
    assert _stored(served) == [b"0"]


def test_window_begins_when_the_call_is_sent(clock: _Clock) -> None:
    """The search for the first server takes nothing of it."""
    attempt = CallAttempt(STORE_CALLS["put"], ["t", b"0"], {}, ClientIds())
    lost, limit = ConnectionLostError("lost"), RetryLimit(30.0, 0.5, "a server")
    clock.now_s += 5
    attempt.options_for(1000)
    clock.now_s += 0.999
    assert attempt.pause_s(lost, limit) is not None
    clock.now_s += 0.001
    assert attempt.pause_s(lost, limit) is None


def test_window_does_not_begin_again_with_a_repetition(clock: _Clock) -> None:
    """The first sending may have stored the message."""
    attempt = CallAttempt(STORE_CALLS["put"], ["t", b"0"], {}, ClientIds())
    lost, limit = ConnectionLostError("lost"), RetryLimit(30.0, 0.5, "a server")
    attempt.options_for(1000)
    for _ in range(2):
        assert attempt.pause_s(lost, limit) is not None
        attempt.options_for(1000)
        clock.now_s += 0.5
    with pytest.raises(ConnectionLostError, match="window of deduplication of 1000 ms"):
        attempt.options_for(1000)


@_CLIENTS
def test_put_that_was_not_sent_takes_the_window_of_the_server_that_gets_it(
    served: ServedBench, relay: Relay, clock: _Clock, made: Callable[..., Any]
) -> None:
    """A call that was lost on its way counts as sent: the client cannot know."""
    relay.windows_ms, relay.losses = [0, _HOUR_MS], ["call"]
    with pytest.raises(ConnectionLostError):
        made(relay.url, _PUTS["put"])
    assert relay.calls == []


@_CLIENTS
def test_call_that_may_have_been_made_is_never_said_to_have_changed_nothing(
    served: ServedBench, relay: Relay, made: Callable[..., Any]
) -> None:
    relay.before_loss, relay.losses = relay.stop_listening, ["answer"]
    with pytest.raises(ConnectionLostError, match="lost during the call, and then no server"):
        made(relay.url, _PUTS["put"], retry_for=0.2)
    assert _stored(served) == [b"0"]


def test_call_that_was_not_sent_is_unavailable(relay: Relay) -> None:
    with timerstore.connect(relay.url, retry_for=0.2) as store:
        relay.before_loss, relay.losses = relay.stop_listening, ["answer"]
        with pytest.raises(ConnectionLostError):
            store.topics()
        with pytest.raises(UnavailableError):
            store.put("t", b"1")


@_CLIENTS
@pytest.mark.parametrize("wait", [100, 40])
def test_wait_that_loses_its_connection_again_has_all_of_the_time_for_attempts(
    served: ServedBench,
    relay: Relay,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[..., Any],
    wait: int,
) -> None:
    """It has them until the wait is over: each loss comes 31 s after the one before."""
    clock = _Clock()
    monkeypatch.setattr(attempt_limits, "time", clock)
    monkeypatch.setattr(connector, "time", clock)
    monkeypatch.setattr(async_remote_store, "time", clock)

    def turn() -> None:
        clock.now_s += 31

    relay.before_loss, relay.losses = turn, ["answer", "answer"]
    served.bench.store.put("t", b"0")
    served.bench.turn()
    pull = "pull", (0, 0), {"wait": wait}
    if wait == 100:
        assert [one.body for one in made(relay.url, pull).messages] == [b"0"]
    else:
        with pytest.raises(ConnectionLostError, match="further attempts did not succeed in 30 s"):
            made(relay.url, pull)


@pytest.mark.parametrize("dtype", ["<i8", "<f8"])
def test_delays_lose_the_time_before_the_call_is_sent(clock: _Clock, dtype: str) -> None:
    """A message is due at the time that the caller asked for; one that is late is due at once."""
    seconds = [-1, 0, 3, 10]
    sent = []
    for given in (column_extension(np.array(seconds, dtype)), seconds):
        attempt = CallAttempt(
            STORE_CALLS["put_many"], ["t", [b"x"] * 4], {"delay": given}, ClientIds()
        )
        clock.now_s += 5
        sent.append(attempt.options_for(0)["delay"])
    column, values = sent
    assert np.frombuffer(bytes(column.data), "<f8").tolist() == [-1.0, 0.0, 0.0, 5.0]
    assert values == [-1, 0, 0.0, 5.0]


@pytest.mark.parametrize("name", [one.name for one in STORE_CALLS.values() if one.waits])
@pytest.mark.parametrize(("wait", "left"), [(10, 5.0), (3, 0.0), (0, 0), (-1, -1), (True, True)])
def test_wait_loses_the_time_before_the_call_is_sent(
    clock: _Clock, name: str, wait: float, left: float
) -> None:
    attempt = CallAttempt(STORE_CALLS[name], ["t"], {"wait": wait}, ClientIds())
    clock.now_s += 5
    assert attempt.options_for(0) == {"wait": left}


def test_longest_time_of_a_chain_loses_the_time_before_the_put_is_sent(clock: _Clock) -> None:
    given = {"key": "k", "replace": True, "delay": 20, "wait_at_most": 10}
    attempt = CallAttempt(STORE_CALLS["put"], ["t", b"x"], given, ClientIds())
    clock.now_s += 5
    assert attempt.options_for(_HOUR_MS) == given | {"delay": 15.0, "wait_at_most": 5.0}


@pytest.mark.parametrize(
    ("stored_count", "is_lost", "pause_s"), [(0, False, 0.0), (1, False, None), (0, True, None)]
)
def test_put_is_sent_without_ids_only_if_nothing_of_it_is_stored(
    stored_count: int, is_lost: bool, pause_s: float | None
) -> None:
    attempt = CallAttempt(STORE_CALLS["put_many"], ["t", [b"x"] * 2], {}, ClientIds())
    limit = RetryLimit(30.0, 0.5, "a server")
    attempt.options_for(_HOUR_MS)
    if is_lost:
        assert attempt.pause_s(ConnectionLostError("lost"), limit) is not None
        attempt.options_for(_HOUR_MS)
    error = BusyError("no space for ids")
    error.stored_count = stored_count
    assert attempt.pause_s(error, limit) == pause_s


def test_call_is_not_sent_after_its_window_ended(served: ServedBench) -> None:
    with timerstore.connect(served.url) as store:
        channel = store._connector.channel()
        with pytest.raises(ConnectionLostError, match="the window of deduplication ended"):
            channel.request(STORE_CALLS["put"], ["t", b"0"], {}, is_late=lambda: True)
        assert store.put("t", b"1").queue_offset == 0


def test_call_that_was_sent_in_part_is_sent_to_its_end(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window ends after a signal has interrupted it. The bytes that follow need its rest."""
    send = SocketStream.send

    def interrupted(self: SocketStream, data: bytes, sent: list[int], deadline_s: float) -> bool:
        send(self, data[:5], sent, deadline_s)
        raise KeyboardInterrupt

    with timerstore.connect(served.url) as store:
        channel, is_late = store._connector.channel(), iter([False, True]).__next__
        with monkeypatch.context() as patched:
            patched.setattr(SocketStream, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                channel.request(STORE_CALLS["put"], ["t", b"0"], {}, is_late=is_late)
        store.put("t", b"1")
        while len(messages := store.pull("t", 0, 0).messages) < 2:
            served.bench.turn()  # calls in flight have no order
        assert sorted(one.body for one in messages) == [b"0", b"1"]


def test_awaited_call_is_not_sent_after_its_window_ended(served: ServedBench) -> None:
    """The window ends while the call waits for a server that reads."""

    async def main() -> None:
        is_over = False
        async with timerstore.aio.connect(served.url) as store:
            channel = await store._channel()
            channel.pause_writing()
            put = STORE_CALLS["put"]
            call = asyncio.ensure_future(
                channel.request(put, ["t", b"0"], {}, is_late=lambda: is_over)
            )
            await asyncio.sleep(0)
            is_over = True
            channel.resume_writing()
            with pytest.raises(ConnectionLostError, match="the window of deduplication ended"):
                await call

    asyncio.run(asyncio.wait_for(main(), 60))
    assert "t" not in served.bench.store.topics()
