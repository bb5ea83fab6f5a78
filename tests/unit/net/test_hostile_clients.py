"""A hostile or broken client gets an error and is closed. Others go on."""

import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.bench import Bench
from tests.support.inside import loop_of_server
from tests.support.served_bench import RawClient, ServedBench
from tests.support.until import until
from timerstore._engine.leases import lease_reader
from timerstore.errors import (
    AccessError,
    ConfigError,
    FullError,
    MessageError,
    ProtocolError,
    UnavailableError,
)
from timerstore.net import call_runner
from timerstore.net.access import read_token
from timerstore.net.channel import Channel
from timerstore.net.endpoints import Endpoint
from timerstore.net.frames import frame
from timerstore.net.remote_store import RemoteStore
from timerstore.net.server_limits import ServerLimits
from timerstore.net.wire_messages import Hello
from timerstore.net.wire_values import INT64_COLUMN
from timerstore.types.receipts import PutBatch


def _works(remote: RemoteStore) -> None:
    assert not remote.put("t", b"works").duplicate


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x01\xc1",
        b"\0\0\0\x02\x91\x09",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
    ],
)
def test_garbage_is_answered_and_the_connection_closed(
    served: ServedBench, remote: RemoteStore, sent: bytes
) -> None:
    raw = served.raw()
    raw.socket.sendall(sent)
    reply = raw.reply()
    assert reply[:3] == [6, 0, "ProtocolError"]
    assert raw.is_closed_by_server()
    _works(remote)
    assert served.server.stats()["net_broken_connections"] == 1


def test_call_before_hello_closes(served: ServedBench) -> None:
    raw = served.raw()
    raw.send([2, 1, "topics"])
    assert raw.reply()[1:3] == [0, "ProtocolError"]
    assert raw.is_closed_by_server()


def test_first_frame_above_the_limit_of_a_hello_closes(served: ServedBench) -> None:
    raw = served.raw()
    raw.socket.sendall((1 << 20).to_bytes(4, "big"))
    assert raw.reply()[1:3] == [0, "ProtocolError"]
    assert raw.is_closed_by_server()


def test_hello_and_a_large_call_in_one_packet_are_accepted(served: ServedBench) -> None:
    raw = served.raw()
    call = msgspec.msgpack.encode([2, 1, "put", ["t", bytes(100_000)]])
    raw.socket.sendall(frame(msgspec.msgpack.encode([1, 1])) + frame(call))
    assert raw.reply()[0] == 4
    assert raw.reply()[:2] == [5, 1]


def test_calls_above_the_limit_of_running_bytes_are_not_lost(tmp_path: Path) -> None:
    limits = ServerLimits(running_bytes_max=50_000)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock", limits=limits)
    raw = served.raw()
    raw.hello()
    for k in range(1, 21):
        raw.send([2, k, "put", ["t", bytes(40_000)]])
    assert sorted(raw.reply()[1] for _ in range(20)) == list(range(1, 21))
    served.close()


def test_second_hello_closes(served: ServedBench) -> None:
    raw = served.raw()
    assert raw.hello()[0] == 4
    assert raw.hello()[1:3] == [0, "ProtocolError"]
    assert raw.is_closed_by_server()


def test_other_version_is_named(served: ServedBench) -> None:
    raw = served.raw()
    raw.send([1, 99])
    reply = raw.reply()
    assert reply[2] == "ProtocolError"
    assert reply[5:7] == ["version 1", "version 99"]
    assert raw.is_closed_by_server()


def test_id_in_use_closes(served: ServedBench) -> None:
    raw = served.raw()
    raw.hello()
    raw.send([2, 5, "receive", ["t", "g"], {"wait": 60.0}])
    raw.send([2, 5, "topics"])
    assert raw.reply()[1:3] == [0, "ProtocolError"]
    assert raw.is_closed_by_server()


@pytest.mark.parametrize(
    "call",
    [
        ["close"],
        ["_do_put", ["t", b"x"]],
        ["__init__"],
        ["ingested", ["source"]],
        ["begin_pull", ["t", 0, 0]],
        ["put"],
        ["put", ["t", b"x", 1]],
        ["put", ["t", b"x"], {"self": 1}],
        ["put", ["t", b"x"], {"colour": "red"}],
        ["put", [5, None]],
        ["put", ["t", "text"]],
        ["put_many", ["t", 7]],
        ["cancel", [{}]],
        ["ack", [b"\xff"]],
        ["ack_many", [5]],
        ["receive", ["t", "g"], {"wait": "for ever"}],
        ["receive", ["t", "g"], {"wait": -1}],
        ["receive", ["t", "g"], {"wait": {"type": "array"}}],
        ["receive", ["t", "g"], {"wait": msgspec.msgpack.Ext(INT64_COLUMN, bytes(16))}],
        ["receive", ["t", "g"], {"backoff": {"a": 1}}],
        ["pull", ["t", "0", None]],
        ["pull", ["t", 0, 0], {"max_count": 2**63 - 1, "shard": 1}],
        ["histogram", [], {"begin": [], "by": 5}],
        ["explain", [["t", "x"]]],
        ["pending", [], {"begin_ms": "x"}],
        ["topics", [], {}, 99],
        ["next", [], {}, 1],
    ],
)
def test_invalid_call_is_a_message_error_and_the_connection_goes_on(
    served: ServedBench, call: list[object]
) -> None:
    raw = served.raw()
    raw.hello()
    raw.send([2, 1, *call])
    reply = raw.reply()
    assert reply[:3] == [6, 1, "MessageError"], reply
    raw.send([2, 2, "topics"])
    assert raw.reply()[:2] == [5, 2]


@pytest.mark.parametrize(
    ("made", "call"), [(["consumer", ["t", "g"]], "poll"), (["pending"], "next")]
)
def test_call_of_a_target_that_was_just_closed_is_a_message_error(
    served: ServedBench, made: list[object], call: str
) -> None:
    raw = served.raw()
    raw.hello()
    raw.send([2, 1, *made])
    assert raw.reply() == [5, 1, 1]
    raw.send_all([[2, 2, "close", [], {}, 1], [2, 3, call, [], {}, 1]])
    replies = sorted((raw.reply() for _ in range(2)), key=lambda one: one[1])
    assert [one[:2] for one in replies] == [[5, 2], [6, 3]]
    assert replies[1][2] == "MessageError"


def test_second_next_of_a_list_is_a_message_error_while_the_first_runs(
    served: ServedBench,
) -> None:
    served.bench.store.put("t", b"x", delay=1)
    raw = served.raw()
    raw.hello()
    raw.send([2, 1, "pending"])
    assert raw.reply() == [5, 1, 1]
    raw.send_all([[2, 2, "next", [], {}, 1], [2, 3, "next", [], {}, 1]])
    replies = sorted((raw.reply() for _ in range(2)), key=lambda one: one[1])
    assert replies[0][:2] == [5, 2]
    assert len(replies[0][2]) == 1
    assert replies[1][:3] == [6, 3, "MessageError"]


def test_list_is_read_on_after_an_error_of_a_page(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_page(_row: object) -> int:
        raise FullError("no space")

    for body in (b"x", b"y"):
        served.bench.store.put("t", body, delay=1)
    raw = served.raw()
    raw.hello()
    raw.send([2, 1, "pending"])
    assert raw.reply() == [5, 1, 1]
    with monkeypatch.context() as patched:
        patched.setattr(call_runner, "body_bytes", no_page)
        raw.send([2, 2, "next", [], {}, 1])
        assert raw.reply()[:3] == [6, 2, "FullError"]
    raw.send([2, 3, "next", [], {}, 1])
    assert raw.reply()[:2] == [5, 3]


def test_call_that_is_nested_too_deep_for_its_id_closes(served: ServedBench) -> None:
    """Less deep, it gets an error, and the connection goes on."""
    raw = served.raw()
    raw.hello()
    for depth, call_id, kind in ((100, 7, "MessageError"), (100_000, 0, "ProtocolError")):
        raw.socket.sendall(frame(b"\x94\x02\x07\xa3put\x91" + b"\x91" * depth + b"\xc0"))
        assert raw.reply()[:3] == [6, call_id, kind]
    assert raw.is_closed_by_server()


def test_random_bytes_harm_no_other_client(served: ServedBench, remote: RemoteStore) -> None:
    random.seed(7)
    for k in range(300):
        raw = served.raw()
        if k % 2:
            raw.hello()
        data = random.randbytes(random.randint(1, 300))
        if k % 3 == 0:  # a frame with a right length
            data = len(data).to_bytes(4, "big") + data
        with contextlib.suppress(BrokenPipeError):
            raw.socket.sendall(data)
        raw.close()
    _works(remote)


def test_no_hello_in_time_closes(tmp_path: Path) -> None:
    served = ServedBench(
        Bench(tmp_path / "store"), tmp_path / "x.sock", limits=ServerLimits(hello_s=1)
    )
    raw = served.raw()
    assert raw.reply()[1:3] == [0, "ProtocolError"]
    assert raw.is_closed_by_server()
    served.close()


def test_connection_over_the_limit_gets_unavailable(tmp_path: Path) -> None:
    served = ServedBench(
        Bench(tmp_path / "store"), tmp_path / "x.sock", limits=ServerLimits(connections_max=2)
    )
    first, second = served.connect(), served.connect()
    with pytest.raises(UnavailableError, match="accepts no more connections"):
        served.connect(retry_for=0)
    _works(first)
    second.close()
    third = served.connect()  # it retries until the server has noticed the end of the second
    _works(third)
    served.close()


def test_wrong_token_is_an_access_error(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    bench = Bench(tmp_path / "store")
    served = ServedBench(bench, tmp_path / "x.sock", tcp="127.0.0.1:0", token_file=token)
    url = served.server.urls[0]
    assert url.startswith("tcp://127.0.0.1:")
    host, port = url.removeprefix("tcp://").split(":")
    endpoint = Endpoint(None, host, int(port))
    for wrong in (None, "", "0123456789abcdeF", "ü" * 16):
        with pytest.raises(AccessError, match="the token is wrong"):
            Channel(endpoint, Hello(1, [], wrong), None, 10, 10)
    assert served.server.stats()["net_rejected_connections"] == 4
    Channel(endpoint, Hello(1, [], "0123456789abcdef"), None, 10, 10).close()
    served.close()


def test_wrong_version_of_the_server_is_a_protocol_error(served: ServedBench) -> None:
    with pytest.raises(ProtocolError, match="another version"):
        Channel(Endpoint(served.path), Hello(2), None, 10, 10)


def _send_until_stopped(raw: RawClient) -> int:
    """Send calls until the server reads no more; return their number."""
    for k in range(1, 1_000_000):
        try:
            raw.send([2, k, "pull", ["t", 0, 0]])  # the answer has 130 KB
        except TimeoutError:
            return k
    raise AssertionError("the server reads without a limit")


def test_unread_answers_stop_only_their_connection(tmp_path: Path) -> None:
    """A client that takes no answers fills the buffers of the system and one of the server."""
    limits = ServerLimits(unsent_bytes=1 << 16)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock", limits=limits)
    remote = served.connect()
    for _ in range(32):
        remote.put("t", bytes(4000))
    served.bench.turn()
    raw: RawClient = served.raw()
    raw.hello()
    raw.socket.settimeout(1)
    sent = _send_until_stopped(raw)
    stats = served.server.stats()
    assert stats["net_sent_bytes"] < 200 << 20
    assert stats["net_requests"] < sent, "the rest was not started"
    _works(remote)
    raw.socket.settimeout(20)
    got = 0
    while got < stats["net_requests"] - 32:  # it goes on when the client reads
        assert raw.reply()[0] == 5
        got += 1
    raw.close()
    served.close()


def test_client_at_its_limit_of_running_calls_stops_no_other(tmp_path: Path) -> None:
    limits = ServerLimits(in_flight_max=2)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock", limits=limits)
    raw = served.raw()
    raw.hello()
    for k in range(1, 4):
        raw.send([2, k, "receive", ["t", "g"], {"wait": 60.0}])
    while served.server.stats()["net_running_requests"] < 2:
        pass
    other = served.raw()
    assert other.hello()[0] == 4
    other.send([2, 1, "topics"])
    other.socket.settimeout(5)
    assert other.reply()[:2] == [5, 1]
    served.close()


def test_limit_of_waits_is_a_busy_error(tmp_path: Path) -> None:
    limits = ServerLimits(connection_waits_max=3)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock", limits=limits)
    raw = served.raw()
    raw.hello()
    for k in range(1, 5):
        raw.send([2, k, "receive", ["t", "g"], {"wait": 60.0}])
    reply = raw.reply()
    assert reply[:3] == [6, 4, "BusyError"]
    raw.send([3, 1])  # abandon one
    assert raw.reply()[:3] == [6, 1, "AbandonedCall"]
    raw.send([2, 9, "put", ["t", b"x"]])
    assert raw.reply()[:2] == [5, 9]
    raw.close()
    served.close()


def _served_with_small_frames(tmp_path: Path, bodies: list[bytes]) -> ServedBench:
    limits = ServerLimits(frame_bytes_max=20_000)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock", limits=limits)
    for one in bodies:
        served.bench.store.put("t", one)
    served.bench.turn()
    return served


def test_pull_returns_the_messages_that_fit_into_a_frame(tmp_path: Path) -> None:
    served = _served_with_small_frames(tmp_path, [bytes(9000)] * 3)
    remote = served.connect()
    first = remote.pull("t", 0, 0)
    assert len(first.messages) == 2
    assert first.next_offset == 2
    assert len(remote.pull("t", 0, first.next_offset).messages) == 1
    with pytest.raises(MessageError, match="at most 20000 in one call"):
        remote.put("t", bytes(30_000))
    served.close()


def test_message_above_the_frame_is_an_error_and_stays(tmp_path: Path) -> None:
    served = _served_with_small_frames(tmp_path, [bytes(30_000)])
    remote = served.connect()
    with pytest.raises(MessageError, match="does not fit into a frame"):
        remote.pull("t", 0, 0)
    with pytest.raises(MessageError, match="does not fit into a frame"):
        remote.receive("t", "g")
    with remote.consumer("t", "h") as consumer:
        with pytest.raises(MessageError, match="does not fit into a frame"):
            consumer.poll()
        assert consumer.commit() == {}
    served.close()


def test_poll_cut_at_a_frame_commits_only_what_was_returned(tmp_path: Path) -> None:
    bodies = [bytes([k]) * 6000 for k in range(7)]
    served = _served_with_small_frames(tmp_path, bodies)
    with served.connect().consumer("t", "g") as consumer:
        got = [one.body for one in consumer.poll(32)]
        assert got == bodies[:3]
        assert consumer.commit() == {0: 3}
        while found := consumer.poll(32):
            got += [one.body for one in found]
        assert got == bodies
        assert consumer.commit() == {0: 7}
    served.close()


def test_receive_cut_at_a_frame_counts_no_attempt_of_the_rest(tmp_path: Path) -> None:
    bodies = [bytes([k]) * 6000 for k in range(7)]
    served = _served_with_small_frames(tmp_path, bodies)
    remote = served.connect()
    got = []
    while found := remote.receive("t", "g", max_count=7, max_attempts=1):
        assert len(found) <= 3
        got += [one.body for one in found]
        assert {one.attempt for one in found} == {1}
        remote.ack_many([one.receipt for one in found])
    assert got == bodies
    assert list(remote.dead_letters("g")) == []
    served.close()


@pytest.mark.parametrize(
    ("row_bytes", "client", "options"),
    [
        (32, {"retry_for": 0}, {}),
        (32 + 15 + 32, {}, {}),
        (32 + 15 + 32, {}, {"atomic": True}),
        (32 + 15 + 40, {"retry_for": 0}, {"message_ids": "{:040}"}),
        (32 + 15 + 40, {}, {"message_ids": "{:040}"}),
        (32 + 15 + 32, {"retry_for": 0}, {"priority": 1}),
    ],
)
def test_batch_with_more_receipts_than_a_frame_is_not_stored(
    tmp_path: Path, row_bytes: int, client: dict[str, int], options: dict[str, Any]
) -> None:
    served = _served_with_small_frames(tmp_path, [])
    remote = served.connect(**client)

    def put(count: int, first: int) -> PutBatch:
        given = dict(options)
        if "message_ids" in given:
            given["message_ids"] = [options["message_ids"].format(first + k) for k in range(count)]
        if "priority" in given:
            given["priority"] = [k % 2 for k in range(count)]
        return remote.put_many("t", [b"x"] * count, delay=60, **given)

    most = (20_000 - 1024) // row_bytes
    for count in (most + 1, most * 3 // 2):
        with pytest.raises(MessageError, match="no message is stored; put them in several calls"):
            put(count, 0)
    assert served.bench.store.stats()["pending_messages"] == 0
    assert len(put(most, 10_000)) == most
    served.close()


@pytest.mark.parametrize("is_leased", [False, True])
def test_part_that_was_cut_off_is_for_another_client_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_leased: bool
) -> None:
    """Messages that surely do not fit are not leased; others that do not fit are given back."""
    if is_leased:
        monkeypatch.setattr(lease_reader, "_NAMES_BYTES", -5000)
    served = _served_with_small_frames(tmp_path, [bytes(6000)] * 5)
    first, other = served.connect(), served.connect()
    held = first.receive("t", "g", max_count=5, max_attempts=1)
    assert len(held) == 3
    served.bench.turn()
    found = []
    while rest := other.receive("t", "g", max_count=5, max_attempts=1):
        found += rest
    assert len(held) + len(found) == 5
    assert {one.attempt for one in found} == {1}
    assert list(other.dead_letters("g")) == []
    assert (served.server.stats()["net_returned_leases"] > 0) is is_leased
    served.close()


def test_messages_leased_for_a_client_that_is_gone_are_given_back(served: ServedBench) -> None:
    """A client sends `receive` and closes before the server reads it."""
    served.bench.store.put("t", b"x")
    served.bench.turn()
    raw, is_gone = served.raw(), threading.Event()
    raw.hello()
    loop_of_server(served.server).call_soon_threadsafe(is_gone.wait)
    raw.send([2, 1, "receive", ["t", "g"]])
    raw.close()
    is_gone.set()
    until(lambda: served.server.stats()["net_returned_leases"], 10)
    assert served.bench.store.backlog("t", "g").ready == 1


def test_dead_letters_are_read_in_pages_that_fit(tmp_path: Path) -> None:
    bodies = [bytes([k]) * 6000 for k in range(7)]
    served = _served_with_small_frames(tmp_path, bodies)
    remote = served.connect()
    while found := remote.receive("t", "g", max_count=7):
        for one in found:
            remote.bury(one.receipt)
    served.bench.turn()
    assert sorted(one.body for one in remote.dead_letters("g")) == bodies
    served.close()


def test_abandon_in_one_packet_with_its_call_leaves_nothing(served: ServedBench) -> None:
    raw = served.raw()
    raw.hello()
    call = frame(msgspec.msgpack.encode([2, 1, "receive", ["t", "g"], {"wait": 60.0}]))
    raw.socket.sendall(call + frame(msgspec.msgpack.encode([3, 1])))
    assert raw.reply()[:3] == [6, 1, "AbandonedCall"]
    stats = served.server.stats()  # before another call has the id
    assert stats["net_waiting_requests"] == 0
    assert stats["net_running_requests"] == 0
    raw.send([2, 1, "topics"])  # the id is free
    assert raw.reply()[:2] == [5, 1]


def test_expired_leases_do_not_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    served = ServedBench(bench, tmp_path / "x.sock", limits=ServerLimits(leases_max=1))
    raw = served.raw()
    raw.hello(return_leases=True)
    bench.store.put_many("t", [b"a", b"b", b"c"])
    bench.turn()
    raw.send([2, 1, "receive", ["t", "g"], {"lease": 1.0}])
    assert len(raw.reply()[2]) == 1
    raw.send([2, 2, "receive", ["t", "g"], {"lease": 1.0}])
    assert raw.reply()[:3] == [6, 2, "BusyError"]
    bench.clock.advance(2000)
    raw.send([2, 3, "receive", ["t", "g"], {"lease": 1.0}])
    assert raw.reply()[:2] == [5, 3]
    served.close()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o620, 0o604])
@pytest.mark.parametrize("length", [15, 16, 4096, 4097])
def test_token_file_is_for_its_owner_and_long_enough(
    tmp_path: Path, mode: int, length: int
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * length)
    token.chmod(mode)
    if mode == 0o600 and length in {16, 4096}:
        assert read_token(token) == "t" * length
        return
    wanted = "only its owner can read" if mode != 0o600 else "a token of 16 to 4096 characters"
    with pytest.raises(ConfigError, match=wanted):
        read_token(token)
