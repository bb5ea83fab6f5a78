"""Each limit of a server, at its edge and one beyond.

A row sets a limit to N, reaches it with raw connections, and returns what the server did: at the
edge all is taken, one beyond is not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import msgspec
import pytest

from tests.support.bench import Bench, small
from tests.support.held_sync import PATIENCE_S, HeldSync
from tests.support.inside import inside
from tests.support.served_bench import RawClient, ServedBench
from tests.support.until import until
from timerstore.errors import ConfigError, ProtocolError
from timerstore.net.connections import REJECTING_MAX
from timerstore.net.running_calls import RunningCalls
from timerstore.net.server_counters import ServerCounters
from timerstore.net.server_limits import ServerLimits
from timerstore.net.wire_messages import encode, memory_of

WAIT = {"wait": 60.0}


@contextmanager
def _served(folder: Path, limits: ServerLimits) -> Iterator[ServedBench]:
    one = ServedBench(
        Bench(folder / "store", small(flush="sync")), folder / "x.sock", limits=limits
    )
    try:
        yield one
    finally:
        one.close()


def _greeted(served: ServedBench, **more: Any) -> RawClient:
    raw = served.raw()
    assert raw.hello(**more)[0] == 4
    return raw


def _kind(reply: list[Any]) -> str:
    return str(reply[2]) if reply[0] == 6 else "taken"


def _stat(served: ServedBench, name: str) -> int:
    return served.server.stats()[f"net_{name}"]


# --- each row: returns "taken", or what the server did with one more ---


def _connections(served: ServedBench, count: int) -> str:
    for _ in range(count - 1):
        _greeted(served)
    return _kind(served.raw().hello())


def _greeting(served: ServedBench, count: int) -> str:
    first = served.raw()
    until(lambda: _stat(served, "connections") == 1)
    for at in range(2, count + 1):
        served.raw()
        until(lambda at=at: _stat(served, "accepted_connections") == at)  # type: ignore[misc]
    try:
        return _kind(first.hello())  # the oldest
    except BrokenPipeError:
        return _kind(first.reply())


def _waits_of_all(served: ServedBench, count: int) -> str:
    for at in range(1, count):
        _greeted(served).send([2, 1, "receive", ["t", "g"], WAIT])
        until(lambda at=at: _stat(served, "waiting_requests") == at)  # type: ignore[misc]
    return _last_wait(served, _greeted(served), 1)


def _waits_of_one(served: ServedBench, count: int) -> str:
    raw = _greeted(served)
    for k in range(1, count):
        raw.send([2, k, "receive", ["t", "g"], WAIT])
    return _last_wait(served, raw, count)


def _last_wait(served: ServedBench, raw: RawClient, call_id: int) -> str:
    raw.send([2, call_id, "receive", ["t", "g"], WAIT])
    raw.send([3, call_id])  # abandons it, if it waits
    found = _kind(raw.reply())
    return "taken" if found == "AbandonedCall" else found


def _in_flight(served: ServedBench, count: int) -> str:
    """Send puts while their sync is held; return whether the last one runs, too."""
    raw = _greeted(served)
    return _last_put(served, raw, [["t", b"x"]] * count)


def _last_put(served: ServedBench, raw: RawClient, puts: list[Any]) -> str:
    served.bench.store.put("t", b"makes the topic")
    held = HeldSync(inside(served.bench.store).log.segments)
    try:
        before = _stat(served, "requests")
        raw.send_all([2, k, "put", one] for k, one in enumerate(puts, 1))
        assert held.is_reached.wait(PATIENCE_S)
        started = _stat(served, "requests") - before
    finally:
        held.is_released.set()
    assert sorted(raw.reply()[1] for _ in puts) == list(range(1, len(puts) + 1)), "none is lost"
    return "taken" if started == len(puts) else f"started {started}"


ROW_BYTES = memory_of(encode([2, 1, "put", ["t", bytes(100)]]))
"""The memory of the arguments of a put of 100 bytes."""


def _running_bytes(served: ServedBench, count: int) -> str:
    """`count` is the memory of three puts, or one byte more."""
    more = count - 3 * ROW_BYTES
    raw = _greeted(served)
    return _last_put(served, raw, [["t", bytes(100)]] * 2 + [["t", bytes(100 + more)]])


def _running_bytes_of_one(served: ServedBench, count: int) -> str:
    raw = _greeted(served)
    raw.send([2, 1, "put", ["t", bytes(100 + count - ROW_BYTES)]])
    return _kind(raw.reply())


def _running_bytes_of_waits(served: ServedBench, count: int) -> str:
    raw = _greeted(served)
    call = ["receive", ["t", "g"], {**WAIT, "tags": "a" * 100}]
    one = memory_of(encode([2, 1, *call]))
    raw.send([2, 1, *call])
    call[2] = {**WAIT, "tags": "a" * (100 + count - 2 * one)}
    raw.send([2, 2, *call])
    raw.send([3, 2])
    found = _kind(raw.reply())
    return "taken" if found == "AbandonedCall" else found


WAIT_BYTES = memory_of(encode([2, 1, "receive", ["t", "g"], {**WAIT, "tags": "a" * 100}]))


def _targets(served: ServedBench, count: int) -> str:
    raw = _greeted(served)
    for k in range(1, count):
        raw.send([2, k, "consumer", ["t", f"g{k}"]])
        assert raw.reply()[0] == 5
    raw.send([2, count, "pending"])
    return _kind(raw.reply())


def _leases(served: ServedBench, count: int) -> str:
    served.bench.store.put_many("t", [b"x"] * count)
    served.bench.turn()
    raw = _greeted(served, return_leases=True)
    for k in range(1, count):
        raw.send([2, k, "receive", ["t", "g"]])
        assert len(raw.reply()[2]) == 1
    raw.send([2, count, "receive", ["t", "g"]])
    return _kind(raw.reply())


def _frame_received(served: ServedBench, count: int) -> str:
    raw = _greeted(served)
    empty = len(msgspec.msgpack.encode([2, 1, "put", ["t", bytes(300)]])) - 300
    raw.send([2, 1, "put", ["t", bytes(count - empty)]])
    return _kind(raw.reply())


def _hello_bytes(served: ServedBench, count: int) -> str:
    raw = served.raw()
    empty = len(msgspec.msgpack.encode([1, 1, [], "x" * 300])) - 300
    raw.send([1, 1, [], "x" * (count - empty)])
    return _kind(raw.reply())


ROWS: dict[str, tuple[Callable[[ServedBench, int], str], dict[str, int], int, str]] = {
    "connections_max": (_connections, {"connections_max": 3}, 3, "UnavailableError"),
    "greeting_max": (_greeting, {"greeting_max": 3}, 3, "UnavailableError"),
    "waits_max": (_waits_of_all, {"waits_max": 3}, 3, "BusyError"),
    "connection_waits_max": (_waits_of_one, {"connection_waits_max": 3}, 3, "BusyError"),
    "in_flight_max": (_in_flight, {"in_flight_max": 3}, 3, "started 3"),
    "running_bytes_max": (
        _running_bytes, {"running_bytes_max": 3 * ROW_BYTES}, 3 * ROW_BYTES, "started 2"
    ),
    "running_bytes_max of one call": (
        _running_bytes_of_one, {"running_bytes_max": ROW_BYTES + 9}, ROW_BYTES + 9, "MessageError"
    ),
    "running_bytes_max of calls that wait": (
        _running_bytes_of_waits, {"running_bytes_max": 2 * WAIT_BYTES}, 2 * WAIT_BYTES, "BusyError"
    ),
    "targets_max": (_targets, {"targets_max": 3}, 3, "BusyError"),
    "leases_max": (_leases, {"leases_max": 3}, 3, "BusyError"),
    "frame_bytes_max": (_frame_received, {"frame_bytes_max": 1000}, 1000, "ProtocolError"),
    "bytes of a hello": (_hello_bytes, {}, 20 << 10, "ProtocolError"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_limit_is_taken_at_its_edge(name: str, tmp_path: Path) -> None:
    row, limits, edge, _ = ROWS[name]
    with _served(tmp_path, ServerLimits(**limits)) as served:
        assert row(served, edge) == "taken"


@pytest.mark.parametrize("name", ROWS)
def test_one_beyond_a_limit_is_not_taken(name: str, tmp_path: Path) -> None:
    row, limits, edge, beyond = ROWS[name]
    with _served(tmp_path, ServerLimits(**limits)) as served:
        assert row(served, edge + 1) == beyond
        served.close_clients()
        assert served.connect().topics() is not None, "others go on"


def _leases_one(raw: RawClient, call_id: int) -> str:
    """Lease a message for 10 seconds. Return its receipt, or the kind of the error."""
    raw.send([2, call_id, "receive", ["t", "g"], {"lease": 10.0}])
    reply = raw.reply()
    if reply[0] == 6:
        return str(reply[2])
    (message,) = reply[2]
    return str(message["receipt"])


@pytest.mark.parametrize("end", ["ack", "ack_many", "nack", "bury", "give_back", "its time"])
def test_lease_that_ended_counts_no_more(end: str, tmp_path: Path) -> None:
    with _served(tmp_path, ServerLimits(leases_max=1)) as served:
        served.bench.store.put_many("t", [b"x"] * 2)
        served.bench.turn()
        raw = _greeted(served, return_leases=True)
        receipt = _leases_one(raw, 1)
        assert _leases_one(raw, 2) == "BusyError"
        if end == "its time":
            served.bench.turn(10_000)
        else:
            raw.send([2, 3, end, [[receipt] if end in {"ack_many", "give_back"} else receipt]])
            assert raw.reply()[0] == 5
        assert _leases_one(raw, 4) not in {receipt, "BusyError"}


@pytest.mark.parametrize("change", ["extend", "renew"])
def test_longer_lease_counts_until_its_new_end(change: str, tmp_path: Path) -> None:
    with _served(tmp_path, ServerLimits(leases_max=1)) as served:
        served.bench.store.put_many("t", [b"x"] * 2)
        served.bench.turn()
        raw = _greeted(served, return_leases=True)
        raw.send([2, 2, change, [_leases_one(raw, 1)], {"lease": 20.0}])
        assert raw.reply()[0] == 5
        served.bench.turn(19_999)
        assert _leases_one(raw, 3) == "BusyError"
        served.bench.turn(1)
        assert _leases_one(raw, 4) != "BusyError"


def _assert_calls_that_begin(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Check how many of 8 slow calls begin of a connection, and then of another one."""
    begun, is_released = Semaphore(0), Event()

    def slow(_store: Any) -> dict[str, int]:
        begun.release()
        is_released.wait(PATIENCE_S)
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(type(served.bench.store), "topics", slow)
        for raw in (_greeted(served), _greeted(served)):
            raw.send_all([2, k, "topics"] for k in range(1, 9))
            for _ in range(count):
                assert begun.acquire(timeout=PATIENCE_S)
            assert not begun.acquire(timeout=0.1)
        is_released.set()
        for raw in served.raws:
            assert sorted(raw.reply()[1] for _ in range(8)) == list(range(1, 9))


@pytest.mark.parametrize(("unsent_bytes_max", "count"), [(999, 1), (2666, 1), (2667, 2), (4000, 3)])
def test_connection_has_as_many_calls_in_threads_as_answers_have_room(
    unsent_bytes_max: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = ServerLimits(frame_bytes_max=1000, unsent_bytes_max=unsent_bytes_max)
    with _served(tmp_path, limits) as served:
        _assert_calls_that_begin(served, monkeypatch, count)


def test_rejected_connections_get_the_error_up_to_a_number(tmp_path: Path) -> None:
    with _served(tmp_path, ServerLimits(connections_max=1)) as served:
        _greeted(served)
        raws = [served.raw() for _ in range(REJECTING_MAX + 1)]
        until(lambda: _stat(served, "rejected_connections") == REJECTING_MAX + 1)
        for raw in raws[:-1]:
            assert raw.reply()[2] == "UnavailableError"
        with pytest.raises(ConnectionResetError):
            raws[-1].reply()


REFUSED: dict[str, list[Any]] = {
    "receive with an argument less": ["receive", ["t"], WAIT],
    "receive with an unknown option": ["receive", ["t", "g"], {**WAIT, "more": 1}],
    "receive with a wrong value": ["receive", ["t", "g"], {**WAIT, "lease": -1}],
    "receive with too many leases": ["receive", ["t", "g"], WAIT],
    "pull of no queue": ["pull", ["t", -1, 0], WAIT],
    "poll with an unknown option": ["poll", [], {**WAIT, "more": 1}, 1],
}


@pytest.mark.parametrize("name", REFUSED)
def test_wait_that_is_refused_leaves_its_place(name: str, tmp_path: Path) -> None:
    limits = ServerLimits(waits_max=1, connection_waits_max=1, leases_max=1)
    with _served(tmp_path, limits) as served:
        served.bench.store.put("t", b"x")
        served.bench.turn()
        raw = _greeted(served, return_leases=True)
        raw.send([2, 1, "consumer", ["t", "reader"]])
        assert raw.reply() == [5, 1, 1]
        raw.send([2, 2, "receive", ["t", "g"]])
        (leased,) = raw.reply()[2]
        if "leases" not in name:
            raw.send([2, 3, "ack", [leased["receipt"]]])
            assert raw.reply()[0] == 5
        raw.send([2, 4, *REFUSED[name]])
        assert _kind(raw.reply()) == ("BusyError" if "leases" in name else "MessageError")
        raw.send([2, 5, "ack", [leased["receipt"]]])
        assert raw.reply()[0] == 5
        raw.send_all([[2, 6, "receive", ["t", "g"], WAIT], [3, 6]])
        assert _kind(raw.reply()) == "AbandonedCall", "the only place is free"


def test_call_that_ended_leaves_its_room_and_its_id() -> None:
    end: Any = None
    running = RunningCalls(ServerLimits(running_bytes_max=100), ServerCounters())
    running.add(1, 60, end)
    running.add(2, 40, end)
    assert not running.has_room(1)
    running.remove(2)
    assert running.has_room(40)
    assert not running.has_room(41)
    running.check_id(2)
    for wrong in (1, 0, -1):
        with pytest.raises(ProtocolError, match="the id of a call"):
            running.check_id(wrong)


def test_call_above_a_limit_with_an_id_in_use_ends_the_connection(tmp_path: Path) -> None:
    """Its error would else be the answer of the other call."""
    with _served(tmp_path, ServerLimits(running_bytes_max=10_000)) as served:
        raw = _greeted(served)
        raw.send([2, 1, "receive", ["t", "g"], WAIT])
        raw.send([2, 1, "put", ["t", bytes(10_000)]])
        assert raw.reply()[1:3] == [0, "ProtocolError"]


@pytest.mark.parametrize("name", [one.name for one in fields(ServerLimits)])
def test_every_limit_is_a_whole_number_from_1_on(name: str) -> None:
    assert getattr(ServerLimits(**{name: 1}), name) == 1
    for wrong in (0, -1, 1.5, True, None, "1"):
        with pytest.raises(ConfigError, match=f"{name}: wanted a whole number from 1 on"):
            ServerLimits(**{name: wrong})  # type: ignore[arg-type]


def test_table_has_every_limit() -> None:
    """`unsent_bytes`, `unsent_bytes_max` and `hello_s` have tests of their own."""
    named = {name.split()[0] for name in ROWS} | {"unsent_bytes", "unsent_bytes_max", "hello_s"}
    assert {one.name for one in fields(ServerLimits)} <= named
