"""A connected store: results, errors, calls that are sent again, forks."""

import grp
import os
import pwd
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.bench import NOW, Bench, small
from tests.support.served_bench import ServedBench
from timerstore import (
    AckResult,
    BusyError,
    CancelResult,
    ClosedError,
    ConfigError,
    ConnectionLostError,
    FullError,
    LeaseLostError,
    MessageError,
    NotPendingError,
    PutBatch,
    PutReceipt,
    TimerStoreError,
    UnavailableError,
)
from timerstore.net.access import socket_rules
from timerstore.net.channel import Channel
from timerstore.net.endpoints import parse_endpoint
from timerstore.net.remote_store import RemoteStore
from timerstore.net.server_limits import ServerLimits
from timerstore.net.wire_errors import CLASSES, error_of, failure_of
from timerstore.net.wire_messages import Failure, decode_from_server, encode


def test_receipts_name_the_same_messages(served: ServedBench, remote: RemoteStore) -> None:
    store = served.bench.store
    for delay in (None, 5):
        mine = remote.put("t", b"x", delay=delay, message_id=f"id{delay}")
        again = store.put("t", b"x", delay=delay, message_id=f"id{delay}")
        assert isinstance(mine, PutReceipt)
        assert again.duplicate
        for name in ("topic", "message_id", "handle", "queue_id", "log_offset", "due_ms"):
            assert getattr(mine, name) == getattr(again, name), name
    batch = remote.put_many("t", [b"1", b"2"], delay=[5, 6], message_ids=["a", "b"])
    again = store.put_many("t", [b"1", b"2"], delay=[5, 6], message_ids=["a", "b"])
    assert isinstance(batch, PutBatch)
    assert batch.handles == again.handles
    assert batch.message_ids == ["a", "b"]
    assert [one.duplicate for one in batch] == [False, False]
    assert [one.duplicate for one in again] == [True, True]


def test_pull_batch_has_the_same_columns(served: ServedBench, remote: RemoteStore) -> None:
    remote.put_many("t", [b"1", b"", b"333"], keys=["a", "b", "c"])
    served.bench.turn()
    ours, theirs = remote.pull_batch("t", 0, 0), served.bench.store.pull_batch("t", 0, 0)
    assert list(ours) == list(theirs)
    assert ours.body_list() == [b"1", b"", b"333"]
    for name in ("flag", "log_offset", "body_offsets", "store_hosts"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == other.dtype
        assert (mine[:, :8] == other[:, :8] if name == "store_hosts" else mine == other).all()
    assert not ours.store_hosts[:, 8:].any(), "bytes of the server's memory"
    assert ours.next_offset == 3
    assert ours.to_arrow().equals(theirs.to_arrow())


def test_consumer_that_is_closed_while_it_joins_again_keeps_no_queues(
    served: ServedBench, remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.put("t", b"x")
    served.bench.turn()
    consumer = remote.consumer("t", "g")
    join = consumer._join

    def join_slowly() -> tuple[int, Channel]:
        consumer.close()  # of another thread
        return join()

    monkeypatch.setattr(consumer, "_join", join_slowly)
    _break(remote)
    with pytest.raises(ClosedError):
        consumer.poll()
    assert remote.consumer("t", "g").queues == (0,)


def test_poll_of_a_consumer_that_another_thread_closes_raises_closed_error(
    remote: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = remote.consumer("t", "g")
    joined = consumer._joined

    def joined_before_the_close() -> tuple[int, Channel]:
        found = joined()
        consumer.close()
        return found

    monkeypatch.setattr(consumer, "_joined", joined_before_the_close)
    with pytest.raises(ClosedError, match="the consumer is closed"):
        consumer.poll()


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_every_error_class_travels_with_its_fields(kind: type[TimerStoreError]) -> None:
    fields: dict[str, Any] = {"where": Path("/x"), "wanted": 3, "got": "z", "retryable": True}
    first: Any = ["one", "two"] if issubclass(kind, ConfigError | MessageError) else "a text"
    if issubclass(kind, NotPendingError):
        fields["result"] = CancelResult.UNKNOWN
    if issubclass(kind, LeaseLostError):
        fields["result"] = AckResult.EXPIRED
    error = kind(first, **fields)
    if isinstance(error, FullError | BusyError):
        error.stored_count = 7
    failure = decode_from_server(encode(failure_of(5, error)))
    assert isinstance(failure, Failure)
    found = error_of(failure)
    assert type(found) is kind
    assert str(found) == str(error)
    for name in ("what", "retryable", "problems", "result", "stored_count"):
        assert getattr(found, name, None) == getattr(error, name, None)


def test_value_that_cannot_travel_is_a_message_error(remote: RemoteStore) -> None:
    for wrong in (object(), {1: object()}, 2**80, "\ud800"):
        with pytest.raises(MessageError, match="property 'a': wanted text"):
            remote.put("t", b"x", properties={"a": wrong})  # type: ignore[dict-item]


# --- calls that are sent again ---


def _break(remote: RemoteStore) -> None:
    """Cut the connection of a client below it, as a server does that dies."""
    channel = remote._connector._channel
    assert channel is not None
    with socket.socket(fileno=os.dup(channel.fileno())) as one:
        one.shutdown(socket.SHUT_RDWR)


class _CutAfterSend(Channel):
    """Loses the connection when a call was sent, before its answer."""

    cuts = 0

    def _send(self, *given: Any) -> None:
        super()._send(*given)
        if _CutAfterSend.cuts:
            _CutAfterSend.cuts -= 1
            self._stream.receive([], 20)  # the server has made the call and answered
            self._stream.shutdown()


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> type[_CutAfterSend]:
    from timerstore.net import connector

    _CutAfterSend.cuts = 0
    monkeypatch.setattr(connector, "Channel", _CutAfterSend)
    return _CutAfterSend


def test_put_with_a_lost_answer_is_stored_once(
    cut: type[_CutAfterSend], served: ServedBench
) -> None:
    remote = served.connect()
    cut.cuts = 3
    receipt = remote.put("t", b"once", delay=5)
    assert not receipt.duplicate
    assert cut.cuts == 0
    assert [one.message_id for one in remote.pending()] == [receipt.message_id]
    assert receipt.due_ms == NOW + 5000
    cut.cuts = 2
    batch = remote.put_many("t", [b"a", b"b"], delay=6)
    assert [one.duplicate for one in batch] == [False, False]
    assert len(list(remote.pending())) == 3


def test_call_that_is_not_repeatable_raises_connection_lost(
    cut: type[_CutAfterSend], served: ServedBench
) -> None:
    remote = served.connect()
    receipt = remote.put("t", b"x", delay=5)
    cut.cuts = 1
    with pytest.raises(ConnectionLostError):
        remote.reschedule(receipt, delay=9)
    cut.cuts = 1
    with pytest.raises(ConnectionLostError):
        remote.put("t", b"x", delay=5, key="k", replace=True)
    never = served.connect(retry_for=0)
    cut.cuts = 1
    with pytest.raises(ConnectionLostError):
        never.put("t", b"x")
    assert never.put("t", b"y").queue_offset == 1, "the next call makes a new connection"


def test_put_without_space_for_ids_is_stored_without_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", small(dedupe_ids_max=4096))
    served = ServedBench(bench, tmp_path / "x.sock")
    bench.store.put_many("u", [b"x"] * 4096, message_ids=[f"i{k}" for k in range(4096)])
    with pytest.raises(BusyError):
        bench.store.put("t", b"x", message_id="another")
    remote = served.connect()
    assert remote.put("t", b"x").queue_offset == 0
    assert len(remote.put_many("t", [b"y", b"z"])) == 2
    with pytest.raises(BusyError):
        remote.put("t", b"x", message_id="callers")
    served.close()


def test_store_without_deduplication_gets_no_ids_and_repeats_no_put(
    tmp_path: Path, cut: type[_CutAfterSend]
) -> None:
    bench = Bench(tmp_path / "store", small(dedupe_window_ms=0))
    served = ServedBench(bench, tmp_path / "x.sock")
    remote = served.connect()
    assert remote.put("t", b"x").queue_offset == 0
    cut.cuts = 1
    with pytest.raises(ConnectionLostError):
        remote.put("t", b"x")
    served.close()


def test_calls_wait_for_the_next_server(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    served = ServedBench(bench, tmp_path / "x.sock")
    remote = served.connect()
    remote.put("t", b"1")
    served.server.close()
    results: list[PutReceipt] = []
    caller = threading.Thread(target=lambda: results.append(remote.put("t", b"2")))
    caller.start()
    next_server = timerstore.net.serve(bench.store, socket=tmp_path / "x.sock")
    caller.join(30)
    assert [one.queue_offset for one in results] == [1]
    remote.close()
    next_server.close()
    bench.close()


def test_no_server_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="no server was found in 0 s"):
        timerstore.connect(f"unix://{tmp_path}/none", retry_for=0)


def test_server_close_ends_waits_and_leaves_the_store_open(served: ServedBench) -> None:
    remote = served.connect(retry_for=0)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            remote.receive("t", "g", wait=60)
        except ConnectionLostError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not served.server.stats()["net_waiting_requests"]:
        pass
    served.server.close()
    waiting.join(20)
    assert len(errors) == 1
    served.bench.store.put("t", b"still open")
    assert not served.path.exists()


def test_many_threads_share_one_connection(served: ServedBench, remote: RemoteStore) -> None:
    """Each gets the answers of its own calls."""
    wrong: list[object] = []

    def work(name: str) -> None:
        for k in range(100):
            one = remote.put(name, b"x", message_id=f"{name}-{k}")
            if (one.topic, one.message_id) != (name, f"{name}-{k}"):
                wrong.append(one)

    threads = [threading.Thread(target=work, args=(f"t{k}",)) for k in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []
    assert served.server.stats()["net_accepted_connections"] == 1


def test_connection_that_its_other_end_closes_is_read_to_its_end(
    served: ServedBench, remote: RemoteStore
) -> None:
    """A call that runs gets its answer; without one the connection is lost at once."""
    channel, found = remote._connector.channel(), list[Any]()
    receive = threading.Thread(target=lambda: found.extend(remote.receive("t", "g", wait=20)))
    receive.start()
    while not channel._slots:
        pass
    assert not channel.lose_if_idle()
    assert not channel.is_lost
    served.bench.store.put("t", b"x")
    served.bench.turn()
    receive.join()
    assert [one.body for one in found] == [b"x"]
    assert channel.lose_if_idle()
    assert channel.is_lost


def test_forked_child_makes_its_own_connection(served: ServedBench, remote: RemoteStore) -> None:
    remote.put("t", b"parent")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            receipts = [remote.put("t", b"child") for _ in range(3)]
            os.write(write, " ".join(one.message_id for one in receipts).encode())
        finally:
            os._exit(0)
    os.close(write)
    mine = [remote.put("t", b"parent").message_id for _ in range(3)]
    os.waitpid(pid, 0)
    theirs = os.read(read, 1000).decode().split()
    os.close(read)
    assert len({*mine, *theirs}) == 6
    assert served.server.stats()["net_accepted_connections"] == 2
    served.bench.turn()
    assert len(served.bench.out("t")) == 7


# --- leases of a connection that ends ---


def test_leases_are_returned_if_the_client_asked_for_it(served: ServedBench) -> None:
    one, other = served.connect(return_leases=True), served.connect()
    for k in range(4):
        one.put("t", b"%d" % k)
    served.bench.turn()
    first, second, third, kept = one.receive("t", "g", max_count=4, lease=3600)
    one.ack(first)
    extended = one.extend(second, lease=3600)
    one.nack(third, delay=3600)
    one.close()
    while served.server.stats()["net_returned_leases"] < 2:
        pass
    served.bench.turn()
    again = other.receive("t", "g", max_count=4)
    assert sorted(m.body for m in again) == [b"1", b"3"]
    assert other.ack(kept) is AckResult.SETTLED
    assert other.ack(extended) is AckResult.SETTLED


def test_leases_stay_if_the_server_ends(served: ServedBench) -> None:
    """Its clients go to the next one."""
    one = served.connect(return_leases=True)
    one.put("t", b"x")
    served.bench.turn()
    (message,) = one.receive("t", "g", lease=3600)
    served.server.close()
    served.server = timerstore.net.serve(served.bench.store, socket=served.path)
    served.bench.turn()
    assert one.receive("t", "g") == []
    assert one.ack(message) is AckResult.ACKED


def test_next_server_follows_a_lease_from_its_renewal_on(served: ServedBench) -> None:
    one = served.connect(return_leases=True)
    one.put("t", b"x")
    served.bench.turn()
    (message,) = one.receive("t", "g", lease=3600)
    served.server.close()
    served.server = timerstore.net.serve(served.bench.store, socket=served.path)
    one.renew(message, lease=3600)
    one.close()
    while served.server.stats()["net_returned_leases"] < 1:
        pass
    served.bench.turn()
    assert [m.body for m in served.bench.store.receive("t", "g")] == [b"x"]


def test_leases_are_kept_otherwise(served: ServedBench, remote: RemoteStore) -> None:
    remote.put("t", b"x")
    served.bench.turn()
    (message,) = remote.receive("t", "g", lease=3600)
    _break(remote)
    assert remote.ack(message) is AckResult.ACKED
    assert served.server.stats()["net_returned_leases"] == 0


# --- addresses ---


@pytest.mark.parametrize(
    "url",
    [
        "",
        "orders.sock",
        "unix://",
        "http://host:1",
        "tcp://host",
        "tls://:5",
        "tcp://h:99999",
        "tcp://a..b:1",
        5,
    ],
)
def test_invalid_url_is_a_config_error(url: Any) -> None:
    with pytest.raises(ConfigError, match="wanted unix:///PATH, tcp://HOST:PORT or tls://HOST"):
        timerstore.connect(url)


def test_urls_are_parsed() -> None:
    assert str(parse_endpoint("unix:///run/x.sock")) == "unix:///run/x.sock"
    assert parse_endpoint("tls://[::1]:70")[1:] == ("::1", 70, True)
    assert str(parse_endpoint("tcp://[::1]:70")) == "tcp://[::1]:70"


def test_every_invalid_argument_of_connect_is_named() -> None:
    with pytest.raises(ConfigError) as error:
        timerstore.connect(
            "unix:///x",
            token=5,
            tls="x",
            retry_for=-1,
            return_leases=2,  # type: ignore[arg-type]
        )
    assert len(error.value.problems) == 4


def test_socket_path_may_be_longer_than_an_address(tmp_path: Path) -> None:
    folder = tmp_path / ("f" * 150)
    folder.mkdir()
    served = ServedBench(Bench(tmp_path / "store"), folder / "x.sock")
    assert served.connect().put("t", b"x").queue_offset == 0
    served.close()
    other = Bench(tmp_path / "other")
    with pytest.raises(ConfigError, match="wanted a shorter file name"):
        ServedBench(other, folder / ("n" * 200))
    other.close()


def test_socket_of_a_live_server_is_an_error(served: ServedBench, tmp_path: Path) -> None:
    other = Bench(tmp_path / "other")
    with pytest.raises(ConfigError, match="another server listens there"):
        timerstore.net.serve(other.store, socket=served.path)
    other.close()
    assert "rmq_sys_wheel_timer" in served.connect().topics()


def test_serve_that_fails_leaves_no_address_in_use(bench: Bench, tmp_path: Path) -> None:
    with timerstore.net.serve(bench.store, tcp="127.0.0.1:0", insecure=True) as first:
        address = first.urls[0].removeprefix("tcp://")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="got a file") as error:
        timerstore.net.serve(bench.store, tcp=address, insecure=True, socket=file)
    timerstore.net.serve(bench.store, tcp=address, insecure=True).close()
    assert error.value.__traceback__ is not None, "the frames are there, so nothing was collected"


def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as one:  # as a killed server leaves it
        one.bind(str(path))
    served = ServedBench(Bench(tmp_path / "store"), path)
    assert path.stat().st_mode & 0o777 == 0o600
    served.connect().put("t", b"x")
    served.close()


def test_socket_mode_and_users(tmp_path: Path) -> None:
    bench, path, group = Bench(tmp_path / "store"), tmp_path / "x.sock", os.getegid()
    own = pwd.getpwuid(os.geteuid()).pw_name
    for options, mode in (
        ({"users": [own, 0]}, 0o600),
        ({"users": [12345], "group": group}, 0o660),
        ({"group": grp.getgrgid(group).gr_name}, 0o660),
    ):
        served = ServedBench(bench, path, **options)
        assert path.stat().st_mode & 0o777 == mode
        assert path.stat().st_gid == group
        served.connect().close()
        served.server.close()
    for wrong, text in (
        ({"users": ["no-such-user"]}, "no user has the name 'no-such-user'"),
        ({"users": [-1]}, "wanted names or ids of users, got -1"),
        ({"users": [12345]}, "the system does not know the group of user 12345"),
        ({"group": "no-such-group"}, "no group has the name 'no-such-group'"),
        ({"group": True}, "wanted the name or the id of a group, got True"),
    ):
        with pytest.raises(ConfigError, match=text):
            ServedBench(bench, path, **wrong)
        assert not path.exists()
    bench.close()


def test_users_of_different_groups_need_a_group() -> None:
    with pytest.raises(ConfigError, match="as they have different groups: "):
        socket_rules([1, 2])
    assert socket_rules([1, 2], 7)[1:] == (0o660, 7)
    assert socket_rules(group=7).users is None


@pytest.mark.parametrize("named", [[0], [4321], [os.geteuid()]])
def test_group_lets_only_named_users_connect(named: list[int]) -> None:
    assert socket_rules(named, 7).users == {os.geteuid(), 0, *named}


def test_only_users_and_members_of_the_group_may_connect(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT RUN: needs root, to become another user")
    folder = Path(tempfile.mkdtemp(prefix="timerstore"))
    folder.chmod(0o755)
    path = folder / "x.sock"
    served = ServedBench(Bench(tmp_path / "store"), path, users=[4321], group=999)
    assert _code_as(served, 4321, 999) == 10
    assert _code_as(served, 4322, 999) == 20, "another user of the group"
    assert _code_as(served, 4321, 998) == 30, "the file lets only the group connect"
    served.server.close()
    members = ServedBench(served.bench, path, group=999)
    assert _code_as(members, 4322, 999) == 10
    assert _code_as(members, 4322, 998) == 30
    members.server.close()
    one = pwd.getpwnam("nobody")
    named = ServedBench(served.bench, path, users=["nobody"])
    assert path.stat().st_gid == one.pw_gid
    assert _code_as(named, one.pw_uid, one.pw_gid) == 10
    assert _code_as(named, 4322, one.pw_gid) == 20
    named.close()
    shutil.rmtree(folder)


def _code_as(served: ServedBench, uid: int, gid: int) -> int:
    """Return 10 if a user may connect, 20 if the server rejects it, 30 if the file does."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            code = 10 if served.raw().hello()[0] == 4 else 20
        except PermissionError:
            code = 30
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_every_wrong_limit_is_named() -> None:
    with pytest.raises(ConfigError) as error:
        ServerLimits(connections_max=0, waits_max=True, hello_s=1.5)  # type: ignore[arg-type]
    assert len(error.value.problems) == 3


def test_serve_names_every_invalid_argument(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        timerstore.net.serve(
            "store",
            tls=("a",),
            limits=5,
            workers=0,  # type: ignore[arg-type]
        )
    assert len(error.value.problems) == 5


def test_clients_see_the_unique_messages_of_each_other(tmp_path: Path) -> None:
    served = ServedBench(Bench(tmp_path / "store", small(flush="sync")), tmp_path / "x.sock")
    first, second = served.connect(), served.connect()
    for number in range(3):
        stored = first.put("t", b"%d" % number, key="k", unique=True)
        known = second.put("t", b"no", key="k", unique=True)
        assert (stored.duplicate, known.duplicate) == (False, True)
        assert known.message_id == stored.message_id
        served.bench.turn()
        (message,) = second.receive("t", "g")
        assert message.body == b"%d" % number
        assert served.bench.store.put("t", b"no", key="k", unique=True).duplicate
        assert first.ack(message.receipt) is AckResult.ACKED
    served.close()
