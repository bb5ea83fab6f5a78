"""A shared store: one owner, and another one when it ends."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import small
from timerstore import (
    ConfigError,
    ConnectionLostError,
    CorruptError,
    LockedError,
    StoreConfig,
    UnavailableError,
)
from timerstore.net import shared_store
from timerstore.net.attempt_limits import ClientTimes
from timerstore.net.channel import Channel
from timerstore.net.connector import Connector
from timerstore.net.shared_store import SharedConnector, SharedStore, open_shared
from timerstore.net.store_server import StoreServer
from timerstore.testing import ManualClock


@pytest.fixture
def config() -> StoreConfig:
    return small(flush="sync")


def _open(path: Path, config: StoreConfig) -> SharedStore:
    """Open as another process does: the table of locks of this one counts like a lock."""
    return open_shared(path, config)


def test_first_one_owns_and_others_connect(tmp_path: Path, config: StoreConfig) -> None:
    with _open(tmp_path / "s", config) as first, _open(tmp_path / "s", config) as second:
        assert (first.is_owner, second.is_owner) == (True, False)
        receipt = second.put("t", b"x", delay=60)
        assert [one.message_id for one in first.pending()] == [receipt.message_id]
        socket = tmp_path / "s" / "timerstore" / "server.sock"
        assert socket.stat().st_mode & 0o777 == 0o600
        with pytest.raises(LockedError):
            timerstore.open(tmp_path / "s")
    assert not socket.exists()
    timerstore.open(tmp_path / "s").close()


def test_owner_opens_again_after_the_end_of_its_server(tmp_path: Path, config: StoreConfig) -> None:
    with _open(tmp_path / "s", config) as store:
        first = store.put("t", b"1")
        owned = store._shared._owned
        assert owned is not None
        owned[1].close()
        assert store.put("t", b"2").queue_offset == 1
        assert store.is_owner
        assert store._shared._owned is not owned
        assert first.queue_offset == 0


def test_owner_keeps_a_server_that_closes_its_connection(
    tmp_path: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does that has too many connections. Those of other processes go on."""

    def reset(_self: Connector, _timeout_s: float) -> Channel:
        monkeypatch.undo()
        raise ConnectionResetError("the server closed the connection")

    with _open(tmp_path / "s", config) as store:
        owned = store._shared._owned
        monkeypatch.setattr(Connector, "_attempt", reset)
        store._shared.channel()._lose(ConnectionLostError("lost"))
        store.put("t", b"x")
        assert store._shared._owned is owned


def test_owner_closes_the_store_if_the_end_of_its_server_is_interrupted(
    tmp_path: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = StoreServer.close

    def close(self: StoreServer) -> None:
        monkeypatch.undo()
        real(self)
        raise KeyboardInterrupt

    store = _open(tmp_path / "s", config)
    monkeypatch.setattr(StoreServer, "close", close)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert not store.is_owner
    timerstore.open(tmp_path / "s").close()


def test_another_takes_over_when_the_owner_closes(
    tmp_path: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _open(tmp_path / "s", config)
    second = _open(tmp_path / "s", config)
    third = _open(tmp_path / "s", config)
    second.put("t", b"1")
    opened, become_owner = threading.Event(), SharedConnector._open

    def observed(self: SharedConnector) -> None:
        become_owner(self)
        opened.set()

    monkeypatch.setattr(SharedConnector, "_open", observed)
    first.close()
    assert opened.wait(60), "none took over without a call"
    assert second.is_owner or third.is_owner
    third.put("t", b"2")
    assert len(second.pull("t", 0, 0, wait=30).messages) >= 1
    assert second.is_owner != third.is_owner
    second.close()
    assert third.put("t", b"3").topic == "t"
    assert third.is_owner
    third.close()


def test_calls_go_on_when_the_owner_is_killed(tmp_path: Path, config: StoreConfig) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(600)  # if the parent ends before it kills this child
        try:
            owner = _open(tmp_path / "s", config)
            owner.put("owner", b"owner", delay=3600)
            os.write(write, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"x", "the child ended"
    os.close(read)
    with _open(tmp_path / "s", config) as store:
        assert not store.is_owner
        receipts = [store.put("t", b"%d" % k, delay=3600) for k in range(5)]
        os.kill(pid, 9)
        receipts += [store.put("t", b"%d" % k, delay=3600) for k in range(5)]
        os.waitpid(pid, 0)
        assert store.is_owner
        found = sorted(one.message_id for one in store.pending(topic="t"))
        assert found == sorted(one.message_id for one in receipts), "each put once"
    report = timerstore.verify_directory(tmp_path / "s")
    assert report.clean, report


class _ClosingEvent(threading.Event):
    """As the one of a connector: it records the first pauses, and does not wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_s: list[float | None] = []
        self.are_enough = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses_s.append(timeout)
        if len(self.pauses_s) < 8:
            return False
        self.are_enough.set()
        return super().wait()


def test_watcher_pauses_when_taking_over_fails(
    tmp_path: Path,
    config: StoreConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = _open(tmp_path / "s", config)
    other = _open(tmp_path / "s", config)
    opened = []
    closing = other._shared.closing = _ClosingEvent()

    def fail(self: SharedConnector) -> None:
        opened.append(self)
        raise CorruptError("checkpoint: wanted a checksum, got another one")

    monkeypatch.setattr(SharedConnector, "_open", fail)
    owner.close()
    assert closing.are_enough.wait(60)
    assert closing.pauses_s == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert len(opened) == len(closing.pauses_s), "one attempt before each pause"
    assert len([one for one in caplog.records if "wanted a checksum" in one.message]) == 1
    other.close()


def test_forked_child_owns_nothing(tmp_path: Path, config: StoreConfig) -> None:
    with _open(tmp_path / "s", config) as store:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                store.put("t", b"child", delay=60)
                code = 10 if not store.is_owner else 20
                store.close()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10
        assert store.is_owner
        assert len(list(store.pending())) == 1


def test_store_that_is_not_shared_is_unavailable(
    tmp_path: Path, config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_store, "_TIMES", ClientTimes(0.0, 0.0, 5.0))
    with (
        timerstore.open(tmp_path / "s", config),
        pytest.raises(UnavailableError, match="open in this process"),
    ):
        _open(tmp_path / "s", config)


def test_unequal_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with _open(path, small(dedupe_window_ms=1000, level_delays="1s")) as owner:
        for config, wanted in (
            (small(dedupe_window_ms=2000, level_delays="1s"), {"dedupe_window_ms"}),
            (small(), {"dedupe_window_ms", "level_delays"}),
            (small(dedupe_window_ms=1000, level_delays="1s", precision_ms=10), {"precision_ms"}),
        ):
            with pytest.raises(ConfigError) as error:
                _open(path, config)
            assert {one.partition(":")[0] for one in error.value.problems} == wanted
            assert error.value.where == path
        with pytest.raises(ConfigError) as error:
            timerstore.open(path, shared=True)
        assert (
            "dedupe_window_ms: wanted 3600000, as in this process, got 1000 in the process "
            "that has the store open" in error.value.problems
        )
        given = {"commit_log_segment_bytes": StoreConfig().commit_log_segment_bytes}
        sizes_of_files = small(dedupe_window_ms=1000, level_delays="1s", **given)
        with _open(path, sizes_of_files) as other:
            owner.close()
            assert other.put("t", b"x").topic == "t"
            assert other.is_owner


def test_owner_with_other_settings_is_refused_at_the_next_connection(tmp_path: Path) -> None:
    """The new owner was there first; the calls of the others raise the error."""
    first = _open(tmp_path / "s", small())
    second = _open(tmp_path / "s", small())
    first.close()
    second.put("t", b"x")
    second._shared._config = small(dedupe_window_ms=1000)
    channel = second._shared._channel
    assert channel is not None
    channel.close()
    with pytest.raises(ConfigError, match="dedupe_window_ms"):
        second.put("t", b"x")
    second.close()


def test_path_may_be_long(tmp_path: Path, config: StoreConfig) -> None:
    with _open(tmp_path / ("d" * 120), config) as store:
        assert store.put("t", b"x").topic == "t"


@pytest.mark.parametrize(
    "options",
    [{"clock": ManualClock(0)}, {"threads": False}, {"read_only": True}, {"shared": 1}],
)
def test_invalid_combinations_are_config_errors(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="shared"):
        timerstore.open(tmp_path / "s", **{"shared": True, **options})
    assert not (tmp_path / "s").exists()


def test_error_of_opening_is_raised(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"a file")
    with pytest.raises(timerstore.TimerStoreError) as single:
        timerstore.open(tmp_path / "s")
    with pytest.raises(timerstore.TimerStoreError) as shared:
        timerstore.open(tmp_path / "s", shared=True)
    assert type(shared.value) is type(single.value)
    assert str(shared.value) == str(single.value)
    assert SharedConnector.longest_pause_s < 1
