"""A server of a connected store: its own connection, the owner's absence, and what it may not do.

The other tests of this folder run over such a server, too, by the fixture `served`.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest

import timerstore
import timerstore.net
import timerstore.rocketmq
from tests.support.bench import small
from tests.support.rocketmq_bench import RawCaller, RocketmqBench, seconds
from tests.support.until import until
from tests.support.ways import WAYS, ConnectedBench
from timerstore.aio import connect as aio_connect
from timerstore.errors import ClosedError, ConfigError, MessageError, UnavailableError
from timerstore.net.async_remote_store import AsyncRemoteStore
from timerstore.net.server_thread import ServerThread
from timerstore.rocketmq import connected_calls, rocketmq_server
from timerstore.rocketmq.definitions import Code, messages
from timerstore.rocketmq.rocketmq_limits import RocketmqLimits


class OnceBench(ConnectedBench):
    """Its store makes no call a second time."""

    options: ClassVar[dict[str, Any]] = {"retry_for": 0}

    def connected(self, url: str) -> Any:
        return timerstore.connect(url, **self.options)

    def end_server(self) -> None:
        self._server.close()

    def serve_again(self) -> None:
        self._server = timerstore.net.serve(self.local, socket=self.root.with_suffix(".sock"))


class PatientBench(OnceBench):
    # Which concerns its own connection only.
    options: ClassVar[dict[str, Any]] = {"return_leases": True}


@pytest.fixture
def once(tmp_path: Path) -> Iterator[RocketmqBench]:
    one = RocketmqBench(OnceBench(tmp_path / "store"))
    yield one
    one.close()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[RocketmqBench]:
    one = RocketmqBench(PatientBench(tmp_path / "store"))
    yield one
    one.close()


def test_calls_get_unavailable_while_the_owner_is_away_and_work_again(once: RocketmqBench) -> None:
    bench: Any = once.bench
    caller = once.caller()
    assert caller.send().status.code == Code.OK
    bench.end_server()
    receive = caller.receive_request().SerializeToString()
    for _ in range(2):
        for call in (lambda: caller.send(), lambda: list(caller.begin("ReceiveMessage", receive))):
            with pytest.raises(grpc.RpcError) as found:
                call()
            assert found.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    bench.serve_again()
    assert caller.send().status.code == Code.OK
    bench.turn()
    assert len(caller.receive()) == 2


def test_server_waits_for_the_owner_as_each_client_does(patient: RocketmqBench) -> None:
    bench: Any = patient.bench
    caller = patient.caller()
    request = caller.receive_request(long_polling_timeout=seconds(15)).SerializeToString()
    poll = caller.begin("ReceiveMessage", request)
    until(lambda: patient.server.stats()["net_waiting_requests"])
    bench.end_server()
    bench.serve_again()
    assert caller.send(body=b"after").status.code == Code.OK
    bench.turn()
    assert [one.message.body for one in poll if one.HasField("message")] == [b"after"]


def test_leases_outlive_the_server_and_its_connection(patient: RocketmqBench) -> None:
    caller = patient.caller()
    caller.send()
    patient.bench.turn()
    [one] = caller.receive(auto_renew=True)
    patient.server.close()
    patient.serve()
    assert patient.caller().ack(one.system_properties.receipt_handle)[0].status.code == Code.OK


@pytest.mark.timeout(20)
def test_close_does_not_wait_for_an_owner_that_is_away(
    patient: RocketmqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocketmq_server, "_GOODBYE_S", 0.05)
    bench: Any = patient.bench
    caller = patient.caller()
    caller.send()
    bench.turn()
    [one] = caller.receive(auto_renew=True)
    bench.end_server()
    caller.call("NotifyClientTermination")  # its lease has to end
    acked = messages.AckMessageEntry(receipt_handle=one.system_properties.receipt_handle)
    request = messages.AckMessageRequest(entries=[acked]).SerializeToString()
    waiting = caller.begin("AckMessage", request)
    until(lambda: patient.server.stats()["net_running_requests"])
    patient.server.close()
    assert patient.server.has_ended
    with pytest.raises(grpc.RpcError):
        list(waiting)
    bench.serve_again()


def test_topic_that_was_deleted_is_unknown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connected_calls, "_FRESH_S", 0.0)
    served = RocketmqBench(WAYS["connect"](tmp_path / "store"), auto_create=False)
    caller = served.caller()
    assert caller.send().status.code == Code.TOPIC_NOT_FOUND
    served.bench.local.put("t", b"x")
    assert caller.send().status.code == Code.OK
    served.bench.turn()
    served.bench.local.delete_topic("t")
    assert caller.send().status.code == Code.TOPIC_NOT_FOUND
    served.close()


def test_topics_are_asked_for_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each send would be two calls."""
    monkeypatch.setattr(connected_calls, "_FRESH_S", 1e6)
    served = RocketmqBench(WAYS["connect"](tmp_path / "store"))
    caller = served.caller()

    def calls() -> int:
        return int(served.bench.local.stats()["net_requests"])

    caller.send()
    caller.send()
    before = calls()
    for _ in range(5):
        caller.send()
    assert calls() == before + 5
    served.close()


@pytest.mark.parametrize("way", ["open", "connect"])
def test_answer_has_its_share_of_the_bytes(tmp_path: Path, way: str) -> None:
    """The store leases no more than that, also in another process."""
    limits = RocketmqLimits(unsent_bytes_max=64 << 10)
    served = RocketmqBench(WAYS[way](tmp_path / "store"), limits=limits)
    for _ in range(4):
        served.bench.local.put("t", bytes(40_000))
    served.bench.turn()
    assert len(served.caller().receive()) == 1
    assert served.bench.local.backlog("t", "g").leased == 1
    served.close()


@pytest.mark.parametrize("wrong", [-1, "many", None])
def test_bytes_of_an_answer_are_checked_by_the_owner(tmp_path: Path, wrong: Any) -> None:
    bench = ConnectedBench(tmp_path / "store")
    with pytest.raises(MessageError, match="bytes_max: wanted a whole number from 0 on"):
        bench.store._made("receive", ["t", "g"], {"bytes_max": wrong})
    bench.close()


def test_store_that_several_processes_share_is_served(tmp_path: Path) -> None:
    with (
        timerstore.open(tmp_path / "store", small(), shared=True) as shared,
        timerstore.rocketmq.serve(shared, address="127.0.0.1:0") as server,
    ):
        caller = RawCaller(server.address)
        assert caller.send().status.code == Code.OK
        assert len(caller.receive(long_polling_timeout=seconds(15))) == 1
        caller.close()


def test_store_that_cannot_be_served_is_an_error(tmp_path: Path) -> None:
    bench = OnceBench(tmp_path / "store")
    bench.end_server()
    with pytest.raises(UnavailableError, match="no server was found"):
        timerstore.rocketmq.serve(bench.store, address="127.0.0.1:0")
    bench.store.close()
    with pytest.raises(ClosedError):
        timerstore.rocketmq.serve(bench.store, address="127.0.0.1:0")
    with pytest.raises(ConfigError, match="an open TimerStore or a connected one, got str"):
        timerstore.rocketmq.serve("unix:///s", address="127.0.0.1:0")  # type: ignore[arg-type]
    bench.close()


def test_owner_with_another_token_is_out_of_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def token(secret: str) -> Path:
        file = tmp_path / "token"
        file.write_text(secret * 40)
        file.chmod(0o600)
        return file

    with timerstore.open(tmp_path / "store", small()) as store:
        access: dict[str, Any] = {"token_file": token("a"), "insecure": True}
        owner = timerstore.net.serve(store, tcp="127.0.0.1:0", **access)
        (url,) = owner.urls
        with (
            timerstore.connect(url, token="a" * 40) as connected,
            timerstore.rocketmq.serve(connected, address="127.0.0.1:0") as server,
        ):
            caller = RawCaller(server.address)
            assert caller.send().status.code == Code.OK
            owner.close()
            token("b")
            owner = timerstore.net.serve(store, tcp=url.partition("//")[2], **access)
            with pytest.raises(grpc.RpcError) as found:
                caller.send()
            assert found.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
            caller.close()
            owner.close()
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("is_owner_silent", [False, True])
def test_interrupted_start_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_owner_silent: bool
) -> None:
    bench = OnceBench(tmp_path / "store")
    started: list[Any] = []
    start = ServerThread._start_thread

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def start_thread(server: ServerThread) -> None:
        started.append(server)
        start(server)
        monkeypatch.setattr(server._ready, "wait", interrupted)

    async def never(_store: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ServerThread, "_start_thread", start_thread)
    if is_owner_silent:
        monkeypatch.setattr(connected_calls, "connected_calls", never)
    with pytest.raises(KeyboardInterrupt):
        timerstore.rocketmq.serve(bench.store, address="127.0.0.1:0")
    assert started[0].has_ended
    bench.close()


@pytest.mark.parametrize("is_server", [False, True])
def test_connection_of_a_cancelled_connect_is_closed(
    once: RocketmqBench, monkeypatch: pytest.MonkeyPatch, is_server: bool
) -> None:
    store: Any = once.bench.store
    connect = AsyncRemoteStore._connect

    async def main() -> None:
        made = connected_calls.connected_calls(store) if is_server else aio_connect(store.url)
        connecting = asyncio.ensure_future(_awaited(made))

        async def cancelling(self: AsyncRemoteStore, deadline_s: float) -> Any:
            found.append(await connect(self, deadline_s))
            connecting.cancel()
            return found[0]

        monkeypatch.setattr(AsyncRemoteStore, "_connect", cancelling)
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert found[0].is_lost

    found: list[Any] = []
    asyncio.run(main())


async def _awaited(made: Any) -> Any:
    return await made
