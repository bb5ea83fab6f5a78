"""What each release wrote is opened, verified, converted, restored and served by this one.

A client of an earlier release works with today's server, and today's client with an earlier server:
the recorded frames of one side take its place.
"""

import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import timerstore
import timerstore.net
from tests.support import releases
from tests.support.release_program import CONFIG, LATER_MS, describe, talk
from timerstore.net.frames import frame
from timerstore.testing import ManualClock

WELCOME, ANSWER, FAILURE = 4, 5, 6
RANDOM = {"counter_begin", "id_prefix", "receipt"}  # of a store's opening
pytestmark = pytest.mark.parametrize("version", releases.versions())


def opened(path: Path) -> timerstore.TimerStore:
    return timerstore.open(path, CONFIG, clock=ManualClock(LATER_MS), threads=False)


@pytest.mark.parametrize("name", ["store", "killed"])
def test_store_has_what_the_release_read(version: str, name: str, tmp_path: Path) -> None:
    path = releases.unpack(version, tmp_path) / name
    assert timerstore.verify_directory(path).clean
    with timerstore.open(path, read_only=True) as store:
        assert store.stats()["pending_messages"] > 0
    with opened(path) as store:
        assert describe(store) == releases.expected(version)["store"]
        assert store.verify().clean
    assert timerstore.verify_directory(path).clean


def test_store_is_converted_for_a_broker_and_back(version: str, tmp_path: Path) -> None:
    path = releases.unpack(version, tmp_path) / "store"
    clock = ManualClock(LATER_MS)
    timerstore.convert(path, "rocketmq", CONFIG, clock=clock)
    timerstore.convert(path, "timerstore", CONFIG, clock=clock)
    with opened(path) as store:
        assert describe(store) == releases.expected(version)["store"]


def test_shards_have_what_the_release_read(version: str, tmp_path: Path) -> None:
    path = releases.unpack(version, tmp_path) / "shards"
    clock = ManualClock(LATER_MS)
    with timerstore.open_shards(path, 2, CONFIG, clock=clock, threads=False) as shards:
        assert describe(shards) == releases.expected(version)["shards"]
        assert all(report.clean for report in shards.verify())


def test_backup_is_checked_and_restored(version: str, tmp_path: Path) -> None:
    path = releases.unpack(version, tmp_path) / "backup"
    timerstore.check_backup(path)
    timerstore.restore(path, tmp_path / "restored")
    with opened(tmp_path / "restored") as store:
        assert describe(store) == releases.expected(version)["store"]


def test_client_of_the_release_works_with_this_server(version: str, tmp_path: Path) -> None:
    path = releases.unpack(version, tmp_path) / "store"
    recorded = releases.frames(version)
    answers = [msgspec.msgpack.decode(payload) for side, payload in recorded if side == "server"]
    with (
        opened(path) as store,
        timerstore.net.serve(store, socket=tmp_path / "s"),
        socket.socket(socket.AF_UNIX) as client,
        client.makefile("rb") as stream,
    ):
        client.settimeout(60)
        client.connect(str(tmp_path / "s"))
        for side, payload in recorded:
            if side == "client":
                client.sendall(frame(payload))
            else:
                got = msgspec.msgpack.decode(stream.read(int.from_bytes(stream.read(4))))
                assert _stable(got, answers[0]) == _stable(answers.pop(0), got)
    assert not answers


def _stable(message: list[Any], other: list[Any]) -> list[Any]:
    """Return the parts of a message that do not differ between releases, or two runs of one."""
    if message[0] == WELCOME:
        return message[:2]
    if message[0] == FAILURE:
        return message[:3]
    return _known(message, other)


def _known(value: Any, other: Any) -> Any:
    """Leave out elements and names that only the newer side has."""
    if isinstance(value, dict) and isinstance(other, dict):
        both = (value.keys() & other.keys()) - RANDOM
        return {key: _known(value[key], other[key]) for key in both}
    if isinstance(value, list) and isinstance(other, list):
        return [_known(one, two) for one, two in zip(value, other, strict=False)]
    return value


def test_this_client_works_with_the_server_of_the_release(version: str, tmp_path: Path) -> None:
    recorded = releases.frames(version)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        server = threading.Thread(target=_answer, args=(listening, recorded), daemon=True)
        server.start()
        with timerstore.connect(f"unix://{tmp_path}/s", retry_for=0) as client:
            assert talk(client) == releases.expected(version)["talk"]
        server.join(60)
        assert not server.is_alive()


def _answer(listening: socket.socket, recorded: list[tuple[str, bytes]]) -> None:
    """Send the server's frames, each when the client's frames before it have come."""
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as stream:
        for side, payload in recorded:
            if side == "server":
                connection.sendall(frame(payload))
            elif size := stream.read(4):
                stream.read(int.from_bytes(size))
