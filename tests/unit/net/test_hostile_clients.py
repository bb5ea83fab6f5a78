"""A hostile or broken client gets an error and is closed. Others go on."""

import contextlib
import random
from pathlib import Path

import pytest

from tests.support.bench import Bench
from tests.support.served_bench import RawClient, ServedBench
from timerstore.errors import AccessError, MessageError, ProtocolError, UnavailableError
from timerstore.net.channel import Channel
from timerstore.net.endpoints import Endpoint
from timerstore.net.remote_store import RemoteStore
from timerstore.net.server_limits import ServerLimits
from timerstore.net.wire_messages import Hello


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
        ["verify"],
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
            Channel(endpoint, Hello(1, [], wrong), None, 10)
    assert served.server.stats()["net_rejected_connections"] == 4
    Channel(endpoint, Hello(1, [], "0123456789abcdef"), None, 10).close()
    served.close()


def test_wrong_version_of_the_server_is_a_protocol_error(served: ServedBench) -> None:
    with pytest.raises(ProtocolError, match="another version"):
        Channel(Endpoint(served.path), Hello(2), None, 10)


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


def test_too_long_result_is_an_error_of_that_call(tmp_path: Path) -> None:
    limits = ServerLimits(frame_bytes_max=20_000)
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "x.sock", limits=limits)
    remote = served.connect()
    for _ in range(3):
        remote.put("t", bytes(9000))
    served.bench.turn()
    with pytest.raises(MessageError, match="ask for fewer messages"):
        remote.pull("t", 0, 0)
    assert len(remote.pull("t", 0, 0, max_count=1).messages) == 1
    with pytest.raises(MessageError, match="at most 20000 in one call"):
        remote.put("t", bytes(30_000))
    with pytest.raises(MessageError, match="ask for fewer messages"):
        remote.receive("t", "g", max_count=3)
    served.bench.turn()
    found = remote.receive("t", "g", wait=5)  # what could not be sent was given back
    assert found[0].attempt == 2
    served.close()
